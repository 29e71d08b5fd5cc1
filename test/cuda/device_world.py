"""Random graphs of several types as both samplers take them, and batches of both in one form."""

from dataclasses import dataclass

import numpy as np
import torch

from glt import _core
from glt.sampler.device_batch import PlacedRows

ORDERS = ["forward", "backward", "shuffled"]


@dataclass(frozen=True)
class DeviceWorld:
    num_nodes: list[int]
    ends: list[tuple[int, int]]  # expanded, found
    arrays: list[dict | None]  # NumPy arrays of each edge type

    def seeds(self, rng, most=12):
        """Duplicates, types without seeds, and types that come twice."""
        kinds = rng.integers(0, len(self.num_nodes), rng.integers(0, len(self.num_nodes) + 3))
        return [(int(t), torch.from_numpy(skewed(rng, self.num_nodes[t], rng.integers(0, most)))) for t in kinds]

    def exclusions(self, rng, share=0.3):
        """By edge type: none, or some of its edges, with all parallel to them, and pairs that are no edges."""
        found = []
        for arrays, (expanded, other) in zip(self.arrays, self.ends, strict=True):
            if rng.random() < 0.2:
                found.append(None)
                continue
            n, m = self.num_nodes[expanded], int(rng.integers(0, 4))
            center, neighbor = rng.integers(0, n, m), rng.integers(0, self.num_nodes[other], m)
            if arrays is not None:
                rows = np.repeat(np.arange(n), np.diff(arrays["indptr"]))
                some = rng.random(len(rows)) < rng.choice([0, share, 1])
                center = np.concatenate([rows[some], center])
                neighbor = np.concatenate([arrays["indices"][some].astype(np.int64), neighbor])
            found.append(_core.Exclusions(center, neighbor))
        return found

    def csrs(self):
        return [
            None if a is None else _core.Csr(**a, num_neighbor_nodes=self.num_nodes[found])
            for a, (_, found) in zip(self.arrays, self.ends, strict=True)
        ]

    def placed(self, device, pinned=False):
        """In the memory of the device, or with all but row offsets in pinned host memory."""

        def place(name, array):
            tensor = None if array is None else torch.from_numpy(array)
            if tensor is None or device.type == "cpu":
                return tensor
            return tensor.pin_memory() if pinned and name != "indptr" else tensor.to(device)

        placed = []
        for arrays, (_, found) in zip(self.arrays, self.ends, strict=True):
            at = None if arrays is None else {name: place(name, array) for name, array in arrays.items()}
            if at is not None and "weight_sum" in at:
                at["weights"] = at.pop("weight_sum"), at.pop("weight_guide")
            placed.append(None if at is None else PlacedRows.of(**at, num_neighbor_nodes=self.num_nodes[found]))
        return placed

    def expected(
        self, seeds, num_neighbors, *, batch_key, replace=False, disjoint=False, with_edge=True, seed_time=None,
        last=False, induced=False, exclusions=None, **options,
    ):  # fmt: skip
        """What the CPU's batch says."""
        batch = _core.Batch(self.num_nodes, self.ends)
        time = None if seed_time is None else seed_time.numpy()
        batch.start([(t, s.numpy()) for t, s in seeds], with_edge, disjoint, time)
        given = {"replace": replace, "batch_key": batch_key, "last": last, "exclusions": exclusions, **options}
        batch.sample(self.csrs(), num_neighbors, **given)
        if induced:
            batch.induce(self.csrs())
        nodes, edges = [], []
        for t in range(len(self.num_nodes)):
            ids, trees = np.full((2, batch.num_nodes(t)), -7, np.int64)
            batch.copy_nodes(t, ids, trees if disjoint else None)
            nodes.append((ids, trees if disjoint else None, batch.num_sampled_nodes(t)))
        for r in range(len(self.ends)):
            local = np.full((3, batch.num_edges(r)), -7, np.int64)
            batch.copy_edges(r, local[0], local[1], local[2] if with_edge else None)
            edges.append((local[0], local[1], local[2] if with_edge else None, batch.num_sampled_edges(r)))
        return nodes, edges


def skewed(rng, num_nodes, n):
    """Node ids, the low ones more often; a fifth of the nodes never."""
    return (max(1, num_nodes - num_nodes // 5) * rng.random(n) ** 3).astype(np.int64)


def sums_of(indptr, weight):
    """The arrays that stand for weights in a Csr."""
    sums = {"weight_sum": np.zeros(len(weight), np.uint64)}
    sums["weight_guide"] = np.zeros(_core.weight_guide_size(len(indptr) - 1, len(weight)), np.uint32)
    _core.build_weights(indptr, weight, *sums.values())
    return sums


def device_world(seed, largest=25, edges=150, weighted=False, timed=False):
    """2 to 4 node types, 1 to 6 edge types, some without edges; ids in both widths; hubs and isolated nodes."""
    rng = np.random.default_rng(seed)
    num_nodes = rng.integers(1, largest, rng.integers(2, 5)).tolist()
    ends = [tuple(rng.integers(0, len(num_nodes), 2).tolist()) for _ in range(rng.integers(1, 7))]
    arrays = []
    for expanded, found in ends:
        n = int(rng.integers(0, edges)) if rng.random() < 0.85 else 0
        center, neighbor = np.sort(skewed(rng, num_nodes[expanded], n)), skewed(rng, num_nodes[found], n)
        indptr = np.searchsorted(center, np.arange(num_nodes[expanded] + 1)).astype(np.int64)
        at = {"indptr": indptr, "indices": neighbor.astype(rng.choice([np.int32, np.int64]))}
        if rng.random() < 0.7:
            at["edge_ids"] = rng.permutation(n).astype(rng.choice([np.int32, np.int64]))
        if weighted and rng.random() < 0.7:
            weight = np.where(rng.random(n) < 0.2, 0.0, rng.random(n) ** 8)
            at |= sums_of(indptr, weight)
        if timed and rng.random() < 0.7:
            time = rng.integers(0, 20, n)
            at["time"] = time[np.lexsort((time, center))]
        arrays.append(None if n == 0 and rng.random() < 0.5 else at)
    return DeviceWorld(num_nodes, ends, arrays)


def sampled(batch, graphs, seeds, num_neighbors, *, disjoint=False, with_edge=True, induced=False, **options):
    """What the device's batch says, in the form of :meth:`DeviceWorld.expected`."""
    batch.launch(graphs, seeds, num_neighbors, disjoint=disjoint, with_edge=with_edge, **options)
    batch.finish()
    if induced:
        batch.induce()
    num_types, num_edge_types = batch._num_types
    nodes = [(*batch.nodes(t, disjoint), batch.num_sampled_nodes(t)) for t in range(num_types)]
    edges = [(*batch.edges(r, with_edge), batch.num_sampled_edges(r)) for r in range(num_edge_types)]
    return nodes, edges


def assert_equals(got, expected):
    for one, other in zip(got, expected, strict=True):
        for of_type, expected_of_type in zip(one, other, strict=True):
            for a, b in zip(of_type, expected_of_type, strict=True):
                a = a.cpu().numpy() if isinstance(a, torch.Tensor) else a
                assert np.array_equal(a, b), (a, b)
