"""Builds ``glt_cuda13._core``, which ``glt`` loads in place of its own native module, by the rules of ../setup.py."""

import os
import runpy
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent.resolve()
os.environ["GLT_CUDA"] = "1"
version = runpy.run_path(str(HERE / "glt_cuda13" / "__init__.py"))["__version__"]
setup(
    install_requires=[f"glt-graph=={version}"],
    **runpy.run_path(str(HERE.parent / "setup.py"))["native"]("glt_cuda13._core"),
)
