"""Loaders that say where they stand, and go on from there in another process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from glt import _core
from glt.sampler.position import Position, check_epoch
from glt.sampler.seed_order import check_random_seed

STATE_VERSION = 1
_FIELDS = ("version", "epoch", "next_batch", "random_seed", "order_crc32", "loader")


class Resumable:
    """What local and distributed loaders share: epochs, and states to resume from.

    A batch is a function of the loader's options, its seeds, ``random_seed``, epoch and index. So a state holds the
    last three, and of the others only enough to refuse a loader that differs in them.

    Attributes:
        random_seed: Seed of shuffling and sampling, in force from the next iteration on.
    """

    random_seed: int
    _position: Position

    def _fingerprint(self) -> dict[str, Any]:
        """What must agree for batches to be the same, as JSON, by the names that users know."""
        raise NotImplementedError

    def _num_batches(self) -> int | None:
        """Batches per epoch; None if nobody knows before its end."""
        raise NotImplementedError

    def _take_seed(self, random_seed: int) -> None:
        """Makes ``random_seed`` that of the iterations to come."""
        raise NotImplementedError

    def _order_crc32(self, next_batch: int) -> int | None:
        """Checksum of the seeds of the batches before ``next_batch``, where their order is not glt's to tell."""
        return None

    def _expect_order(self, next_batch: int, crc32: int | None) -> None:
        """Lets the next iteration make sure that the batches before its first have that checksum."""

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration that of ``epoch``, in [0, 2^31); later ones count up from there. Without it, from 0.

        It begins with the first batch, whatever state was loaded before.

        Raises:
            ValueError: If ``epoch`` is no such number.
        """
        self._position.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns where this loader stands, for :meth:`load_state_dict` of one with the same options.

        It may be asked for at any time, also inside of a loop over the batches: the one in hand counts as delivered,
        those that are sampled ahead do not. After the last batch of an epoch the next one is due from its start. With
        several iterators of a local loader at once, it speaks of the newest. Trainers have states of their own: each
        saves its own, and they need not stand at the same batch.

        Returns:
            A dict of values that JSON keeps, as does ``torch.save``: ``version``; ``epoch`` and ``next_batch``;
            ``random_seed``; ``order_crc32``, a checksum of the order so far if it comes from a ``sampler`` of yours,
            else None; ``loader``: what must agree.

        Raises:
            ValueError: If batches come out of order (``in_order=False``): none can be said to be next.
        """
        epoch, next_batch = self._position.next_batch
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "next_batch": next_batch,
            "random_seed": self.random_seed,
            "order_crc32": self._order_crc32(next_batch),
            "loader": self._fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where another loader stood: the next iteration yields the batches that it had left.

        They are equal to the bit to those it would have made, and so are the following epochs; that holds in any mode,
        with any number of workers. ``random_seed`` becomes that of the state; ``len()`` stays that of a whole epoch.
        An iteration that runs meanwhile ends, or no longer counts.

        Args:
            state: From :meth:`state_dict` of a loader of the same kind, with the same seeds and options.

        Raises:
            TypeError: If it is no dict, or a value in it has another type.
            ValueError: If it lacks a field or has one too many, is of another version, or is that of a loader which
                makes other batches; names the first field that differs and both values.
        """
        _require_fields(state)
        _require_integer("epoch", state)
        check_epoch(state["epoch"])
        _require_integer("next_batch", state)
        random_seed = check_random_seed(state["random_seed"])
        if state["order_crc32"] is not None:
            _require_integer("order_crc32", state)
        _require_equal(state, self._fingerprint())
        num_batches = self._num_batches()
        if state["next_batch"] < 0 or (num_batches is not None and state["next_batch"] >= max(1, num_batches)):
            raise ValueError(
                f"state: next_batch = {state['next_batch']}, but an epoch of this loader has {num_batches} batches: "
                "give it the sampler that it had"
            )
        self._take_seed(random_seed)
        self._position.resume(state["epoch"], state["next_batch"])
        self._expect_order(state["next_batch"], state["order_crc32"])


def as_json(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields as they are when they have been written as JSON and read again: tuples are lists."""
    out: dict[str, Any] = json.loads(json.dumps(fields))
    return out


def crc32_of(tensors: Mapping[str, Tensor | None]) -> int:
    """A checksum of named tensors on the CPU, their dtypes and shapes; those that are None are as good as absent."""
    crc32 = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        if tensor is not None:
            head = f"{name} {tensor.dtype} {list(tensor.shape)};"
            crc32 = _core.crc32(torch.frombuffer(bytearray(head.encode()), dtype=torch.uint8).numpy(), crc32)
            flat = tensor.detach().contiguous().reshape(-1)
            crc32 = _core.crc32(flat.view(torch.uint8).numpy(), crc32)
    return crc32


def _require_fields(state: Any) -> None:
    if not isinstance(state, dict):
        raise TypeError(f"state has type {type(state).__name__}: expected the dict that state_dict() returned")
    if "version" in state and state["version"] != STATE_VERSION:
        raise ValueError(
            f"state: version = {state['version']!r}, but this glt reads version {STATE_VERSION}: resume with the glt "
            "that wrote it"
        )
    for name in _FIELDS:
        if name not in state:
            raise ValueError(f"state has no {name}: expected what state_dict() of a glt loader returned, whole")
    for name in state:
        if name not in _FIELDS:
            raise ValueError(f"state has a field {name!r} that is not a loader's: expected what state_dict() returned")
    if not isinstance(state["loader"], dict):
        raise TypeError(f"state: loader has type {type(state['loader']).__name__}: expected a dict")


def _require_integer(name: str, state: dict[str, Any]) -> None:
    if isinstance(state[name], bool) or not isinstance(state[name], int):
        raise TypeError(f"state: {name} = {state[name]!r}: expected an integer")


def _require_equal(state: dict[str, Any], mine: dict[str, Any]) -> None:
    """Refuses the state of a loader that makes other batches, or whose seeds are others."""
    theirs = as_json(state["loader"])
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        if name not in theirs or name not in mine or theirs[name] != mine[name]:
            there, here = (repr(each[name]) if name in each else "not there" for each in (theirs, mine))
            hint = " (a checksum of the seeds and of what was given with them)" if name == "seeds_crc32" else ""
            raise ValueError(
                f"state: {name}{hint} is {there}, but of this loader {here}: create it as the one whose state this is, "
                f"or begin an epoch anew with set_epoch({state['epoch']})"
            )
