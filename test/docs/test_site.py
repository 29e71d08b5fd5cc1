"""The site builds without a warning or a broken link, and its reference has every public name."""

import inspect
import re
import subprocess
import sys
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import glt
from glt.cli import _COMMANDS

for package in ("sphinx", "furo", "myst_nb", "sphinxarg"):
    pytest.importorskip(package, reason=f"{package} builds the site: pip install '.[docs]'")

from sphinx.util.inventory import InventoryFile  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"
ROOMS = ["glt", *(f"glt.{name}" for name in glt.__all__ if isinstance(getattr(glt, name), ModuleType))]
WITHOUT_ROOM = ["glt.data.synthetic", "glt.data.tasks", "glt.testing.batches", "glt.testing.cluster"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """As ``make docs`` builds it; runs of tutorials are kept in build/ while glt does not change."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(DOCS / "build.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, cwd=DOCS.parent)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    assert "0 broken links" in done.stdout, done.stdout[-4000:]
    return folder


@pytest.fixture(scope="module")
def entries(site):
    """The names in the reference."""
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    return {item for kind, items in inventory.data.items() if kind.startswith("py:") for item in items}


def public_names(module: str) -> dict[str, object]:
    names = getattr(import_module(module), "__all__", None)
    if names is None:
        found = {name: value for name, value in vars(import_module(module)).items() if not name.startswith("_")}
        return {name: value for name, value in found.items() if getattr(value, "__module__", None) == module}
    return {name: getattr(import_module(module), name) for name in names}


def test_each_page_is_built(site):
    pages = {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")}
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert len(pages) > 20 and pages - built == set()


@pytest.mark.parametrize("room", ROOMS + WITHOUT_ROOM)
def test_reference_has_each_public_name(room, entries):
    names = public_names(room)
    assert names and room in entries
    for name, value in names.items():
        paths = [f"{other}.{name}" for other in ROOMS if getattr(import_module(other), name, None) is value]
        assert entries & {f"{room}.{name}", *paths}, f"docs/reference has no entry for {room}.{name}"


@pytest.mark.parametrize("room", ROOMS + WITHOUT_ROOM)
def test_each_public_name_has_a_docstring(room):
    for name, value in public_names(room).items():
        if isinstance(value, ModuleType) or not (inspect.isclass(value) or inspect.isfunction(value)):
            continue  # a constant; its entry has a text of its own
        made_up = is_dataclass(value) and value.__doc__ and value.__doc__.startswith(f"{value.__name__}(")
        assert value.__doc__ and not made_up, f"{room}.{name} has no docstring"


def test_entries_are_there(entries):
    """A name that has gone would leave an entry written by hand."""
    for entry in entries:
        for room in sorted(ROOMS + WITHOUT_ROOM, key=len, reverse=True):
            if entry.startswith(f"{room}.") or entry == room:
                value = import_module(room)
                first = entry[len(room) + 1 :].split(".")[0]
                assert not first or hasattr(value, first), entry
                break
        else:
            pytest.fail(f"{entry} is in no room")


def test_command_has_each_of_its_commands(site):
    page = (site / "reference" / "command.html").read_text()
    assert [name for name in _COMMANDS if f">glt {name}<" not in page] == []
    assert "--num-parts" in page and "--metrics-port" in page


def test_tutorials_show_what_they_print(site):
    tutorials = sorted((DOCS / "tutorials").glob("*.md"))
    assert tutorials
    for path in tutorials:
        cells = len(re.findall(r"```\{code-cell\}.*\n(?!:tags: \[.*remove-cell)", path.read_text()))
        page = (site / "tutorials" / f"{path.stem}.html").read_text()
        assert cells and len(re.findall(r'class="cell[ \w-]*docutils', page)) >= cells, path.name
        assert re.search(r'class="output (text_plain|stream|text_html|image)', page) or "<img" in page, path.name
