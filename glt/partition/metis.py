"""METIS's own functions, called in the library that pymetis brings.

pymetis's ``part_graph`` has no argument for several constraints, which balance by labels and edges needs, and copies
lists; METIS's C functions (Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular
graphs", SIAM J. Sci. Comput. 20(1), 1998; https://github.com/KarypisLab/METIS, manual of version 5) have both, and
pymetis's extension module exports them.
"""

import ctypes
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Final

import numpy as np

logger = logging.getLogger(__name__)

NUM_OPTIONS: Final = 40  # METIS_NOPTIONS
OK: Final = 1
ERRORS: Final = {
    -2: "it calls its input wrong (METIS_ERROR_INPUT)",
    -3: "it had not enough memory (METIS_ERROR_MEMORY); FennelPartitioner needs less",
    -4: "it was interrupted, or failed inside (METIS_ERROR)",
}


@dataclass(frozen=True)
class Metis:
    """The library.

    Attributes:
        id_dtype: Its integers, int32 or int64.
    """

    library: ctypes.CDLL
    pymetis: ModuleType
    id_dtype: np.dtype

    @classmethod
    def load(cls) -> "Metis":
        """Raises ImportError, saying what to install, where there is no pymetis or none that exports METIS."""
        try:
            import pymetis
            from pymetis import _internal
        except ImportError as error:
            raise ImportError(
                f"MetisPartitioner needs pymetis, which cannot be imported ({error}): install it with "
                "`pip install glt[metis]` or `pip install pymetis`, or use FennelPartitioner, which needs nothing"
            ) from error
        library = ctypes.CDLL(_internal.__file__)
        if not hasattr(library, "METIS_PartGraphRecursive"):
            raise ImportError(
                f"{_internal.__file__} does not export METIS's functions: install pymetis 2025.2 from a wheel of PyPI "
                "(`pip install --only-binary :all: pymetis`), or use FennelPartitioner"
            )
        return cls(library, pymetis, np.dtype(pymetis.zero_copy_dtype()))

    def part_graph(
        self,
        num_parts: int,
        indptr: np.ndarray,
        neighbor: np.ndarray,
        edge_weight: np.ndarray,
        node_weight: np.ndarray | None,
        objtype: str,
        imbalance: float,
        random_seed: int,
    ) -> np.ndarray:
        """Returns the partition of each node, ``[num_nodes]``.

        ``"cut"`` is minimised by recursive bisection, ``"vol"`` by k-way refinement, which alone knows it.

        Args:
            num_parts: At least 2, and at most the number of nodes.
            indptr: ``[num_nodes + 1]``, like all arrays of ``id_dtype``.
            neighbor: Each neighbour of a node once, without the node itself.
            edge_weight: Positive weights of these.
            node_weight: ``[num_nodes, constraints]``, at least 0; each column is balanced. None: nodes count alike.
            objtype: ``"cut"`` or ``"vol"``.
            imbalance: By how much partitions may exceed the mean, kept to a thousandth, at least one.
            random_seed: In ``[0, 2**31)``.

        Raises:
            RuntimeError: If METIS fails; says why.
        """
        keys, types = self.pymetis.OptionKey, self.pymetis.ObjType
        options = np.full(NUM_OPTIONS, -1, self.id_dtype)  # -1: METIS's default
        options[int(keys.SEED)] = random_seed
        options[int(keys.UFACTOR)] = max(1, round(imbalance * 1000))
        options[int(keys.OBJTYPE)] = int(types.VOL if objtype == "vol" else types.CUT)
        num_constraints = 1 if node_weight is None else node_weight.shape[1]
        counts = np.array([indptr.size - 1, num_constraints, num_parts, 0], self.id_dtype)
        owner = np.empty(indptr.size - 1, self.id_dtype)
        run = self.library.METIS_PartGraphKway if objtype == "vol" else self.library.METIS_PartGraphRecursive
        run.restype = ctypes.c_int
        with _printing_to_the_log():
            status = run(
                _pointer(counts[0:1]), _pointer(counts[1:2]), _pointer(indptr), _pointer(neighbor),
                _pointer(node_weight), None, _pointer(edge_weight), _pointer(counts[2:3]), None, None,
                _pointer(options), _pointer(counts[3:4]), _pointer(owner),
            )  # fmt: skip
        if status != OK:
            raise RuntimeError(
                f"METIS could not partition {owner.size} nodes with {neighbor.size} neighbours into {num_parts}: "
                f"{ERRORS.get(status, f'status {status}')}"
            )
        return owner


@contextmanager
def _printing_to_the_log() -> Iterator[None]:
    """What C code prints goes to the log meanwhile: METIS says there that it makes partitions empty, for example, where
    nodes have more than a share of the weight, which is no failure. What Python prints does not come by here."""
    c = ctypes.CDLL(None)
    try:
        stdout = ctypes.c_void_p.in_dll(c, "stdout")
        opened = c.open_memstream
    except (ValueError, AttributeError):  # no glibc: METIS may print
        yield
        return
    opened.restype = ctypes.c_void_p
    text, size, before = ctypes.c_char_p(), ctypes.c_size_t(), stdout.value
    stream = opened(ctypes.byref(text), ctypes.byref(size))
    if not stream:
        yield
        return
    stdout.value = stream
    try:
        yield
    finally:
        stdout.value = before
        c.fclose(ctypes.c_void_p(stream))  # from here on text is whole
        for line in dict.fromkeys((text.value or b"").decode(errors="replace").splitlines()):
            logger.debug("METIS says: %s", line.strip(" \t*"))
        c.free(text)


def _pointer(array: np.ndarray | None) -> ctypes.c_void_p | None:
    return None if array is None else array.ctypes.data_as(ctypes.c_void_p)
