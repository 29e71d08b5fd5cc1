"""What setup.py decides, and what it keeps of an earlier build."""

import os
import re
import runpy
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("pybind11", reason="no pybind11 here, which setup.py needs: pip install pybind11")

ROOT = Path(__file__).parents[2]
CPU, GPU = ("2.13.0+cpu", None), ("2.13.0", "13.0")


@pytest.fixture(scope="module")
def build():
    return runpy.run_path(str(ROOT / "setup.py"))


@pytest.fixture
def toolkit(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("wanted", "torch", "with_kernels", "why"),
    [
        (None, GPU, True, "torch 2.13.0 is built with CUDA 13.0"),
        (None, CPU, False, "torch 2.13.0+cpu is a build for the CPU; GLT_CUDA=1 compiles them all the same"),
        (None, None, True, "torch is not seen from here; GLT_CUDA=0 leaves them out"),
        ("1", CPU, True, "GLT_CUDA=1"),
        ("0", GPU, False, "GLT_CUDA=0"),
    ],
)
def test_kernels_are_compiled_where_they_can_be_used(build, toolkit, wanted, torch, with_kernels, why):
    environ = {"CUDA_HOME": str(toolkit)} | ({} if wanted is None else {"GLT_CUDA": wanted})
    home, said = build["decide"](environ, torch)
    assert home == (toolkit if with_kernels else None)
    assert said.startswith("with CUDA kernels: " if with_kernels else "no CUDA kernels: ") and why in said


def test_without_nvcc_there_are_no_kernels_unless_they_are_insisted_on(build, tmp_path):
    environ = {"CUDA_HOME": str(tmp_path)}
    home, said = build["decide"](environ, GPU)
    assert home is None and f"{tmp_path}/bin/nvcc does not exist" in said
    with pytest.raises(SystemExit, match=r"GLT_CUDA = 1, but .*nvcc does not exist: set CUDA_HOME to the toolkit"):
        build["decide"](environ | {"GLT_CUDA": "1"}, GPU)
    with pytest.raises(SystemExit, match=r"GLT_CUDA = 'yes': expected 0 .* or 1"):
        build["decide"]({"GLT_CUDA": "yes"}, GPU)


def test_the_version_of_torch_is_read_without_importing_it(build):
    import torch

    assert build["visible_torch"]() == (torch.__version__, torch.version.cuda)


def test_a_compiler_that_is_missing_is_named(build):
    with pytest.raises(SystemExit, match=r"needs a C\+\+20 compiler, and no-such-g\+\+ is not there: install g\+\+"):
        build["release_of"]("no-such-g++")


def test_objects_are_found_again_by_the_next_isolated_build(build, cxx, monkeypatch):
    """pip puts pybind11 into a folder of another name each time."""
    source = "csrc/python/module.cc"
    names = []
    for folder in ("/tmp/build-env-one", "/tmp/build-env-two"):
        monkeypatch.setattr(build["pybind11"], "get_include", lambda folder=folder: folder)
        names.append(build["object_of"](source, None))
        assert f"-isystem{folder}" in build["headers"](source, None)[0]
    assert names[0] == names[1]
    monkeypatch.setattr(build["pybind11"], "__version__", "0.0")
    assert build["object_of"](source, None) != names[0]
    core = build["object_of"]("csrc/core/sample.cc", None)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: "cpython-399")
    assert build["object_of"]("csrc/core/sample.cc", None) == core, "the core knows no Python"


def test_an_object_is_stale_once_a_file_of_glt_that_it_was_made_from_is_newer(build, tmp_path):
    obj, header = tmp_path / "a.o", tmp_path / "a.h"
    header.touch()
    obj.touch()
    assert not build["is_fresh"](obj)
    obj.with_suffix(".d").write_text(f"{obj}: \\\n {header}\n")
    os.utime(header, (1, 1))
    assert build["is_fresh"](obj)
    os.utime(header, (obj.stat().st_mtime + 1,) * 2)
    assert not build["is_fresh"](obj)
    header.unlink()
    assert not build["is_fresh"](obj)


def test_only_bindings_include_what_object_names_must_tell(build):
    """``-MMD`` leaves headers of others out of what an object is compared with."""
    for source in build["sources"](None):
        if not source.startswith("csrc/python/"):
            assert not re.search(r"#include <(pybind11|Python)", (ROOT / source).read_text()), source
