"""Negatives found by a kernel: the same that :mod:`glt.sampler.negatives` finds in rounds.

A block of threads tries the candidates of one negative, one after the other, and reads the row that would hold the
edge, all of it, since rows are in no order. Has not run on a GPU yet; on the device ``cpu`` the host runs the kernel.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.sampler import negatives
from glt.sampler.device_batch import current_stream, device_index
from glt.sampler.device_rows import PlacedRows
from glt.sampler.negatives import Endpoint, NegativeRounds


class DeviceNegatives:
    """Finds the negatives of batches on one device, where weights and times of nodes stay from batch to batch.

    Args:
        device: Where.
        options: For tests: of ``_core.DeviceNegatives``.
    """

    def __init__(self, device: torch.device, **options: Any) -> None:
        self.device = device
        self._native = _core.DeviceNegatives(device=device_index(device), **options)
        self._lock = threading.Lock()  # around the native object, which knows one stream at a time
        self._kept: dict[str, tuple[Any, Tensor]] = {}  # by name: what was given last, and where it is

    def finish(
        self,
        rounds: NegativeRounds,
        rows: PlacedRows | None,
        edge_dir: str,
        src_time: np.ndarray | None,
        dst_time: np.ndarray | None,
    ) -> None:
        """Answers all rounds at once; waits for the answer.

        Args:
            rounds: Which negatives.
            rows: All edges, or None where there are none.
            edge_dir: ``'in'``: rows are those of destinations; ``'out'``: of sources.
            src_time, dst_time: Time of every node of an end ``[num_nodes]``, int64, or None.

        Raises:
            ValueError: If there is no negative for a slot; names its source where that is given.
        """
        if rounds.done:
            return
        n = len(rounds.dst)
        inputs: list[Tensor] = []  # kept until the answer is there
        given = None if rounds.source is None else self._there(rounds.source, inputs)
        late = None if rounds.seed_time is None else self._there(rounds.seed_time, inputs)
        ends = [
            self._end("src", rounds.src_end, src_time if late is not None else None, given, inputs),
            self._end("dst", rounds.dst_end, dst_time if late is not None else None, None, inputs),
        ]
        out = torch.full((2 * n + 1,), -1, dtype=torch.int64, device=self.device)
        address = out.data_ptr()
        with self._lock:
            self._native.launch(
                None if rows is None else rows.rows, from_destination=edge_dir == "in", src=ends[0], dst=ends[1],
                batch_key=rounds.batch_key, num_slots=n, max_attempts=negatives.MAX_ATTEMPTS,
                seed_time=0 if late is None else late.data_ptr(), src_out=address, dst_out=address + 8 * n,
                gave_up=address + 16 * n, stream=current_stream(self.device),
            )  # fmt: skip
        found = out.cpu().numpy()  # which waits
        rounds.answer(found[:n], found[n : 2 * n], int(found[2 * n]))

    def _end(
        self, side: str, end: Endpoint, time: np.ndarray | None, given: Tensor | None, inputs: list[Tensor]
    ) -> _core.NegativeEnd:
        if given is not None:
            return _core.NegativeEnd(num_nodes=end.num_nodes, given=given.data_ptr())
        weights = self._stays(f"{side} weights", end.weight_sum, inputs)
        times = None if time is None or end.earliest is None else self._stays(f"{side} times", time, inputs)
        earliest, earliest_time = end.earliest or (0, 0)
        return _core.NegativeEnd(
            num_nodes=end.num_nodes, weight_sum=0 if weights is None else weights.data_ptr(),
            time=0 if times is None else times.data_ptr(), earliest=earliest, earliest_time=earliest_time,
        )  # fmt: skip

    def _stays(self, name: str, values: np.ndarray | None, inputs: list[Tensor]) -> Tensor | None:
        """Copies an array to the device, unless it was the last one of that name, or another view of the same.

        It is among the inputs too: another thread may put another array in its place before this one's kernel is done.
        """
        if values is None:
            return None
        known = self._kept.get(name)
        if known is None or (known[0].ctypes.data, len(known[0])) != (values.ctypes.data, len(values)):
            # Waited for: batches on other streams will read it, which do not come after this copy.
            known = self._kept[name] = values, torch.from_numpy(values.view(np.int64)).to(self.device)
        inputs.append(known[1])
        return known[1]

    def _there(self, values: np.ndarray, inputs: list[Tensor]) -> Tensor:
        """Copies an array of this batch alone to the device, in the order of the stream, and waits for nothing that the
        stream does before. CUDA has read pageable memory when it returns; whatever this is, it stays until the answer
        is there, which comes after the copy."""
        tensor = torch.from_numpy(np.ascontiguousarray(values, np.int64))
        inputs += [tensor, tensor.to(self.device, non_blocking=True)]
        return inputs[-1]
