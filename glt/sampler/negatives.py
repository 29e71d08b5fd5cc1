"""Negative examples that are no edges: what to draw, round after round, wherever the edges are looked up."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import require_data
from glt.data.topology import EdgeWeights, Topology

if TYPE_CHECKING:
    from torch_geometric.sampler import NegativeSampling


MAX_ATTEMPTS = _core.negative_redraw  # pairs per negative before it is given up, with an error; draws per end of a pair

_WINDOW = 1 << 10  # attempts asked for together, at most
_ROOM = 1 << 22  # slots that go on after n attempts without luck: this many / n^2
_REDRAWS = 1 << 18  # nodes drawn again together
_SIDES = {"src": 0, "dst": 1}


@dataclass(frozen=True)
class Endpoint:
    """One end of the edge type whose negatives are drawn: ``'src'`` or ``'dst'``, among ``num_nodes`` of the whole
    graph. ``weight_sum`` are inclusive prefix sums of integer weights ``[num_nodes]``, uint64; None: all nodes alike.
    ``earliest`` is the node of the smallest time and that time, or None where nodes have no time."""

    side: str
    num_nodes: int
    weight_sum: np.ndarray | None = None
    earliest: tuple[int, int] | None = None

    @classmethod
    def of(
        cls,
        side: str,
        num_nodes: int,
        neg_sampling: NegativeSampling | None = None,
        earliest: tuple[int, int] | None = None,
    ) -> Endpoint:
        """Reads this side's weights from PyG's configuration; raises TypeError or ValueError if they do not fit."""
        weight: Tensor | None = getattr(neg_sampling, f"{side}_weight", None)
        return cls(side, num_nodes, None if weight is None else weight_sum(weight, num_nodes, side), earliest)

    def draw(self, batch_key: int, slots: np.ndarray, attempts: np.ndarray) -> np.ndarray:
        """The nodes of slots ``[n]`` at attempts ``[n]``, all int64."""
        out = np.empty(len(slots), np.int64)
        _core.negative_draws(batch_key, _SIDES[self.side], slots, attempts, self.num_nodes, self.weight_sum, out)
        return out


def drawn_items(key: int, num_items: int, slots: np.ndarray, weight_sum: np.ndarray | None = None) -> np.ndarray:
    """Draws with replacement, for each slot one of ``num_items``, int64, by weights where there are prefix sums of
    them: candidates of a batch without negatives."""
    return Endpoint("src", num_items, weight_sum).draw(key, slots, np.zeros_like(slots))


def weight_sum(weight: Tensor, num_nodes: int, side: str) -> np.ndarray:
    """The inclusive prefix sums, as integers, of a weight per node: ``[num_nodes]``, uint64."""
    name = f"{side}_weight"
    if not isinstance(weight, Tensor) or weight.is_complex():
        got = f"tensor of {weight.dtype}" if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"{name} of neg_sampling is a {got}: expected a tensor of real numbers, one per node")
    if weight.dim() != 1 or len(weight) != num_nodes:
        raise ValueError(f"{name} of neg_sampling has shape {tuple(weight.shape)}: expected one per node, {num_nodes}")
    require_data(weight, f"{name} of neg_sampling")
    value = weight.detach().cpu().double().numpy()
    bad = np.flatnonzero(~(np.isfinite(value) & (value >= 0)))
    if len(bad):
        raise ValueError(f"{name}[{bad[0]}] of neg_sampling = {value[bad[0]]}: expected a finite number of at least 0")
    if not value.any():
        raise ValueError(f"{name} of neg_sampling has no weight above 0: no node could be drawn")
    return EdgeWeights.build(torch.tensor([0, num_nodes]), value).weight_sum.numpy()  # of one row with every node


def earliest_node(time: Tensor | None) -> tuple[int, int] | None:
    """The first node of the smallest time, and that time; None without nodes or times."""
    if time is None or len(time) == 0:
        return None
    node = int(time.numpy().argmin())
    return node, int(time[node])


@dataclass(frozen=True)
class Candidates:
    """Pairs of nodes ``[n]`` of which a round asks whether they are edges: int64."""

    src: np.ndarray
    dst: np.ndarray


@dataclass(frozen=True)
class Drawn:
    """Nodes ``[n]`` of one side, ``'src'`` or ``'dst'``, of which a round asks whether their times are at most
    ``until`` ``[n]``: int64."""

    side: str
    node: np.ndarray
    until: np.ndarray


Asked = Candidates | Drawn


class NegativeRounds:
    """The negatives of one batch, found in rounds: check what is :meth:`asked`, until it is :attr:`done`.

    Attempt i of a slot is the pair of its i-th source and its i-th destination; the negative is the first that is no
    edge of the whole graph, whatever the edge's time. Where nodes have times and links too, an end is drawn until it
    is no later than the link. Draws are functions of (batch key, side, slot, attempt, redraw), so the answer depends
    neither on how many are asked for together, nor on where they are checked. That is rejection sampling: a pair is
    uniform over the non-edges of the nodes that exist by then (or proportional to the product of its nodes' weights);
    the destination of a triplet is so over the nodes to which its source has no edge. A source without such a node is
    an error, where PyG makes an edge pass for a negative: loaders with the whole graph look for such sources when they
    are made (:func:`linked_to_all`), others find them as they are drawn.

    Time differs from PyG, which takes the earliest node after five draws, edge or not. Here it is taken for an end
    after :data:`MAX_ATTEMPTS` draws that are all later than the link, or at once if the link is older than all nodes;
    such a pair must be no edge either.

    The loop is the caller's, because a distributed check has to wait for owners; see :func:`run_rounds`. ``source`` are
    given sources ``[num_slots]`` (triplets), or None to draw both ends (binary); ``seed_time`` the latest time of each
    slot's nodes ``[num_slots]``, int64. Raises ValueError if there is no node to draw.
    """

    def __init__(
        self,
        batch_key: int,
        src: Endpoint,
        dst: Endpoint,
        num_slots: int,
        source: np.ndarray | None = None,
        seed_time: np.ndarray | None = None,
    ) -> None:
        self.batch_key, self.source, self.seed_time = batch_key, source, seed_time
        self.src_end, self.dst_end = src, dst
        self._drawn = (dst,) if source is not None else (src, dst)
        for end in self._drawn:
            if end.num_nodes == 0 and num_slots:
                raise ValueError(f"negative sampling: there is no {end.side} node to draw")
        self.src = np.empty(num_slots, np.int64) if source is None else source
        self.dst = np.empty(num_slots, np.int64)
        self.done: bool = num_slots == 0
        self._search = self._find(num_slots)
        self._asked: Asked | None = None

    def asked(self) -> Asked:
        """Returns what to check next; :meth:`accept` must follow."""
        if self._asked is None:
            self._asked = next(self._search)
        return self._asked

    def accept(self, valid: np.ndarray) -> None:
        """Takes which pairs are no edges, or which nodes are in time: ``[n]``, bool. Raises ValueError if a slot is out
        of attempts; names the source node of a triplet."""
        try:
            self._asked = self._search.send(valid)
        except StopIteration:
            self.done = True

    def answer(self, src: np.ndarray, dst: np.ndarray, gave_up: int = -1) -> None:
        """Takes all negatives ``[num_slots]``, int64, at once, from a caller that went through all attempts of each
        slot. Raises ValueError if ``gave_up``, the lowest slot that is out of attempts, is not -1."""
        if gave_up >= 0:
            raise self._gave_up(gave_up)
        if self.source is None:
            self.src[:] = src
        self.dst[:] = dst
        self.done = True

    def _find(self, num_slots: int) -> Generator[Asked, np.ndarray, None]:
        # Depth first: the longer slots have been without luck, the fewer go on together; the rest waits on this stack.
        # A graph without non-edges is thus found out by its first slot, not by all of them together.
        groups, failed = [(np.arange(num_slots), 0)], num_slots
        while groups:
            slots, attempt = groups.pop()
            slots = slots[slots < failed]
            room = max(1, _ROOM // max(1, attempt**2))
            if len(slots) > room:
                groups.append((slots[room:], attempt))
                slots = slots[:room]
            if len(slots) == 0:
                continue
            window = _window(attempt)
            slot, attempts = np.tile(slots, window), np.repeat(np.arange(attempt, attempt + window), len(slots))
            node, spent = {}, self._is_fixed(slot)
            for end in self._drawn:
                node[end.side] = yield from self._draw(end, slot, attempts, spent)
            if self.source is not None:
                node["src"] = self.source[slot]
            holds = yield Candidates(node["src"], node["dst"])
            ends = (holds | spent).reshape(window, len(slots))  # with a negative, or without any
            at = ends.argmax(axis=0) * len(slots) + np.arange(len(slots))
            found = ends.any(axis=0) & holds[at]
            self.dst[slots[found]] = node["dst"][at[found]]
            if self.source is None:
                self.src[slots[found]] = node["src"][at[found]]
            lost = ~found if attempt + window >= MAX_ATTEMPTS else ends.any(axis=0) & ~found
            failed = min([failed, *slots[lost][:1].tolist()])
            groups.append((slots[~(found | lost)], attempt + window))
        if failed < num_slots:
            raise self._gave_up(failed)

    def _is_fixed(self, slot: np.ndarray) -> np.ndarray:
        """Whether all attempts of a slot are the same pair, since its seed is older than all nodes."""
        fixed = np.ones(len(slot), bool)
        for end in self._drawn:
            has_time = self.seed_time is not None and end.earliest is not None
            fixed &= self.seed_time[slot] < end.earliest[1] if has_time else False  # type: ignore[index]
        return fixed

    def _draw(
        self, end: Endpoint, slot: np.ndarray, attempts: np.ndarray, spent: np.ndarray
    ) -> Generator[Asked, np.ndarray, np.ndarray]:
        """The node of each slot and attempt, drawn until it is in time; sets ``spent`` where no draw was."""
        node = end.draw(self.batch_key, slot, attempts)
        if self.seed_time is None or end.earliest is None:
            return node
        earliest, time = end.earliest
        until = self.seed_time[slot]
        node[until < time] = earliest
        late = np.flatnonzero(until >= time)  # not known to be in time
        drawn, num_drawn = node[None, late], 1
        while len(late):
            holds = (yield Drawn(end.side, drawn.ravel(), np.tile(until[late], len(drawn)))).reshape(drawn.shape)
            found = holds.any(axis=0)
            node[late[found]] = drawn[holds.argmax(axis=0), np.arange(len(late))][found]
            late = late[~found]
            if num_drawn >= MAX_ATTEMPTS:
                node[late], spent[late] = earliest, True
                break
            window = min(_window(num_drawn), max(1, _REDRAWS // max(1, len(late))))
            redraw = np.arange(num_drawn, num_drawn + window)[:, None] * _core.negative_redraw
            again = end.draw(self.batch_key, np.tile(slot[late], window), (attempts[late] + redraw).ravel())
            drawn, num_drawn = again.reshape(window, len(late)), num_drawn + window
        return node

    @property
    def _is_timed(self) -> bool:
        return self.seed_time is not None and any(end.earliest is not None for end in self._drawn)

    def _gave_up(self, slot: int) -> ValueError:
        late = ", or is later than the seed" if self._is_timed else ""
        if self.source is None:
            return ValueError(
                f"negative sampling: no pair of nodes is no edge: each of {MAX_ATTEMPTS} draws for negative {slot} "
                f"is one{late}; leave out such links, or sample fewer negatives from a graph this dense"
            )
        return ValueError(
            f"negative sampling: source node {self.source[slot]} has (almost) no destination that it has no edge to: "
            f"each of {MAX_ATTEMPTS} draws is one{late}; leave its seed edges out, or use neg_sampling='binary', which "
            "draws sources too. PyG would train on an edge as a negative here"
        )


def _window(num_made: int) -> int:
    """How many to ask for after ``num_made`` in vain: 0 | 1 | 2, 3 | 4 to 7 | ..., few rounds for rare slots, and few
    draws in vain for the many others."""
    return min(max(1, num_made), _WINDOW, MAX_ATTEMPTS - num_made)


class LocalCheck:
    """Which pairs are no edges, and which nodes in time, where the whole graph is at hand. ``csr`` is None where there
    are no edges; times are of every node of an end ``[num_nodes]``, int64."""

    def __init__(
        self,
        csr: _core.Csr | None,
        edge_dir: str,
        src_time: np.ndarray | None = None,
        dst_time: np.ndarray | None = None,
    ) -> None:
        self.csr, self.edge_dir, self.time = csr, edge_dir, {"src": src_time, "dst": dst_time}

    def __call__(self, asked: Asked) -> np.ndarray:
        if isinstance(asked, Drawn):
            time = self.time[asked.side]
            assert time is not None, "an end with an earliest node has times"
            return time[asked.node] <= asked.until  # type: ignore[no-any-return]
        edge = np.zeros(len(asked.src), np.uint8)
        if self.csr is not None:
            center, neighbor = (asked.dst, asked.src) if self.edge_dir == "in" else (asked.src, asked.dst)
            _core.has_edges(self.csr, center, neighbor, edge)
        return edge == 0


def num_negatives(neg_sampling: NegativeSampling, num_positives: int) -> int:
    return math.ceil(num_positives * neg_sampling.amount)


def negative_rounds(
    batch_key: int,
    neg_sampling: NegativeSampling,
    src: Endpoint,
    dst: Endpoint,
    row: np.ndarray,
    time: np.ndarray | None = None,
) -> NegativeRounds:
    """Begins the negatives of positives with sources ``row [B]`` and times ``[B]``, int64: ``ceil(B * amount)`` slots.
    Binary: slot j has the time of positive ``j % B``. Triplets with k negatives each: slot ``i * k + j`` is the j-th of
    positive i."""
    num_slots, triplet = num_negatives(neg_sampling, len(row)), neg_sampling.is_triplet()
    positive = np.arange(num_slots) // int(neg_sampling.amount) if triplet else np.arange(num_slots) % max(1, len(row))
    late = None if time is None else time[positive]
    return NegativeRounds(batch_key, src, dst, num_slots, row[positive] if triplet else None, late)


def run_rounds(rounds: NegativeRounds, check: Callable[[Asked], np.ndarray]) -> NegativeRounds:
    while not rounds.done:
        rounds.accept(check(rounds.asked()))
    return rounds


# Source nodes that have an edge to every destination: there is no negative for them that keeps the source.


_PAIRS = 1 << 20  # looked up together


def linked_to_all(topology: Topology, sources: np.ndarray, drawable: np.ndarray | None = None) -> np.ndarray:
    """Finds the ``sources`` that are linked to every destination, or to all that are ``drawable``; ascending, and none
    where no destination counts. Such a source is among the neighbours of the destination that has the fewest, or has as
    many edges as there are destinations: only these few are looked at."""
    num_destinations = topology.size[1]
    targets = np.arange(num_destinations) if drawable is None else drawable
    if len(targets) == 0 or topology.num_edges < len(targets):
        return np.empty(0, np.int64)
    degrees = topology.degrees.numpy()
    if topology.edge_dir == "in":
        fewest = int(targets[degrees[targets].argmin()])
        first, end = topology.indptr[fewest], topology.indptr[fewest + 1]
        candidates = topology.indices[first:end].numpy()
    else:
        candidates = np.flatnonzero(degrees >= len(targets))
    if len(candidates) == 0:
        return np.empty(0, np.int64)
    found = np.unique(sources[np.isin(sources, candidates)]).astype(np.int64)
    begin, num_looked_at = 0, 1
    while len(found) and begin < len(targets):
        some = targets[begin : begin + num_looked_at]
        source, target = np.repeat(found, len(some)), np.tile(some, len(found))
        center, neighbor = (target, source) if topology.edge_dir == "in" else (source, target)
        is_edge = np.empty(len(source), np.uint8)
        _core.has_edges(topology.csr_unweighted, center, neighbor, is_edge)
        found = found[is_edge.reshape(-1, len(some)).all(axis=1)]
        begin += len(some)
        num_looked_at = min(4 * num_looked_at, max(1, _PAIRS // max(1, len(found))))
    return found
