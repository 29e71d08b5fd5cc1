"""Builds a ``glt._core`` whose kernels are those that nvcc wrote, run by the host; and small kernels of tests."""

import os
import runpy
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pybind11
from ptx_program import kernels_of
from ptx_to_cpp import cpp_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = runpy.run_path(str(ROOT / "setup.py"))  # which tells what objects were made from
CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
ARCH = "90"
# The sources whose objects differ in a build with CUDA: these are compiled here. host_launcher.cc has a stand-in in
# cudart.cc.
WITH_CUDA = ["device_batch", "gather", "module"]
KERNELS = [*sorted((ROOT / "csrc/cuda").glob("*.cu")), ROOT / "test/cuda/draws.cu"]
NVCC = [
    CUDA / "bin" / "nvcc", "-std=c++20", "-O3", "--expt-relaxed-constexpr", f"-I{ROOT}/csrc",
    "-Xcompiler=-fPIC,-fvisibility=hidden",
]  # fmt: skip
CXX = ["g++", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]


def has_nvcc():
    return NVCC[0].exists()


def why_not():
    """Says what is missing here to build it, or None."""
    if not has_nvcc():
        return f"needs nvcc: {CUDA}/bin/nvcc does not exist"
    if not shutil.which("g++"):
        return "needs g++"
    lacking = [s.name for s in reused_sources() if not objects_of(s)]
    if lacking:
        return f"needs the objects of `python setup.py build_ext --inplace` in build/obj: {lacking[0]} has no new one"
    return None


def reused_sources():
    """Returns the sources whose objects of an ordinary build serve here too."""
    own = [*(ROOT / "csrc/python" / f"{name}.cc" for name in WITH_CUDA), ROOT / "csrc/cuda/host_launcher.cc"]
    return [source for source in (ROOT / "csrc").glob("*/*.cc") if source not in own]


def objects_of(source):
    """Returns what setup.py made of a source as it is now, the latest last."""
    files = BUILD["digests"]()
    folder = ROOT / "build" / "obj" / source.parent.relative_to(ROOT)
    fresh = [obj for obj in folder.glob(f"{source.name}.*.o") if BUILD["is_fresh"](obj, files)]
    return sorted(fresh, key=lambda path: path.stat().st_mtime)


def run(*command, folder):
    done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(str(part) for part in command)}\n{done.stderr[-4000:]}")


def compile_cpp(source, folder, *options):
    obj = folder / f"{source.stem}.o"
    run(*CXX, f"-I{HERE}", *options, "-c", source, "-o", obj, folder=folder)
    return obj


def kernels_in(source, folder):
    """Returns the kernels of a .cu file."""
    ptx = folder / f"{source.stem}.ptx"
    run(*NVCC, f"-arch=compute_{ARCH}", "-ptx", source, "-o", ptx, folder=folder)
    return kernels_of(ptx.read_text())


def compile_cuda(source, folder):
    """Returns the host's part of a .cu file, and the kernels of the device's."""
    own = folder / source.stem
    own.mkdir()
    obj = own / f"{source.stem}.o"
    run(*NVCC, "--keep", f"-gencode=arch=compute_{ARCH},code=compute_{ARCH}", "-c", source, "-o", obj, folder=own)
    return obj, kernels_of((own / f"{source.stem}.ptx").read_text())


def compile_kernels(kernels, name, folder):
    source = folder / f"{name}.cc"
    source.write_text(cpp_of(kernels))
    return compile_cpp(source, folder, "-O1")


def halves(kernels):
    """Returns two lists of about as many instructions, for two compilers."""
    parts = [[], []]
    for kernel in sorted(kernels, key=lambda k: -len(k.body)):
        min(parts, key=lambda part: sum(len(k.body) for k in part)).append(kernel)
    return parts


def build_core(folder):
    """Returns the extension, and the names of its kernels."""
    includes = [f"-I{ROOT}/csrc", f"-I{CUDA}/include", f"-I{pybind11.get_include()}"]
    includes.append(f"-I{sysconfig.get_paths()['include']}")
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        cuda = list(pool.map(lambda s: compile_cuda(s, folder), KERNELS))
        kernels = [kernel for _, found in cuda for kernel in found]
        made = [pool.submit(compile_kernels, part, f"kernels{i}", folder) for i, part in enumerate(halves(kernels))]
        made += [
            pool.submit(compile_cpp, ROOT / "csrc/python" / f"{name}.cc", folder, "-O1", "-DGLT_HAS_CUDA=1", *includes)
            for name in WITH_CUDA
        ]
        made += [pool.submit(compile_cpp, HERE / f"{n}.cc", folder, "-O2", *includes) for n in ("emulator", "cudart")]
        objects = [obj for obj, _ in cuda] + [each.result() for each in made]
    objects += [objects_of(s)[-1] for s in reused_sources()]
    library = folder / "_core.so"
    run("g++", "-shared", "-o", library, *objects, "-lrt", "-lpthread", "-ldl", folder=folder)
    return library, [kernel.name for kernel in kernels]


def build_kernels(ptx, folder):
    """Returns a library of these kernels, which has the function ``ptx_run`` of emulator.h."""
    objects = [compile_kernels(kernels_of(ptx), "kernels", folder), compile_cpp(HERE / "emulator.cc", folder, "-O1")]
    library = folder / "kernels.so"
    run("g++", "-shared", "-o", library, *objects, folder=folder)
    return library
