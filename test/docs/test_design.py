"""The page docs/design.md names files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_files_of_the_design_page_exist() -> None:
    named = set(re.findall(r"`([a-z_/]+\.py)`", (ROOT / "docs/design.md").read_text()))
    assert len(named) > 20
    homes = [ROOT / "glt", ROOT / "glt/distributed", ROOT / "glt/partition", ROOT / "glt/partition/methods"]
    assert [name for name in sorted(named) if not any((home / name).is_file() for home in homes)] == []
