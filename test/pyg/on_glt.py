"""A pytest plugin under which PyG's own tests run on glt, without pyg-lib and torch-sparse.

``GLT_PYG_MODE=loader`` puts glt's loaders in the place of PyG's; ``sampler`` keeps PyG's loaders and gives them glt's
sampler, by the very arguments that PyG's would get. ``collocated`` and ``worker`` put glt's distributed loaders in the
place of PyG's (:mod:`dist_loaders`), over ``GLT_PYG_PARTS`` partitions, 1 or 2. Another process has the second, and is
asked for what is there unless ``GLT_PYG_READ_LOCAL`` is 1.
"""

import os
import random

import pytest
import torch_geometric.loader
import torch_geometric.loader.link_neighbor_loader
import torch_geometric.loader.neighbor_loader
import torch_geometric.sampler
import torch_geometric.sampler.neighbor_sampler
import torch_geometric.testing.decorators
import torch_geometric.typing

import glt.loader
import glt.sampler

MODE = os.environ["GLT_PYG_MODE"]
DISTRIBUTED = MODE in ("collocated", "worker")
if DISTRIBUTED:
    import dist_loaders
    from job import Job
    from not_distributed import NOT_ASKED
FLAGS = ("WITH_PYG_LIB", "WITH_EDGE_TIME_NEIGHBOR_SAMPLE", "WITH_WEIGHTED_NEIGHBOR_SAMPLE")

SUBGRAPHS = (
    "ClusterData",
    "ClusterLoader",
    "GraphSAINTEdgeSampler",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "HGTLoader",
    "RandomNodeLoader",
    "ShaDowKHopSampler",
)
# What PyG's own loaders need and glt's do not: of subgraphs, torch-sparse too, but for the tests that make its tensors.
REPLACED = ("pyg_lib", "torch_sparse") if os.environ.get("GLT_PYG_SUBGRAPHS") else ("pyg_lib",)
OF_SPARSE_TENSORS = ("test_shadow_k_hop_sampler", "test_hgt_loader")

if MODE == "sampler":
    for module in (
        torch_geometric.loader.neighbor_loader,
        torch_geometric.loader.link_neighbor_loader,
        torch_geometric.sampler,
        torch_geometric.sampler.neighbor_sampler,
    ):
        module.NeighborSampler = glt.sampler.NeighborSampler
else:
    place = glt.loader if MODE == "loader" else dist_loaders
    for name in ("NeighborLoader", "LinkNeighborLoader", *(SUBGRAPHS if MODE == "loader" else ())):
        setattr(torch_geometric.loader, name, getattr(place, name))

# PyG compares how a list of loaders is printed; glt's say more of themselves there.
glt.loader.NeighborLoader.__repr__ = glt.loader.NeighborLoader.__str__

_decorators = torch_geometric.testing.decorators
_has_package = _decorators.has_package
NO_SPARSE = not _has_package("torch_sparse")
_decorators.has_package = lambda package: package in REPLACED or _has_package(package)
torch_geometric.testing.withMETIS = lambda test: test
_decorators.WITH_PYG_LIB = True

# Tests ask these while they are imported; PyG's layers ask them when they run, and must not find a pyg-lib.
_flags = {name: getattr(torch_geometric.typing, name) for name in FLAGS}
for name in FLAGS:
    setattr(torch_geometric.typing, name, True)


def pytest_collection_finish(session):
    for name, value in _flags.items():
        setattr(torch_geometric.typing, name, value)
    for module in {item.module for item in session.items}:
        if module.__name__.endswith("neighbor_loader"):
            module.WITH_TORCH_SPARSE = True  # else the cases of subgraph_type='induced' return at once


def pytest_collection_modifyitems(items):
    for item in items if NO_SPARSE else ():
        if item.originalname in OF_SPARSE_TENSORS:
            item.add_marker(pytest.mark.skip(reason="makes a SparseTensor, and there is no torch-sparse"))
    for item in items if DISTRIBUTED else ():
        reason = NOT_ASKED.get(item.originalname)
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))  # strict: what passes is not to be listed


@pytest.fixture(autouse=True)
def _seeded():
    # PyG's FakeDataset draws from it, and what its tests say of frequencies is true of most seeds only.
    random.seed(1)


@pytest.fixture(scope="session")
def _job():
    job = None
    if DISTRIBUTED:
        job = Job(MODE, int(os.environ["GLT_PYG_PARTS"]), os.environ["GLT_PYG_READ_LOCAL"] == "1")
        dist_loaders.Distributed.job = job
    yield job
    if job is not None:
        job.end()


@pytest.fixture(autouse=True)
def _tell_of_batches(_job, record_property):
    """Says in the report how many batches of distributed loaders a case received."""
    before = _job.num_batches if _job else 0
    yield
    if _job:
        _job.end_test()
        record_property("distributed_batches", _job.num_batches - before)
