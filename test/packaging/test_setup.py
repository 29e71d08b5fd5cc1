"""What setup.py decides, and what it keeps of an earlier build."""

import os
import re
import runpy
import subprocess
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


@pytest.fixture
def clone(build, cxx, tmp_path, monkeypatch):
    """A csrc of one source and one header, which setup.py takes for its own."""
    folder = tmp_path / "csrc" / "core"
    folder.mkdir(parents=True)
    (folder / "a.h").write_text("inline int a() { return 1; }\n")
    (folder / "a.cc").write_text('#include <cstddef>\n#include "core/a.h"\nint b() { return a(); }\n')
    (folder / "unrelated.h").touch()
    monkeypatch.setitem(build["compile_source"].__globals__, "ROOT", tmp_path)
    return folder


def test_an_object_is_stale_once_a_file_of_glt_that_it_was_made_from_has_other_contents(build, clone, tmp_path):
    obj, header = tmp_path / "build" / "a.cc.0.o", clone / "a.h"
    fresh = lambda: build["is_fresh"](obj, build["digests"]())  # noqa: E731
    assert not fresh()
    build["compile_source"]("csrc/core/a.cc", obj, None)
    assert fresh() and sorted(path.name for path in obj.parent.iterdir()) == ["a.cc.0.made", "a.cc.0.o"]
    (clone / "unrelated.h").write_text("// other contents\n")
    os.utime(header)
    assert fresh()
    text = header.read_text()
    header.write_text(text.replace("1", "2"))
    os.utime(header, (1, 1))  # of an older tree, unpacked over this one
    assert not fresh()
    header.write_text(text)
    assert fresh()
    header.unlink()
    assert not fresh()


def test_a_file_that_changes_while_it_is_compiled_makes_the_object_stale(build, clone, tmp_path, monkeypatch):
    obj, compile_it = tmp_path / "build" / "a.cc.0.o", subprocess.check_call

    def edited_meanwhile(*words, **options):
        compile_it(*words, **options)
        (clone / "a.h").write_text("inline int a() { return 2; }\n")

    monkeypatch.setattr(subprocess, "check_call", edited_meanwhile)
    build["compile_source"]("csrc/core/a.cc", obj, None)
    assert obj.exists() and not build["is_fresh"](obj, build["digests"]())


def test_a_compiler_that_is_ended_leaves_the_object_as_it_was(build, clone, tmp_path, monkeypatch):
    obj = tmp_path / "build" / "a.cc.0.o"
    build["compile_source"]("csrc/core/a.cc", obj, None)
    before = obj.read_bytes()

    def half(command, **options):
        Path(command[-1]).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "check_call", half)
    with pytest.raises(KeyboardInterrupt):
        build["compile_source"]("csrc/core/a.cc", obj, None)
    assert obj.read_bytes() == before and build["is_fresh"](obj, build["digests"]())


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_compiler_of_several_words_is_asked_for_its_own_version(build, tmp_path, monkeypatch):
    starter = program(tmp_path / "ccache", '[ "$1" = --version ] && echo of the starter || exec "$@"')
    compiler = program(tmp_path / "cc", "echo release 1")
    monkeypatch.setenv("CXX", f"{starter} {compiler}")
    assert build["releases_for"]("csrc/core/sample.cc", None) == ["release 1\n"]
    broken = program(tmp_path / "broken", "echo no libc >&2; exit 3")
    with pytest.raises(SystemExit, match=r"broken --version ended with 3: 'no libc'; expected a compiler that works"):
        build["release_of"](broken)


def test_kernels_know_nvccs_host_compiler_and_variables(build, toolkit, tmp_path, monkeypatch):
    program(toolkit / "bin" / "nvcc", "echo nvcc 13")
    names = set()
    for release, flags in (("1", ""), ("2", ""), ("2", "-G")):
        monkeypatch.setenv("NVCC_CCBIN", program(tmp_path / f"g++{release}", f"echo {release}"))
        monkeypatch.setenv("NVCC_APPEND_FLAGS", flags)
        names.add(build["object_of"]("csrc/cuda/device.cu", toolkit))
    assert len(names) == 3


def test_only_a_folder_below_the_build_base_is_emptied(build, tmp_path, monkeypatch):
    from setuptools import Distribution

    monkeypatch.chdir(tmp_path)
    for name in ("build/lib", "mine"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "old.py").touch()
        command = build["Build"](Distribution())
        command.build_lib = name
        command.ensure_finalized()
        command.run()
    assert (tmp_path / "mine" / "old.py").exists() and not (tmp_path / "build" / "lib" / "old.py").exists()


def test_only_bindings_include_what_object_names_must_tell(build):
    """``-MMD`` leaves headers of others out of what an object is compared with."""
    for source in build["sources"](None):
        if not source.startswith("csrc/python/"):
            assert not re.search(r"#include <(pybind11|Python)", (ROOT / source).read_text()), source
