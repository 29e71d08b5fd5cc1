"""Loaders with a GPU sampler give the CPU's batches; the host plays the GPU, and where there is one it does so too."""

import contextlib
import gc
import queue
import re
import threading
import weakref
from unittest import mock

import pytest
import torch
from equal_batches import same
from gpus import DEVICES, needs_gpu
from host_loaders import (
    HOMO,
    fed_loader,
    loader,
    outcomes,
    threads,
    threads_of_earlier_tests_have_ended,  # noqa: F401
    types,
)

from glt.data import Dataset
from glt.data.device import Accelerator
from glt.data.pinned import process_pages
from glt.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from glt.loader.batches import BatchFeatures
from glt.sampler import NeighborSampler
from glt.sampler.device_batch import DeviceBatch
from glt.testing.batches import random_hetero_graph

HETERO = random_hetero_graph(seed=4)
OPTIONS = [
    {},
    {"replace": True, "disjoint": True},
    {"weight_attr": "edge_weight"},
    {"time_attr": "time", "temporal_strategy": "last"},
    {"time_attr": "time", "time_bound": "<", "time_window": 8},
    {"sampler": "labor", "batch_dependency": 2},
    {"sampler": "labor", "weight_attr": "edge_weight"},
    {"sampler": "labor", "time_attr": "time", "temporal_strategy": "decay", "half_life": 3},
    {"time_attr": "time", "temporal_strategy": "decay", "half_life": 3},
    {"subgraph_type": "induced"},
    {"subgraph_type": "bidirectional"},
]


def compare(make, device, **more):
    """Two epochs."""
    on_cpu, on_device = make(), make(device=device, **more)
    for _ in range(2):
        batches = list(on_device)
        assert len(batches) == len(on_device) == len(on_cpu)
        for got, expected in zip(batches, on_cpu, strict=True):
            if device == "cuda":
                assert all(value.is_cuda for store in got.stores for value in store.values() if torch.is_tensor(value))
            same(got, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["CUDA", "ZERO_COPY"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_gives_the_cpus_batches(options, mode, device):
    attrs = {name: options.get(name) for name in ("time_attr", "weight_attr")}

    def make(device=None, **more):
        data = Dataset.from_pyg(HOMO, **attrs)
        data = data if device is None else data.with_mode(mode, device)
        seeds = torch.tensor([5, 5, 0, 79, 31, 8, 9])
        return NeighborLoader(
            data, [4, -1], seeds, batch_size=3, shuffle=True, random_seed=1, device=device, **options, **more
        )

    compare(make, device, batches_ahead=1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("split_ratio", [0.0, 0.5, 1.0])
def test_rows_of_tiers_and_windows(split_ratio, window, device):
    def make(device=None, **more):
        data = Dataset.from_pyg(HETERO)
        if device is not None:
            for t, tables in enumerate(data.node_tables):
                if "x" in tables:
                    node_type = data.schema.node_types[t]
                    data.init_node_features({node_type: tables["x"].tensor}, split_ratio=split_ratio, device=device)
            data = data.with_mode("ZERO_COPY", device)
        kind = data.schema.node_types[1]
        return NeighborLoader(data, [3, 2], kind, batch_size=16, random_seed=1, device=device, **more)

    compare(make, device, gather_window=window)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("neg_sampling", [None, "binary", "triplet"])
def test_links(neg_sampling, disjoint, device):
    edges = HOMO.edge_index[:, ::13]

    def make(device=None, **more):
        data = Dataset.from_pyg(HOMO)
        data = data if device is None else data.with_mode("ZERO_COPY")
        options = {"disjoint": disjoint, "random_seed": 2, "exclude_edges": None if disjoint else "self"}
        options |= {"device": device}
        return LinkNeighborLoader(data, [3, 2], edges, batch_size=11, neg_sampling=neg_sampling, **options, **more)

    compare(make, device, gather_window=2)


@pytest.mark.parametrize("device", DEVICES)
def test_subgraphs_and_transforms_of_the_trainer(device):
    seen = []

    def note(data):
        seen.append(threading.current_thread())
        return data

    def make(device=None, **more):
        data = Dataset.from_pyg(HOMO)
        data = data if device is None else data.with_mode("CUDA", device)
        return SubGraphLoader(data, [3], torch.arange(20), batch_size=8, random_seed=1, transform=note, **more)

    compare(make, device)
    assert set(seen) == {threading.current_thread()}


def test_leaving_early_ends_the_thread_and_iterators_are_epochs_of_their_own():
    loaded = loader()
    one, other = iter(loaded), iter(loaded)
    first, second = next(one), next(other)
    assert not torch.equal(first.edge_index, second.edge_index)
    assert len(threads()) == 2
    del one, other
    gc.collect()
    assert not threads()
    assert len(list(loaded)) == 10 and not threads()


@pytest.mark.parametrize("window", [1, 3])
def test_a_sample_is_asked_for_before_the_one_before_it_is_waited_for(window, monkeypatch):
    asked, calls = [], []

    def launch(batch, *arguments, launch=DeviceBatch.launch, **named):
        calls.append(("asks", len(asked)))
        asked.append(batch)
        launch(batch, *arguments, **named)

    def finish(batch, *arguments, finish=DeviceBatch.finish):
        # Its newest: memory goes from batch to batch once it is given back.
        calls.append(("waits", max(at for at, each in enumerate(asked) if each is batch)))
        finish(batch, *arguments)

    monkeypatch.setattr(DeviceBatch, "launch", launch)
    monkeypatch.setattr(DeviceBatch, "finish", finish)
    assert len(list(loader(gather_window=window))) == 10
    between = [call for at in range(1, 10) for call in (("asks", at), ("waits", at - 1))]
    assert calls == [("asks", 0), *between, ("waits", 9)]
    assert len(set(asked)) == 2


@pytest.mark.parametrize("window", [1, 3])
def test_what_cannot_be_begun_is_raised_in_the_place_of_its_batch(window, monkeypatch):
    begin = NeighborSampler.begin_from_nodes

    def failing(sampler, index, **named):
        if index.node[0] in (0, 20, 24):
            raise ZeroDivisionError("on purpose")
        return begin(sampler, index, **named)

    monkeypatch.setattr(NeighborSampler, "begin_from_nodes", failing)
    batches, failed = iter(loader(gather_window=window)), ZeroDivisionError
    assert types(outcomes(batches, 10)) == [failed, 4, 8, 12, 16, failed, failed, 28, 32, 36]
    assert list(batches) == [] and not threads()


def test_an_iterator_that_is_closed_while_another_thread_waits_for_it_ends():
    batches = iter(loader())._batches

    class ClosedMeanwhile(queue.Queue):
        def get(self, timeout):
            batches.close()
            raise queue.Empty

    batches._made = ClosedMeanwhile()
    assert list(batches) == [] and not threads()


@pytest.mark.parametrize("error", [TimeoutError, SystemExit, KeyboardInterrupt])
def test_what_a_signal_raises_while_the_trainer_waits_takes_no_batch(error):
    loaded = loader()
    batches = iter(loaded)
    assert next(batches).input_id[0] == 0
    made = batches._batches._made

    class Interrupted:
        def get(self, timeout):
            batches._batches._made = made
            raise error

    batches._batches._made = Interrupted()
    with pytest.raises(error):
        next(batches)
    assert loaded.state_dict()["next_batch"] == 1
    next(batches)
    assert loaded.state_dict()["next_batch"] == 2


@pytest.mark.parametrize("own_order", [False, True])
@pytest.mark.parametrize("where", ["transform_sampler_output", "transform"])
def test_stop_iteration_of_the_users_code_does_not_end_the_epoch(where, own_order):
    def stopping(out):
        if int((out.input_id if where == "transform" else out.metadata[0])[0]) == 4:
            raise StopIteration
        return out

    order, options = dict.fromkeys([(0, 1), (4,), (8,), (12,)]), {where: stopping}
    loaded = fed_loader(order, **options) if own_order else loader(**options)
    batches = iter(loaded)
    next(batches)
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(batches)
    assert next(batches).input_id[0] == 8 and loaded.state_dict()["next_batch"] == 3


@pytest.mark.parametrize("device", [None, "host"])
@pytest.mark.parametrize("replaced", ["instance", "class"])
def test_a_method_that_is_replaced_is_called(replaced, device):
    data = Dataset.from_pyg(HOMO)
    given = data if device is None else data.with_mode("ZERO_COPY")
    nodes = NeighborLoader(given, [2], torch.tensor([4, 9]), device=device)
    edges = LinkNeighborLoader(given, [2], HOMO.edge_index[:, :3], device=device)
    for each, sampler, name in (
        (nodes, nodes.node_sampler, "sample_from_nodes"),
        (edges, edges.link_sampler, "sample_from_edges"),
    ):
        with mock.patch.object(
            sampler if replaced == "instance" else NeighborSampler, name, side_effect=getattr(sampler, name)
        ) as method:
            assert len(list(each)) == method.call_count > 0


@pytest.mark.parametrize("window", [1, 4])
def test_each_batch_of_a_window_keeps_its_own_exception(window, monkeypatch):
    errors = {4: KeyError("of it"), 8: SystemExit(1), 12: MemoryError("of it"), 20: ZeroDivisionError("of it")}
    featured, with_seeds = BatchFeatures.batch, NeighborLoader._with_seeds

    def failing(out, *steps):
        first = int(out.metadata[0][0])
        if first in errors and isinstance(errors[first], steps):
            raise errors[first]
        return out

    monkeypatch.setattr(BatchFeatures, "batch", lambda self, out, *r: featured(self, failing(out, MemoryError), *r))
    monkeypatch.setattr(
        NeighborLoader, "_with_seeds", lambda self, data, out: with_seeds(self, data, failing(out, ZeroDivisionError))
    )
    loaded = loader(transform_sampler_output=lambda out: failing(out, KeyError, SystemExit), gather_window=window)
    batches = iter(loaded)
    assert types(outcomes(batches, 10)) == [0, KeyError, SystemExit, MemoryError, 16, ZeroDivisionError, 24, 28, 32, 36]
    assert list(batches) == [] and not threads()


def test_rows_that_cannot_be_fetched_together_are_fetched_one_by_one(monkeypatch, caplog):
    def failing(*given):
        raise SystemExit(1)
        yield

    monkeypatch.setattr(BatchFeatures, "batches", failing)
    assert [batch.input_id[0].item() for batch in loader(gather_window=4)] == [*range(0, 40, 4)]
    assert "cannot be fetched together" in caplog.text


@pytest.mark.parametrize("own_order", [False, True])
def test_batches_that_failed_are_gone_when_their_exceptions_are(own_order, monkeypatch):
    made, init = weakref.WeakSet(), DeviceBatch.__init__

    def noted(batch, *arguments, **named):
        made.add(batch)
        init(batch, *arguments, **named)

    monkeypatch.setattr(DeviceBatch, "__init__", noted)
    loaded = fed_loader(dict.fromkeys([(0, 1), (2,)])) if own_order else loader()
    loaded.input_data.node[:] = 1000
    gc.collect()
    gc.disable()
    try:
        batches = iter(loaded)
        for _ in range(len(loaded)):
            with contextlib.suppress(IndexError):
                next(batches)
                pytest.fail("node 1000 is outside the graph")
        assert list(batches) == [] and not made
    finally:
        gc.enable()


@pytest.mark.parametrize("window", [1, 4])
def test_samples_of_a_window_are_gone_while_the_next_are_made(window):
    made, most = [], []

    def note(out):
        most.append(sum(each() is not None for each in made))
        made.append(weakref.ref(out))
        return out

    assert len(list(loader(gather_window=window, transform_sampler_output=note))) == 10
    assert len(most) == 10 and max(most) < window + 1


def test_rows_that_one_batch_of_a_window_lacks_are_its_own_exception():
    dataset = Dataset.from_pyg(HOMO).with_mode("ZERO_COPY")
    dataset.edge_tables[0]["edge_attr"] = type(dataset.edge_tables[0]["edge_attr"])(torch.zeros(600, 2))

    def of_window(window):
        options = {"batch_size": 2, "random_seed": 1, "device": "host", "gather_window": window}
        return [str(each) for each in outcomes(iter(NeighborLoader(dataset, [2], torch.arange(40), **options)), 20)]

    assert of_window(4) == of_window(1)
    failed = [each for each in of_window(1) if not each.isdecimal()]
    assert 0 < len(failed) < 20 and all(re.match(r"ids\[\d+\] = \d+ is row \d+ of 600", each) for each in failed)


def test_options_that_do_not_fit_are_refused():
    for options, error, message in [
        ({"num_workers": 2}, ValueError, "num_workers = 2 and a sampler on host: a GPU cannot be used in workers"),
        ({"pin_memory": True}, ValueError, "pin_memory = True and a sampler on host: batches are on the GPU already"),
        ({"batches_ahead": 0}, ValueError, "batches_ahead = 0: expected an integer of at least 1"),
        ({"gather_window": True}, ValueError, "gather_window = True: expected an integer"),
        ({"device": None, "gather_window": 2}, ValueError, "gather_window = 2: it is for samplers on a GPU"),
    ]:
        with pytest.raises(error, match=message):
            loader(**options)
    with pytest.raises(ValueError, match="the graph is for CPU samplers; pass a glt Dataset"):
        NeighborLoader(HOMO, [2], device="host")
    sampler = loader().node_sampler
    assert sampler.accelerator == Accelerator(torch.device("cpu"))
    with pytest.raises(TypeError, match=r"data has type Data: a sampler on a GPU needs a glt Dataset"):
        NeighborLoader(HOMO, [2, 2], neighbor_sampler=sampler)
    with pytest.raises(ValueError, match="device = 'cpu', but neighbor_sampler samples on host"):
        data = Dataset.from_pyg(HOMO).with_mode("ZERO_COPY")
        NeighborLoader(data, [2, 2], neighbor_sampler=sampler, device="cpu")


@needs_gpu
def test_a_gpus_loader_leaves_no_memory_pinned():
    """Not yet run."""
    before = process_pages().num_bytes
    loaded = loader("cuda")
    for batch in loaded:
        torch.cuda._sleep(1_000_000)  # the trainer is behind
        assert batch.x.is_cuda and torch.equal(batch.x.cpu(), HOMO.x[batch.n_id.cpu()])
    graph = loaded.node_sampler.graph.graphs[0]
    graph.close()
    for tables in (*loaded._features.source.node_tables, *loaded._features.source.edge_tables):
        for feature in tables.values():
            feature.check()
            feature.close()
    assert process_pages().num_bytes == before
