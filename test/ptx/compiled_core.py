"""A pytest plugin: ``glt._core`` is the extension that GLT_COMPILED_CORE names (see ptx_build.py)."""

import importlib.util
import os
import sys
from importlib.machinery import ExtensionFileLoader

PATH = os.environ["GLT_COMPILED_CORE"]
loader = ExtensionFileLoader("glt._core", PATH)
module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("glt._core", PATH, loader=loader))
sys.modules["glt._core"] = module
loader.exec_module(module)
