from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cable_world import Cable, open_cable
from launch_world import SCRIPT, Launched


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that says what it is given, in a directory whose name needs quoting."""
    path = tmp_path / "a 'job'" / "say it.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def launch() -> Iterator[Callable[..., Launched]]:
    """Starts ``glt launch``; whatever is left of it is killed at the end."""
    launched: list[Launched] = []

    def start(*words: Any, **options: Any) -> Launched:
        launched.append(Launched(*words, **options))
        return launched[-1]

    yield start
    for each in launched:
        each.close()


@pytest.fixture(scope="module")
def cable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cable]:
    with open_cable(tmp_path_factory.mktemp("ssh") / "d") as opened:
        yield opened
