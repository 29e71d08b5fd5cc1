"""One rank of a partitioning run, on a host of its own; torchrun's environment says which.

It waits at the stage that is named, if any, for good: the test cuts the cable, or kills it, there.
"""

import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist
from distributed_run import random_graph, slice_of

from glt.partition import FrequencyPartitioner, partition_distributed
from glt.partition.sharded.exchange import Exchange

all_to_all = Exchange.all_to_all


def stop_at(stage):
    def all_to_all_or_stop(self, pieces):
        if self.stage.startswith(stage):
            print("stopped", flush=True)
            signal.pause()
        return all_to_all(self, pieces)

    Exchange.all_to_all = all_to_all_or_stop


def arguments():
    graph = random_graph(60, 400)
    probs = [graph["node_feat"][:, idx] ** 4 for idx in range(3)]
    return graph | {"num_parts": 3, "probs": probs, "cache_ratio": 0.2, "relabel": True}


if __name__ == "__main__":
    target, timeout_s, stage = sys.argv[1:]
    dist.init_process_group("gloo")
    if stage:
        stop_at(stage)
    given = slice_of(arguments(), dist.get_rank(), dist.get_world_size())
    manifest = partition_distributed(FrequencyPartitioner, Path(target), **given, timeout_s=float(timeout_s))
    print(manifest.run_id, os.uname().nodename, flush=True)
