"""Which sampler a GPU gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glt.data.device import Accelerator
from glt.distributed.device_neighbor_sampler import DeviceNeighborSampler
from glt.distributed.device_partition_sampler import DevicePartitionSampler
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.dist_neighbor_sampler import DistNeighborSampler
from glt.distributed.local_partition import LocalPartition


def sampler_on(
    accelerator: Accelerator, dataset: DistDataset, others: Mapping[int, LocalPartition], **given: Any
) -> DistNeighborSampler:
    """Returns a sampler for a GPU: of the whole graph where all of it is read here, else one that asks for the rest.

    Args:
        accelerator: The GPU.
        dataset, others: The partitions that are read here.
        given: Further arguments of both samplers, by name.
    """
    is_whole = len({dataset.partition_idx, *others}) == dataset.num_partitions
    kind: Any = DeviceNeighborSampler if is_whole else DevicePartitionSampler
    return kind(dataset, others=others, accelerator=accelerator, **given)
