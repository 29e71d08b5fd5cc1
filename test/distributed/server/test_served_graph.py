"""A graph on servers is the graph of a process alone: typed and relabelled ones, whose books a client must be told."""

from contextlib import ExitStack, contextmanager

import pytest
import torch
from dist_typed_world import NUM_NODES as TYPED
from dist_typed_world import write_typed_world
from dist_world import write_world

import glt
from glt.distributed.context import DistContext, DistRole
from glt.distributed.graph.graph import DistGraph
from glt.distributed.job.environment import JobEnvironment, JobRole
from glt.distributed.job.host_server import HostServer, free_port
from glt.distributed.job.worlds import ServedWorld, StandaloneWorld
from glt.distributed.server.client import DistClient


@contextmanager
def served(path, num_servers):
    """A graph on servers, all of them threads of this process."""
    master = "127.0.0.1", free_port("127.0.0.1")
    with ExitStack() as open_:
        for rank in range(num_servers):
            place = JobEnvironment(JobRole.PEER, 0, 1, num_servers, master, host_index=rank)
            server = HostServer(place, glt.distributed.DistDataset().load(path, rank), master, 0, 60.0)
            open_.callback(server.finish, 0.0)
        context = DistContext(DistRole.CLIENT, 1, 0, "test", num_servers + 1, num_servers)
        world = ServedWorld(DistClient(context, num_servers, 1, master, 60.0))
        open_.callback(world.close)
        yield DistGraph("small", world=world)


def alone(path):
    return DistGraph("small", world=StandaloneWorld(glt.distributed.DistDataset().load(path, 0)))


def require_same(graph, other):
    for edge_type in graph.etypes:
        for name in ("in_degrees", "out_degrees"):
            assert torch.equal(getattr(graph, name)(None, edge_type), getattr(other, name)(None, edge_type))
        ids = torch.arange(graph.num_edges(edge_type))
        assert torch.equal(graph.find_edges(ids, edge_type), other.find_edges(ids, edge_type))
        mine, theirs = graph.get_partition_book(), other.get_partition_book()
        assert torch.equal(mine.edge_owners(ids, edge_type), theirs.edge_owners(ids, edge_type))
        source, target = graph.find_edges(ids[::9], edge_type)
        assert graph.has_edges_between(source, target, edge_type).all()
    for node_type in graph.ntypes:
        data, expected = (g.ndata[node_type] if g.is_hetero else g.ndata for g in (graph, other))
        assert list(data) == list(expected)
        for name in data:
            every = torch.arange(graph.num_nodes(node_type))
            assert torch.equal(data[name][every], expected[name][every])


def test_a_typed_graph(tmp_path):
    made = write_typed_world(tmp_path, 3, "out")
    with served(made.path, 2) as graph:  # partition 2 is loaded by nobody, and read by one of them
        other = alone(made.path)
        require_same(graph, other)
        seeds = {t: torch.arange(n) for t, n in TYPED.items()}
        for edge_dir in ("in", "out"):
            found, expected = (g.sample_neighbors(seeds, 2, edge_dir, random_seed=4) for g in (graph, other))
            for edge_type in graph.etypes:
                assert torch.equal(found[edge_type].e_id, expected[edge_type].e_id)
        with pytest.raises(IndexError, match=r"edge_ids\[0\] = 900 is outside \[0, 700\)"):
            graph.find_edges([900], ("user", "rates", "item"))


def test_a_relabelled_graph_needs_no_books(tmp_path):
    made = write_world(tmp_path, 2, "in", "xye", relabel=True)
    with served(made.path, 1) as graph:
        assert graph.get_partition_book().is_relabelled
        require_same(graph, alone(made.path))
