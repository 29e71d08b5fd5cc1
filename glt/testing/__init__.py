"""Small worlds whose answers are known, and what every batch sampled from them must satisfy.

For the tests of glt and of code that uses it. The sampling law in plain Python is in :mod:`glt.testing.reference`,
graphs of several types in :mod:`glt.testing.batches`, jobs of several processes in :mod:`glt.testing.cluster`.
"""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt.testing.batches import SmallGraph, check_batch, random_graph, ring_graph
    from glt.testing.reference import (
        ReferenceBatch,
        ReferenceEdges,
        ReferenceTypedBatch,
        philox,
        reference_batch,
        reference_key,
        reference_typed_batch,
    )

__all__ = [
    "ReferenceBatch",
    "ReferenceEdges",
    "ReferenceTypedBatch",
    "SmallGraph",
    "check_batch",
    "philox",
    "random_graph",
    "reference_batch",
    "reference_key",
    "reference_typed_batch",
    "ring_graph",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batches": ["SmallGraph", "check_batch", "random_graph", "ring_graph"],
        "reference": [
            "ReferenceBatch",
            "ReferenceEdges",
            "ReferenceTypedBatch",
            "philox",
            "reference_batch",
            "reference_key",
            "reference_typed_batch",
        ],
    },
)
