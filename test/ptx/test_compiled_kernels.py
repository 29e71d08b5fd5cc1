"""The kernels as nvcc wrote them (PTX), run by the host instruction by instruction, give the CPU's batches bit for bit.

Other tests run the kernels' C++ as the host's compiler reads it. Here the tests of test/cuda and of device samplers run
once more with an extension whose launches, graphs, copies and pinned memory go through csrc/cuda/*.cu into a runtime
that has the host's memory (cudart.cc). Accesses at odd addresses, reads and writes that are in no order, shared memory
that nobody wrote, barriers that some threads miss, and copies from memory that is not pinned are errors. What no
emulation shows: time, captures by others, a second GPU, streams that run beside each other, and the compiler from PTX
to the machine's code.

The default run only has nvcc write the kernels and translates them: building the extension and running the tests on it
takes minutes, and is left to `make test-full`.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ptx_build import CUDA, KERNELS, ROOT, build_core, has_nvcc, kernels_in, why_not
from ptx_to_cpp import cpp_of

HERE = Path(__file__).parent
WAIT_S = 600  # minutes on a machine of two cores that is busy
on_the_emulator = [
    pytest.mark.full,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(2 * WAIT_S),
]

# Not here: threads that launch at the same time are the host executor's; rows of thousands of edges take minutes.
SKIPPED = "not at_the_same_time and not forward-True and not backward-True and not longer_than_a_block"
TESTS = {
    "batches": ["test/cuda/test_device_batch.py"],
    "the rest": [
        "test/cuda/test_device_negatives.py", "test/cuda/test_device_hotness.py", "test/cuda/test_row_gather.py",
        "test/cuda/test_draws.py",
        "test/sampler/test_device_sampling.py", "test/sampler/test_hot_topologies.py",
        "test/loader/test_loaders_on_device.py",
    ],
}  # fmt: skip


@pytest.mark.skipif(not has_nvcc(), reason=f"needs nvcc: {CUDA}/bin/nvcc does not exist")
def test_the_emulator_knows_every_instruction_of_every_kernel(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        kernels = [
            kernel for found in pool.map(lambda source: kernels_in(source, tmp_path), KERNELS) for kernel in found
        ]
    assert len(kernels) >= 52
    translated = cpp_of(kernels)
    assert all(f"run_{kernel.name}(" in translated for kernel in kernels)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    core, kernels = build_core(folder)
    return core, kernels, folder / "kernels_run"


@pytest.fixture(scope="module")
def runs(compiled):
    core, _, log = compiled
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
        "GLT_COMPILED_CORE": str(core), "PTX_KERNELS_RUN": str(log), "PYTHONPATH": f"{HERE}:{ROOT}",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "compiled_core", "-p", "no:cacheprovider"]
    started = {
        name: subprocess.Popen([*command, "-k", SKIPPED, *paths], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
        for name, paths in TESTS.items()
    }
    deadline = time.monotonic() + WAIT_S
    try:
        yield {
            name: (process.communicate(timeout=deadline - time.monotonic())[0], process.returncode)
            for name, process in started.items()
        }
    finally:
        for process in started.values():
            process.kill()
            process.wait()


@pytest.mark.parametrize("name", [pytest.param(name, marks=on_the_emulator) for name in TESTS])
def test_the_kernels_as_compiled_give_the_cpus_batches(runs, name):
    output, code = runs[name]
    assert code == 0, output
    assert " passed" in output


A_BATCH = """
from glt import _core
try:
    _core.DeviceBatch([4], [(0, 0)], device=-1)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.full
@on_the_emulator[1]
@pytest.mark.parametrize(("capability", "runs"), [(90, True), (89, False), (100, True), (75, False)])
def test_a_gpu_without_kernels_is_refused_in_words(compiled, capability, runs):
    env = os.environ | {"GLT_COMPILED_CORE": str(compiled[0]), "PYTHONPATH": f"{HERE}:{ROOT}"}
    env["PTX_CAPABILITY"] = str(capability)
    command = [sys.executable, "-c", f"import compiled_core{A_BATCH}"]
    said = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True).stdout
    told = (
        f"cuda:1 has compute capability {capability // 10}.{capability % 10}, and this build of glt has kernels for 9.0"
    )
    assert said == "" if runs else told in said and f"GLT_CUDA_ARCHS={capability}, or sample on the CPU" in said


A_HOP = """
import sys
import torch
from glt.sampler.device_batch import DeviceBatch, PlacedRows
degree = torch.arange(900) % 60
indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
edge_ids = torch.arange(int(indptr[-1])).flip(0)
rows = PlacedRows.of(indptr, edge_ids % 900, edge_ids, num_neighbor_nodes=900)
batch = DeviceBatch([900], [(0, 0)], torch.device("cpu"))
batch.launch([rows], [(0, torch.arange(700))], [[int(sys.argv[1])]], batch_key=1)
batch.finish()
"""


@pytest.mark.full
@on_the_emulator[1]
@pytest.mark.parametrize("k", [5, 10, 16, 25])
def test_warps_write_the_edges_of_rows_side_by_side(compiled, tmp_path, k):
    """One thread a row moved four to five times the sectors that it wrote bytes for."""
    env = os.environ | {"GLT_COMPILED_CORE": str(compiled[0]), "PYTHONPATH": f"{HERE}:{ROOT}"}
    env["PTX_TRAFFIC"] = str(tmp_path / "traffic")
    command = [sys.executable, "-c", f"import compiled_core{A_HOP}", str(k)]
    subprocess.run(command, env=env, cwd=ROOT, timeout=100, check=True)
    [counts] = [line.split()[1:] for line in (tmp_path / "traffic").read_text().splitlines() if "8PickRows" in line]
    _, _, stored_bytes, store_sectors = map(int, counts)
    assert store_sectors < 1.3 * stored_bytes / 32


@pytest.mark.full
@on_the_emulator[1]
def test_all_kernels_were_run(runs, compiled):
    _, kernels, log = compiled
    assert sorted(set(kernels) - set(log.read_text().split())) == []
