"""What runs PTX here: its checkers find what they are for, and it counts what warps move. That it computes as a GPU is
seen by batches that are the CPU's, see test_compiled_kernels.py."""

import ctypes
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from ptx_build import build_kernels
from ptx_program import UnknownPtx, kernels_of
from ptx_to_cpp import cpp_of

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")

THREADS = 64
HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n"


def kernel(name, body):
    """PTX of a kernel with one parameter, the address of an array: %rd1. %rd2 is that of the thread's own 8 bytes."""
    return f"""
.visible .entry {name}(
	.param .u64 {name}_param_0
)
.maxntid {THREADS}, 1, 1
{{
	.reg .pred 	%p<9>;
	.reg .b16 	%rs<9>;
	.reg .b32 	%r<20>;
	.reg .f32 	%f<9>;
	.reg .f64 	%fd<9>;
	.reg .b64 	%rd<20>;
	.shared .align 8 .b8 {name}_shared[512];

	ld.param.u64 	%rd1, [{name}_param_0];
	mov.u32 	%r1, %tid.x; // the thread
	mul.wide.u32 	%rd9, %r1, 8;
	add.s64 	%rd2, %rd1, %rd9;
	mov.u32 	%r2, {name}_shared;
	shl.b32 	%r3, %r1, 3;
	add.s32 	%r4, %r2, %r3; // its own 8 bytes of shared memory
{body}
	ret;
}}
"""


NEIGHBOR = "	xor.b32 	%r5, %r3, 8;\n	add.s32 	%r6, %r2, %r5;\n"
RULES = {  # body, and what is found wrong, or None
    "in_step": (f"st.shared.u64 [%r4], %rd2;\n{NEIGHBOR}bar.sync 0;\nld.shared.u64 %rd3, [%r6];", None),
    "no_barrier": (f"st.shared.u64 [%r4], %rd2;\n{NEIGHBOR}ld.shared.u64 %rd3, [%r6];", "nobody wrote|beside a write"),
    "overtaken": (
        f"st.shared.u64 [%r4], %rd2;\n{NEIGHBOR}bar.sync 0;\nld.shared.u64 %rd3, [%r6];\nst.shared.u64 [%r4], %rd3;",
        "beside a",
    ),
    "not_set": ("ld.shared.u64 %rd3, [%r4];", "nobody wrote"),
    "past_the_end": ("ld.shared.u64 %rd3, [%r2+512];", "outside of shared memory"),
    "odd": ("ld.global.u64 %rd3, [%rd2+4];", "odd address"),
    "odd_pair": ("ld.global.v2.u64 {%rd3, %rd4}, [%rd2];", "odd address"),
    "null": ("mov.u64 %rd3, 0;\nst.global.u64 [%rd3], %rd2;", "address 0"),
    "barriers": (
        "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra $L_1;\nbar.sync 0;\n$L_1:\nbar.sync 0;", "different barriers"
    ),
    "one_ends": ("setp.eq.u32 %p1, %r1, 3;\n@%p1 ret;\nbar.sync 0;", "different barriers"),
    "constant": ("st.global.u64 [%rd2], %rd2;\nld.global.nc.u64 %rd3, [%rd2];", "ld.nc"),
    "own_word": ("st.global.u64 [%rd2], %rd2;\nld.global.u64 %rd3, [%rd2];", None),
    "at_a_stride": ("add.s64 %rd3, %rd2, %rd9;\nst.global.u64 [%rd3], %rd2;", None),
    "one_word": ("st.global.u64 [%rd1], %rd2;", "beside a write"),
    "one_value": ("st.global.u64 [%rd1], %rd1;", None),
    "atomics": ("mov.u64 %rd3, 1;\natom.global.add.u64 %rd4, [%rd1], %rd3;\nld.global.cg.u64 %rd5, [%rd1];", None),
    "stale": ("mov.u64 %rd3, 1;\natom.global.add.u64 %rd4, [%rd1], %rd3;\nld.global.u64 %rd5, [%rd1];", "beside a"),
    "no_retry": (
        "ld.global.cg.u64 %rd3, [%rd1];\nadd.s64 %rd4, %rd3, 1;\natom.global.cas.b64 %rd5, [%rd1], %rd3, %rd4;", None
    ),
    "trapped": ("setp.eq.u32 %p1, %r1, 7;\n@%p1 trap;", "trap"),
}  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    ptx = HEAD + "".join(kernel(name, body) for name, (body, _) in RULES.items())
    built = ctypes.CDLL(str(build_kernels(ptx, tmp_path_factory.mktemp("kernels"))))
    built.ptx_run.restype = ctypes.c_char_p
    return built


def run(library, name, backward=False, blocks=1):
    array = np.zeros(2 * THREADS + 4, np.int64)
    at = ctypes.c_uint64(array.ctypes.data + -array.ctypes.data % 32)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(at))
    wrong = library.ptx_run(name.encode(), blocks, THREADS, backward, arguments)
    return (wrong or b"").decode(), array


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_what_a_gpu_faults_on_or_leaves_to_chance_is_found(library, name, backward):
    expected = RULES[name][1]
    wrong, array = run(library, name, backward)
    if expected is None:
        assert wrong == ""
    else:
        assert any(text in wrong for text in expected.split("|")), wrong
        assert wrong.startswith(f"{name}, line ")
    if name == "atomics":
        assert array.max() == THREADS
    if name == "no_retry":  # all read before the first of them wrote
        assert array.max() == 1


def test_blocks_are_in_no_order(library):
    assert run(library, "own_word", blocks=1)[0] == ""
    assert "beside a" in run(library, "own_word", blocks=2)[0]  # the same words again


COUNTED = """
import ctypes, sys
import test_ptx_machine
library = ctypes.CDLL(sys.argv[1])
library.ptx_run.restype = ctypes.c_char_p
for name in sys.argv[2:]:
    test_ptx_machine.run(library, name)
"""


def test_what_the_threads_of_a_warp_move_together_is_counted(library, tmp_path):
    env = os.environ | {"PTX_TRAFFIC": str(tmp_path / "traffic"), "PYTHONPATH": os.path.dirname(__file__)}
    command = [sys.executable, "-c", COUNTED, library._name, "own_word", "at_a_stride", "one_value"]
    subprocess.run(command, env=env, check=True, timeout=60)
    # By kernel, bytes and sectors of loads, and of stores.
    assert (tmp_path / "traffic").read_text().splitlines() == [
        "at_a_stride 0 0 512 32",
        "one_value 0 0 512 2",
        "own_word 512 16 512 16",
    ]


@pytest.mark.parametrize("body", ["shfl.sync.down.b32 %r5, %r1, 1, 31, -1;", "bar.sync 1;", "@%p1 bar.sync 0;"])
def test_what_is_not_known_is_refused_by_its_line(body):
    with pytest.raises(UnknownPtx, match=r"line \d+: "):
        cpp_of(kernels_of(HEAD + kernel("unknown", body)))
