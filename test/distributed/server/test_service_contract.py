"""Each batch from servers keeps PyG's contract, and is the one that the local loader gives."""

import pytest
from pyg_contract import CASES, GRAPHS, assert_kept, epoch
from service_world import become_client, options, serve

import glt
from glt.testing.cluster import Cluster, free_port


def run(trainer, root, ports):
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
                    None, with_edge=True, collect_features=True, worker_options=options(), **case.arguments()
                ) as loader:
                    results.append(epoch(loader))
        glt.distributed.shutdown_client()
    return results


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional")
def test_every_batch_from_servers_keeps_the_contract(contract_root):
    ports = [free_port() for _ in GRAPHS]
    with Cluster(3, run, contract_root, ports) as cluster:
        *_, results = cluster.results()
        cluster.expect_nothing_left()
    cases = [case for graph in GRAPHS for case in CASES if case.graph == graph]
    for case, batches in zip(cases, results, strict=True):
        assert_kept(case, batches)
