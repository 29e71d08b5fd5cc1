"""Names: of the distribution, which is not that of the package; of versions, which agree; of what is missing."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest

import glt

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
KERNELS = tomllib.loads((ROOT / "cuda13" / "pyproject.toml").read_text())
TEXTS = (".md", ".py", ".cc", ".cu", ".h", ".pyi", ".toml", ".cfg", ".yml", ".yaml", ".ipynb")


def test_no_text_tells_anybody_to_install_the_stranger_called_glt():
    """The package ``glt`` of the index is somebody else's."""
    stranger = re.compile(r"pip3? install[^\n`#]*\s['\"]?glt(\[|['\"`\s,.;)]|$)")
    assert stranger.search("pip install -U 'glt[metis]'") and stranger.search("(pip install glt)")
    assert not stranger.search("pip install 'glt-graph[cuda]'") and not stranger.search("pip install pymetis # for glt")
    files = [
        file
        for folder in ("glt", "docs", "examples", "csrc", "benchmarks", "cuda13")
        for file in (ROOT / folder).rglob("*")
    ]
    files += [*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "setup.py"]
    read = [file for file in files if file.suffix in TEXTS]
    assert len(read) > 200
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in read
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if stranger.search(line) and "somebody else" not in line
    ]
    assert not found


def test_versions_agree():
    said = re.findall(r'^__version__ = "(.*)"$', (ROOT / "cuda13/glt_cuda13/__init__.py").read_text(), re.M)
    assert said == [glt.__version__]
    assert PROJECT["project"]["name"] == "glt-graph" and KERNELS["project"]["name"] == "glt-graph-cuda13"
    assert PROJECT["project"]["optional-dependencies"]["cuda"] == ["glt-graph-cuda13"]
    try:
        installed = metadata("glt-graph")
    except PackageNotFoundError:
        pytest.skip("glt-graph is not installed here: make does that")
    assert installed["Version"] == glt.__version__ and installed["License-Expression"] == "MIT"


def test_both_distributions_are_built_for_the_same_pythons():
    keys = ("build", "skip", "archs", "manylinux-x86_64-image", "manylinux-aarch64-image")
    wheels, kernels = (each["tool"]["cibuildwheel"] for each in (PROJECT, KERNELS))
    assert [wheels[key] for key in keys] == [kernels[key] for key in keys]
    classified = [each.split(" :: ")[-1] for each in PROJECT["project"]["classifiers"] if "Python :: 3." in each]
    assert wheels["build"].split() == [f"cp{each.replace('.', '')}-*" for each in classified]
    assert PROJECT["build-system"] == KERNELS["build-system"]


KERNELS_OF = """
import sys
sys.path.insert(0, {folder!r})
try:
    import glt
except ImportError as error:
    print(error)
else:
    import glt._core
    print(glt._core.has_cuda)
"""


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (glt.__version__, "of the kernels"),
        ("0.0.9", f"glt-graph {glt.__version__} found glt-graph-cuda13 0.0.9: expected the same version; pip install"),
    ],
)
def test_the_module_with_the_kernels_is_loaded_in_place_of_glts_own(version, said, tmp_path):
    folder = tmp_path / "glt_cuda13"
    folder.mkdir()
    (folder / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (folder / "_core.py").write_text("has_cuda = 'of the kernels'\n")
    done = subprocess.run(
        [sys.executable, "-c", KERNELS_OF.format(folder=str(tmp_path))],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert said in done.stdout, done.stderr


def test_a_folder_that_an_uninstall_left_is_no_module_with_kernels(tmp_path):
    (tmp_path / "glt_cuda13" / "__pycache__").mkdir(parents=True)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import glt; print(glt.glt_cuda13, glt.has_cuda)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.stdout.startswith("None "), done.stderr
