"""Each batch of a distributed loader keeps PyG's contract, and is the one that the local loader gives."""

import os

import pytest
from dist_world import join, options, run_cluster
from pyg_contract import CASES, GRAPHS, assert_kept, epoch
from service import become_client, serve
from service import options as client_options

import glt
from glt.testing.cluster import free_port

FULL = os.environ.get("GLT_FULL") == "1"


def run(trainer, root, mode, cases):
    """An epoch of each case on the first trainer; the other has the second partition."""
    results = []
    for case in cases:
        data = join(trainer, root / case.graph)
        with getattr(glt.distributed, f"Dist{case.kind}")(
            data, with_edge=True, collect_features=True, worker_options=options(trainer, mode), **case.arguments()
        ) as loader:
            results.append(epoch(loader))
    return results


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["collocated", "mp"])
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional")
def test_every_batch_keeps_the_contract_and_is_the_local_one(contract_root, mode):
    # In worker mode each loader starts programs, which is what takes the time.
    cases = CASES if mode == "collocated" or FULL else [CASES[10], CASES[19]]
    by_rank = run_cluster(2, run, contract_root, mode, cases, deadline_s=240.0)
    for case, first, second in zip(cases, *by_rank, strict=True):
        assert_kept(case, first, second)


def run_with_servers(trainer, root, ports):
    """An epoch of each case on the client: servers are started anew for each graph, in the same processes."""
    results = []
    for graph, port in zip(GRAPHS, ports, strict=True):
        trainer.port = port  # a server that is done with one graph must not meet one that is not
        if trainer.rank < 2:
            serve(trainer, root / graph, 2, 1)
            glt.distributed.wait_and_shutdown_server(100.0)
            continue
        become_client(trainer, 2, 1)
        for case in CASES:
            if case.graph == graph:
                with getattr(glt.distributed, f"Dist{case.kind}")(
                    None, with_edge=True, collect_features=True, worker_options=client_options(), **case.arguments()
                ) as loader:
                    results.append(epoch(loader))
        glt.distributed.shutdown_client()
    return results


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional")
def test_every_batch_from_servers_keeps_the_contract(contract_root):
    ports = [free_port() for _ in GRAPHS]
    *_, results = run_cluster(3, run_with_servers, contract_root, ports)
    cases = [case for graph in GRAPHS for case in CASES if case.graph == graph]
    for case, batches in zip(cases, results, strict=True):
        assert_kept(case, batches)
