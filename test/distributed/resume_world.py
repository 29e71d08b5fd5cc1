"""Loaders that are stopped, and what those make of it that go on."""

import itertools
import json

import torch
from dist_world import join, options

import glt
from glt.testing import random_graph

SEED, KINDS = 31, ("DistNeighborLoader", "DistLinkNeighborLoader", "DistSubGraphLoader")
GRAPH = random_graph(600, 6000, seed=3)


def make(rank, data, kind, worker_options, random_seed, **given):
    """A loader. Ranks have seeds of their own, and unequally many."""
    own = slice(rank, 150 + 40 * rank, 2)
    seeds = torch.arange(600)[own]
    flags = {"batch_size": 16, "shuffle": True, "collect_features": True, "with_edge": True}
    if kind == "DistLinkNeighborLoader":
        seeds = GRAPH.edge_index[:, own]
        flags |= {"neg_sampling": "binary", "edge_label": torch.arange(seeds.shape[1])}
    return getattr(glt.distributed, kind)(
        data, [3, 2], seeds, random_seed=random_seed, worker_options=worker_options, **(flags | given)
    )


def plain(batch):
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch}


def run_whole(trainer, path):
    """What :func:`whole_of` finds on a trainer."""
    return whole_of(trainer.rank, join(trainer, path), options(trainer, "collocated"))


def whole_of(rank, data, worker_options):
    """Three epochs of each kind, and the state before each batch of the first two, as it would be in a file."""
    found = {}
    for kind in KINDS:
        with make(rank, data, kind, worker_options, SEED + rank) as loader:
            states, epochs = [loader.state_dict()], []
            for _ in range(3):
                epochs.append([])
                for batch in loader:
                    epochs[-1].append(plain(batch))
                    states.append(loader.state_dict())
        found[kind] = {"epochs": epochs, "states": json.dumps(states)}
    return found


def go_on(rank, data, worker_options, states):
    """What is left of each state's epoch, and two batches of the one after it, by kind; ``states`` are by kind and
    rank. The loader has a random seed of its own before."""
    left = {}
    for kind in states:
        with make(rank, data, kind, worker_options, None) as loader:
            left[kind] = []
            for state in map(json.loads, states[kind][rank]):
                assert loader.random_seed != state["random_seed"] or left[kind]
                loader.load_state_dict(state)
                assert loader.state_dict() == state and loader.random_seed == SEED + rank
                rest = [plain(batch) for batch in loader]
                left[kind].append((rest, [plain(batch) for batch in itertools.islice(loader, 2)]))
    return left


Chosen = dict[str, tuple[tuple[int, int], ...]]  # by kind, how many batches each of two ranks has had, several times


def states_of(whole, chosen):
    """The states of :func:`run_whole` after so many batches, by kind and rank."""
    written = [{kind: json.loads(found[kind]["states"]) for kind in KINDS} for found in whole]
    return {
        kind: [[json.dumps(mine[kind][numbers[rank]]) for numbers in cases] for rank, mine in enumerate(written)]
        for kind, cases in chosen.items()
    }


def expect_the_rest(whole, chosen, by_rank):
    for rank, left in enumerate(by_rank):
        for kind, cases in chosen.items():
            epochs = whole[rank][kind]["epochs"]
            for numbers, (rest, following) in zip(cases, left[kind], strict=True):
                epoch, first = divmod(numbers[rank], len(epochs[0]))
                assert rest == epochs[epoch][first:] and len(rest) > 0, (rank, kind, numbers)
                assert following == epochs[epoch + 1][:2], (rank, kind, numbers)
