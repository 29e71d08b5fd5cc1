"""What loaders are checked against: a partition that is loaded, or what servers tell of theirs."""

from __future__ import annotations

from glt.distributed.dist_dataset import DistDataset
from glt.distributed.service.remote_dataset import RemoteDataset

LoaderData = DistDataset | RemoteDataset
