import os
import shlex
import shutil

import pytest


@pytest.fixture
def cxx():
    """The compiler's command, as setup.py takes it."""
    command = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(command[0]) is None:
        assert "CXX" not in os.environ, f"CXX = {os.environ['CXX']!r}: there is no {command[0]}"
        pytest.skip("no C++ compiler")
    return command
