"""A pytest plugin under which PyG's own tests run on glt, without pyg-lib and torch-sparse.

``GLT_PYG_MODE=loader`` puts glt's loaders in the place of PyG's; ``sampler`` keeps PyG's loaders and gives them glt's
sampler, by the very arguments that PyG's would get.
"""

import os

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
FLAGS = ("WITH_PYG_LIB", "WITH_EDGE_TIME_NEIGHBOR_SAMPLE", "WITH_WEIGHTED_NEIGHBOR_SAMPLE")

if MODE == "loader":
    for name in ("NeighborLoader", "LinkNeighborLoader"):
        if hasattr(glt.loader, name):
            setattr(torch_geometric.loader, name, getattr(glt.loader, name))
else:
    for module in (
        torch_geometric.loader.neighbor_loader,
        torch_geometric.loader.link_neighbor_loader,
        torch_geometric.sampler,
        torch_geometric.sampler.neighbor_sampler,
    ):
        module.NeighborSampler = glt.sampler.NeighborSampler

_decorators = torch_geometric.testing.decorators
_has_package = _decorators.has_package
_decorators.has_package = lambda package: package == "pyg_lib" or _has_package(package)
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
