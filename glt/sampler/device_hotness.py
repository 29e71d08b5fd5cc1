"""Hotness passed along edges by a kernel: what ``_core.add_doubt`` adds up on the CPU.

On the device ``cpu``, where the host runs the kernel, the sums are the CPU's, bit for bit; by weight for rows of up to
256 edges, beyond which terms are added in another order. A GPU's logarithms and exponentials differ in their last bits
from the host's and multiplications are fused with additions: probabilities agree to 1e-6. Has not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.sampler.config import SamplingConfig
from glt.sampler.device_batch import current_stream, device_index
from glt.sampler.device_rows import PlacedRows

if TYPE_CHECKING:
    from glt.sampler.sample_prob import EdgeFacts


class DeviceHotness:
    """One sampler's edges, for :func:`glt.sampler.sample_prob.computed`.

    Args:
        device: Where.
        placed: Rows by edge type.
        ends: ``(expanded node type, neighbour node type)`` of each edge type.
        facts: By edge type; a bit or two per edge, which stay on the device.
        options: For tests: of ``_core.DeviceHotness``.
    """

    def __init__(
        self,
        device: torch.device,
        placed: Sequence[PlacedRows],
        ends: Sequence[tuple[int, int]],
        facts: Sequence[EdgeFacts],
        **options: Any,
    ) -> None:
        self.device, self.placed, self.ends, self.facts = device, placed, ends, facts
        self._native = _core.DeviceHotness(device=device_index(device), **options)
        self._bits = [(self._there(fact.repeated), self._there(fact.mutual)) for fact in facts]

    def doubts(self, config: SamplingConfig, hop: int, found: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Adds up what all edges contribute at one hop; waits for it.

        Args:
            config: Options; at most ``_core.most_hotness_hops`` hops.
            hop: From 0.
            found: By node type, ``[num_nodes, num_columns]`` float32: probabilities of being found by each hop.

        Returns:
            By node type, ``[num_nodes]`` int64, in units of ``_core.doubt_unit``.
        """
        tables = [self._there(table) for table in found]
        sums = [torch.zeros(len(table), dtype=torch.int64, device=self.device) for table in found]
        counts = [list(map(int, each)) for each in config.num_neighbors]
        for r, (expanded, neighbor) in enumerate(self.ends):
            repeated, mutual = self._bits[r]
            way_back: dict[str, Any] = {}
            if mutual is not None:
                back = self.facts[r].back
                way_back = {"mutual": mutual.data_ptr(), "back": self.placed[back].rows, "back_neighbors": counts[back]}
            self._native.add_doubt(
                self.placed[r].rows, counts[r], weighted=config.weighted, replace=config.replace, hop=hop,
                expanded=_address(tables[expanded]), neighbor=_address(tables[neighbor]),
                num_columns=found[neighbor].shape[1], doubt=sums[neighbor].data_ptr(),
                repeated=_address(repeated), stream=current_stream(self.device), **way_back,
            )  # fmt: skip
        return [each.cpu().numpy() for each in sums]

    def _there(self, values: np.ndarray | None) -> Tensor | None:
        if values is None:
            return None
        as_known = values.view(np.int64) if values.dtype == np.uint64 else values
        return torch.from_numpy(np.ascontiguousarray(as_known)).to(self.device)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
