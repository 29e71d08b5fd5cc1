"""What a loader has sampled, as it goes to the samplers, wherever they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from glt.channel.message import MessageKind, MessageLayout, read_message
from glt.channel.shm import SharedMemory
from glt.distributed.engine.node_sets import ClusterSeeds, HgtSeeds, SaintSeeds
from glt.distributed.engine.page_rank import PageRankSeeds
from glt.distributed.engine.seeds import AnchorSeeds, LinkSeeds, Negatives, NodeSeeds, Seeds
from glt.distributed.engine.walks import WalkSeeds
from glt.sampler.anchors import KINDS, Supervision
from glt.sampler.config import SamplingConfig
from glt.sampler.order import SeedOrder
from glt.sampler.page_rank_options import PageRankOptions
from glt.sampler.walk_options import WalkOptions


def seeds_from_json(options: dict[str, Any], extras: dict[str, Tensor]) -> Seeds:
    """Rebuilds what :meth:`Seeds.to_json` and :meth:`Seeds.extras` described."""
    given = {name: value for name, value in options.items() if name != "seeds"}
    match options["seeds"]:
        case "nodes":
            return NodeSeeds(**given)
        case "anchors":
            source, target = given["ends"]
            # In an order of their own: a message's tensors come in any.
            labels = {kind: extras[kind] for kind in KINDS if kind in extras}
            return AnchorSeeds(Supervision(given["edge_type"], (source, target), labels))
        case "walks":
            node_type, walks_per_node = given.pop("node_type"), given.pop("walks_per_node")
            return WalkSeeds(node_type, WalkOptions.from_json(given), walks_per_node)
        case "hgt":
            return HgtSeeds(**given)
        case "saint":
            return SaintSeeds(**given)
        case "page ranks":
            return PageRankSeeds(PageRankOptions(**given))
        case "clusters":
            return ClusterSeeds.from_extras(extras)
        case _:
            (source, target), drawn = given["ends"], given["negatives"]
            negatives = drawn and Negatives(**drawn, **dict[str, Any](extras))
            return LinkSeeds(given["edge_type"], (source, target), negatives)


_EXTRA = "extra/"


class SeedTable:
    """Named tensors with one row per seed, such as ``node [n]`` and ``time [n]``."""

    def __init__(self, columns: Mapping[str, Tensor], extras: Mapping[str, Tensor] | None = None) -> None:
        self.columns, self.extras = dict(columns), dict(extras or {})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self, input_id: Tensor) -> dict[str, Tensor]:
        """The rows of these seeds, ``[len(input_id), ...]`` each."""
        return {name: column[input_id] for name, column in self.columns.items()}

    def share(self) -> SharedMemory:
        """Copies the table into shared memory, for processes that inherit it and :meth:`read` it."""
        tensors = self.columns | {_EXTRA + name: tensor for name, tensor in self.extras.items()}
        layout = MessageLayout.like(tensors)
        memory = SharedMemory(layout.nbytes, "glt-seeds")
        layout.write(memory.tensor(), tensors, MessageKind.REQUEST)
        return memory

    @classmethod
    def read(cls, memory: SharedMemory) -> SeedTable:
        """The table that :meth:`share` wrote, in place."""
        tensors = read_message(memory.tensor()).tensors
        extras = {name.removeprefix(_EXTRA): tensors.pop(name) for name in list(tensors) if name.startswith(_EXTRA)}
        return cls(tensors, extras)


@dataclass(frozen=True)
class SamplingJob:
    """What a loader has sampled, wherever its samplers are. The random seed of ``order`` comes with each epoch. Of
    ``gather_window`` consecutive batches of a sampler each row elsewhere is asked for once."""

    config: SamplingConfig
    seeds: Seeds
    table: SeedTable
    order: SeedOrder
    collect_features: bool
    gather_window: int = 1

    def to_json(self) -> dict[str, Any]:
        """All but the table, which goes through shared memory or beside the JSON."""
        return {
            "config": self.config.to_json(),
            "seeds": self.seeds.to_json(),
            "order": asdict(self.order),
            "collect_features": self.collect_features,
            "gather_window": self.gather_window,
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any], table: SeedTable) -> SamplingJob:
        """Rebuilds what :meth:`to_json` described; further entries are ignored."""
        seeds = seeds_from_json(told["seeds"], table.extras)
        config, order = SamplingConfig.from_json(told["config"]), SeedOrder(**told["order"])
        return cls(config, seeds, table, order, told["collect_features"], told["gather_window"])
