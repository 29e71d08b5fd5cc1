"""Each batch of a distributed loader keeps PyG's contract, and is the one that the local loader gives.

Batches are compared with others in ``test_typed_batch_law.py`` and ``test_local_batch_law.py`` too.
"""

import os

import pytest
from dist_world import join, options
from pyg_contract import CASES, assert_kept, epoch

import glt
from glt.testing.cluster import Cluster

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
    with Cluster(2, run, contract_root, mode, cases, deadline_s=240.0) as cluster:
        by_rank = cluster.results()
        cluster.expect_nothing_left()
    for case, first, second in zip(cases, *by_rank, strict=True):
        assert_kept(case, first, second)
