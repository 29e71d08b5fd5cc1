"""Orders of batches that loaders with a GPU sampler are given: lists, those of torch and PyG, and the user's own."""

from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest
import torch
from host_loaders import HOMO, FedOrder, fed_loader, threads, threads_of_earlier_tests_have_ended  # noqa: F401
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler
from torch_geometric.loader import ImbalancedSampler

from glt.data import Dataset
from glt.loader import NeighborLoader
from glt.sampler.device_batch import DeviceBatch


@pytest.mark.parametrize("window", [1, 3])
def test_what_an_order_of_ones_own_raises_comes_after_the_batches_before_it(window):
    def order():
        yield from ([0, 1], [2, 3])
        raise ZeroDivisionError("on purpose")

    class Order:
        def __iter__(self):
            return order()

    batches = iter(fed_loader(Order(), gather_window=window))
    assert [next(batches).input_id.tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        next(batches)
    assert list(batches) == [] and not threads()


@pytest.mark.parametrize("window", [1, 3])
def test_an_order_that_waits_for_the_trainer_is_not_asked_ahead(window):
    order = FedOrder()
    batches = iter(fed_loader(order, gather_window=window))
    with ThreadPoolExecutor(1) as trainer:
        for batch in ([3, 1], [7]):
            order.asked.put(batch)
            made = trainer.submit(next, batches)
            try:
                assert made.result(30).input_id.tolist() == batch
            finally:
                if not made.done():
                    order.asked.put(None)
    order.asked.put(None)
    assert list(batches) == []


def test_leaving_an_order_of_ones_own_early_takes_nothing_from_it():
    order = FedOrder()
    loaded = fed_loader(order)
    for batch in ([1, 2], [5]):
        order.asked.put(batch)
        assert next(iter(loaded)).input_id.tolist() == batch and not threads()
    for batch in ([3], [4], None):
        order.asked.put(batch)
    assert [batch.input_id.tolist() for batch in loaded] == [[3], [4]]


SEEDS = range(40)
ORDERS = {
    "shuffled": (True, {"shuffle": True}),
    "distributed": (True, {"sampler": DistributedSampler(SEEDS, 2, 0)}),
    "generator": (True, {"generator": torch.Generator(), "shuffle": True}),
    "torch's batches": (True, {"batch_sampler": BatchSampler(RandomSampler(SEEDS), 4, False), "batch_size": 1}),
    "batches": (True, {"batch_sampler": [[1, 2], [3]], "batch_size": 1}),
    "seeds": (True, {"sampler": torch.tensor([*SEEDS])}),
    "PyG's": (True, {"sampler": ImbalancedSampler(torch.arange(40) % 3)}),
    "own": (False, {"sampler": dict.fromkeys(SEEDS)}),
}


@pytest.mark.parametrize(("overlaps", "options"), ORDERS.values(), ids=ORDERS)
def test_lists_and_orders_of_torch_and_pyg_are_asked_ahead(overlaps, options, monkeypatch):
    calls = []

    def noted(name):
        call = getattr(DeviceBatch, name)
        monkeypatch.setattr(DeviceBatch, name, lambda *given, **named: (calls.append(name), call(*given, **named)))

    noted("launch")
    noted("finish")
    dataset = Dataset.from_pyg(HOMO).with_mode("ZERO_COPY")
    options = {"batch_size": 4} | options
    list(NeighborLoader(dataset, [2], torch.arange(40), device="host", **options))
    assert calls[:3] == (["launch", "launch", "finish"] if overlaps else ["launch", "finish", "launch"])


DRAWN = {
    "generator": lambda g: {"generator": g, "shuffle": True},
    "sampler's generator": lambda g: {"sampler": RandomSampler(SEEDS, generator=g)},
    "with replacement": lambda g: {"sampler": RandomSampler(SEEDS, replacement=True, generator=g)},
    "torch's": lambda g: {"sampler": RandomSampler(SEEDS)},
    "batches": lambda g: {"batch_sampler": BatchSampler(RandomSampler(SEEDS), 4, False), "batch_size": 1},
}


@pytest.mark.parametrize("options", DRAWN.values(), ids=DRAWN)
def test_orders_that_draw_give_the_cpus_batches_whatever_the_trainer_draws(options):
    seen = []
    for device in (None, "host"):
        torch.manual_seed(5)
        given = {"batch_size": 4} | options(torch.Generator().manual_seed(7))
        dataset = Dataset.from_pyg(HOMO).with_mode("ZERO_COPY" if device else "CPU")
        loaded, found = NeighborLoader(dataset, [2], torch.arange(40), device=device, **given), []
        for most in (2, 10):  # the first epoch is left early
            for batch in islice(loaded, most):
                found.append((batch.input_id.tolist(), torch.rand(1).item()))
        seen.append(found)
    assert len(seen[0]) == 12 and seen[0] == seen[1]
