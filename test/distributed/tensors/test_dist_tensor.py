"""A tensor whose rows servers keep: indices, values, names and ends."""

import gc
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from store_world import Servers

from glt.distributed.context import enter, leave
from glt.distributed.job.worlds import StandaloneWorld
from glt.distributed.tensors import store as tensor_store
from glt.distributed.tensors.tensor import DistTensor, Handles, flush_all
from glt.errors import PeerLost

DTYPES = """bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 complex64 complex128
float8_e4m3fn float8_e5m2""".split()

FULL = pytest.mark.full
WORLDS = [3, pytest.param(1, marks=FULL), pytest.param(0, marks=FULL)]
on_servers = pytest.mark.parametrize("world", WORLDS, indirect=True)
"""For tests whose outcome the place of the rows does not change: the other worlds are tested by `make test-full`."""


@pytest.fixture(params=[0, pytest.param(1, marks=FULL), 3], ids=["standalone", "1-server", "3-servers"])
def world(request):
    if request.param == 0:
        alone = StandaloneWorld()
        yield alone
        alone.close()
        return
    with Servers(request.param) as servers:
        yield servers.trainer()


@pytest.fixture
def servers():
    with Servers(2) as two:
        yield two


@pytest.fixture
def few_rows(monkeypatch):
    """Sets how many bytes travel in a piece."""
    return lambda num_bytes: monkeypatch.setattr("glt.distributed.tensors.exchange.PIECE_BYTES", num_bytes)


def counting(tensor):
    """Rows whose elements are their numbers."""
    numbers = torch.arange(len(tensor)).view(-1, *[1] * (tensor.ndim - 1))
    tensor[:] = rows = numbers.expand(tensor.shape).to(tensor.dtype).contiguous()
    return rows


def bytes_of(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    assert bytes_of(a) == bytes_of(b)


@pytest.mark.parametrize("shape", [(11,), (11, 3), (11, 2, 3), (11, 0)])
def test_every_kind_of_index_reads_and_writes_as_torch(world, shape):
    tensor = DistTensor(shape, name="x", world=world)
    expected = counting(tensor).clone()
    mask = torch.arange(11) % 3 == 0
    masks = [mask, mask.tolist(), mask.to(torch.uint8), mask.numpy().astype(np.uint8)]
    slices = [slice(None), slice(2, 9), slice(-4, None), slice(9, 1, -3), slice(5, 5), slice(8, 3)]
    lists = [torch.tensor([3, 1, 1, 10]), torch.tensor([5], dtype=torch.int32), [2, 9], np.array([8, 0], np.uint16)]
    kinds = [*lists, *masks, *slices, 4, np.int32(7), torch.tensor(6), [], torch.tensor([], dtype=torch.long)]
    for at, index in enumerate(kinds):
        plain = index if isinstance(index, slice) else np.asarray(index, np.int64 if index is kinds[-2] else None)
        plain = plain.astype(bool) if getattr(plain, "dtype", None) == np.uint8 else plain  # a mask, as in torch
        like = torch.as_tensor(np.arange(11)[plain].copy())
        same(tensor[index], expected[like])
        if like.tolist() != [3, 1, 1, 10]:  # what torch writes there is not defined
            values = torch.full_like(expected[like], 100.0 + at)
            tensor[index] = values
            expected[like] = values
            same(tensor[:], expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_a_distributed_mask_is_an_index_and_tensors_are_values(world, dtype):
    tensor, mask = DistTensor((11, 2), world=world), DistTensor((11,), dtype, world=world)
    mask[[2, 5]] = True if dtype == torch.bool else 1
    expected = counting(tensor)[[2, 5]]
    same(tensor[mask], expected)
    few = DistTensor((2, 2), world=world)
    few[:] = expected + 1
    tensor[mask] = few
    same(tensor[[2, 5]], expected + 1)


@on_servers
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_kept_to_the_bit(world, dtype):
    dtype = getattr(torch, dtype)
    bits = torch.randint(0, 2 if dtype == torch.bool else 256, (9, 4 * dtype.itemsize), dtype=torch.uint8)
    values = bits.view(dtype)
    try:
        torch.empty(1, dtype=dtype).fill_(0)
    except RuntimeError as error:
        pytest.skip(f"torch {torch.__version__}: {error}")
    tensor = DistTensor((9, 4), dtype, world=world)
    assert not any(bytes_of(tensor[:]))
    tensor[torch.arange(9)] = values
    same(tensor[torch.arange(8, -1, -1)], bits.flip(0).view(dtype))


def test_of_duplicates_the_last_value_stays_and_additions_add_up(world):
    tensor = DistTensor((6, 2), torch.int32, world=world)
    tensor[[4, 1, 4]] = torch.tensor([[1, 1], [2, 2], [3, 3]], dtype=torch.int32)
    tensor.add([4, 4, 0], [[10, 20], [100, 200], [5, 5]])
    assert tensor[:].tolist() == [[5, 5], [2, 2], [0, 0], [0, 0], [113, 223], [0, 0]]
    tensor[1:3] = 9
    tensor.add(5, 7)
    assert tensor[:].tolist() == [[5, 5], [9, 9], [9, 9], [0, 0], [113, 223], [7, 7]]


UINT8 = "uint8 is a mask: convert ids to int64"
REFUSED = [
    ([0, 6], torch.ones(2, 2), IndexError, r"ids\[1\] = 6 is outside \[0, 6\)"),
    ([-1], torch.ones(1, 2), IndexError, r"ids\[0\] = -1 is outside \[0, 6\)"),
    (6, torch.ones(2), IndexError, r"ids = 6 is outside \[0, 6\)"),
    ([0.5], torch.ones(1, 2), TypeError, "ids has dtype torch.float64: expected integer"),
    (1.5, torch.ones(2), TypeError, "ids = 1.5: expected an integer"),
    (torch.ones(4, dtype=torch.bool), torch.ones(4, 2), ValueError, "mask of 4 elements: expected 6"),
    (torch.tensor([1, 2]).byte(), torch.ones(2, 2), ValueError, f"mask of 2 elements: expected 6, .* each id; {UINT8}"),
    (np.array([0, 1, 2, 1, 0, 0], np.uint8), torch.ones(6, 2), ValueError, rf"ids\[2\] = 2: expected 0 or 1; {UINT8}"),
    (([1], [0]), torch.ones(1), TypeError, "expected rows"),
    ([[1, 2]], torch.ones(2, 2), ValueError, "expected one dimension"),
    ([[1], [2, 3]], torch.ones(2, 2), TypeError, r"ids = \[\[1\], \[2, 3\]\]: expected integer ids"),
    ([1, 2], torch.ones(3, 2), ValueError, r"shape \[3, 2\]: expected a dense one of \[2, 2\]"),
    ([1, 2], torch.ones(2), ValueError, r"shape \[2\]: expected a dense one of \[2, 2\]"),
    ([1], torch.ones(1, 2, dtype=torch.float64), TypeError, "dtype torch.float64: expected torch.float32"),
    ([1], np.ones((1, 2)), TypeError, "dtype torch.float64: expected torch.float32"),
    ([1], torch.ones(1, 2).to_sparse(), ValueError, "torch.sparse_coo tensor"),
    ([1], torch.ones(1, 2, device="meta"), ValueError, "meta device"),
    ([1], 1j, TypeError, "values = 1j: expected a number that torch.float32 holds"),
]


@on_servers
def test_what_does_not_fit_is_refused_before_anything_moves(world):
    tensor = DistTensor((6, 2), world=world)
    num_calls = getattr(world, "num_calls", 0)
    for index, values, error, text in REFUSED:
        for change in (tensor.__setitem__, tensor.add, tensor.write_async):
            with pytest.raises(error, match=text):
                change(index, values)
    assert getattr(world, "num_calls", 0) == num_calls
    assert not tensor[:].any()


def test_numbers_that_the_dtype_does_not_hold_are_refused(world):
    whole = DistTensor((3,), torch.uint8, world=world)
    wrong = {TypeError: [1.5, [1, 2.5]], ValueError: [300, 10**30, [1, 300]]}
    for error, values in [(error, values) for error, several in wrong.items() for values in several]:
        with pytest.raises(error, match="values"):
            whole[[0, 1]] = values
    mask = DistTensor((3,), torch.bool, world=world)
    mask[1] = True
    with pytest.raises(TypeError, match=r"values = 2: expected a number that torch.bool holds"):
        mask[0] = 2
    with pytest.raises(TypeError, match=r"add to a tensor of torch.bool"):
        mask.add([0], [True])
    assert mask[:].tolist() == [False, True, False] and not whole[:].any()


CREATED_WRONG = [
    ({"shape": ()}, ValueError, r"shape = \[\]: expected 1 to 4"),
    ({"shape": (3, -1)}, ValueError, r"shape\[1\] = -1"),
    ({"shape": (3, 1.0)}, TypeError, r"shape\[1\] = 1.0"),
    ({"dtype": torch.qint8}, TypeError, "dtype"),
    ({"name": "glt/x"}, ValueError, "name = 'glt/x'"),
    ({"part": "node"}, ValueError, "part = 'node': there is no graph yet"),
    ({"init_func": "ones!"}, LookupError, "'ones!' is no function that this server runs"),
    ({"init_func": ("uniform", 2, 1)}, ValueError, "low < high"),
    ({"init_func": "normal", "dtype": torch.int32}, ValueError, "expected a floating point dtype"),
    ({"init_func": ("constant", 1.5), "dtype": torch.int32}, TypeError, "holds"),
    ({"init_func": ("constant", 300), "dtype": torch.uint8}, ValueError, r"init_func = \('constant', 300\)"),
    ({"init_func": 7}, ValueError, "init_func = 7"),
]


@on_servers
def test_creation_refuses_what_does_not_fit(world):
    for changed, error, text in CREATED_WRONG:
        with pytest.raises(error, match=text):
            DistTensor(**{"shape": (4, 2), "dtype": torch.float32, "world": world, **changed})
    with pytest.raises(LookupError, match=r"it has \[\]"):
        DistTensor.find("x", world=world)


def test_without_a_world_one_is_told_what_to_call():
    with pytest.raises(RuntimeError, match=r"glt.distributed.initialize\(\)"):
        DistTensor((3,))
    enter(StandaloneWorld())
    try:
        assert DistTensor((3,))[:].tolist() == [0, 0, 0]
    finally:
        leave().close()


def test_a_name_is_found_by_all_trainers_and_outlives_its_handles(servers):
    mine, other = servers.trainers(2)
    counting(DistTensor((7, 2), name="x", world=mine))
    gc.collect()
    found = DistTensor.find("x", world=other)
    assert (found.shape, found.dtype, found.name) == ((7, 2), torch.float32, "x")
    assert found[6].tolist() == [6, 6]
    again = DistTensor((7, 2), name="x", world=other)  # created there is found here
    assert again.generations == found.generations
    with pytest.raises(LookupError, match=r"name = 'y': server 0 has no such tensor; it has \['x'\]"):
        DistTensor.find("y", world=other)


def test_a_mismatched_creation_names_both(servers):
    mine, other = servers.trainers(2)
    first = DistTensor((7, 2), name="x", world=mine)
    for changed in ({"shape": (7, 3)}, {"dtype": torch.bfloat16}, {"init_func": "ones"}):
        with pytest.raises(ValueError, match=r"'x' cannot be created with .* exists with shape .*7, 2.*by trainer 0"):
            DistTensor(**{"shape": (7, 2), "name": "x", "world": other, **changed})
    first[[0]] = 5.0  # and that did it no harm
    assert servers.stores[1].names() == ["x"]


def test_what_cannot_be_made_on_all_servers_is_on_none(servers, monkeypatch):
    monkeypatch.setattr(tensor_store, "available_memory", lambda: (1 << 20, "memory left under the limit of a test"))
    DistTensor((1000, 64), name="fits", world=servers.trainer())
    with pytest.raises(MemoryError, match=r"'x' .* needs 0.0016 GB for 50000 rows on server 0: memory left under"):
        DistTensor((100_000, 8), name="x", world=servers.trainer())
    monkeypatch.undo()
    world = servers.trainer()
    world.lost[1] = PeerLost("lost server 1 in a test")
    with pytest.raises(PeerLost, match="server 1 in a test"):
        DistTensor((100, 8), name="y", world=world)
    assert [store.names() for store in servers.stores] == [["fits"], ["fits"]]


def test_who_reads_what_another_deleted_is_told_who_did(servers):
    mine, other = servers.trainers(2)
    held = DistTensor((7, 2), name="x", world=mine)
    DistTensor.find("x", world=other).delete()
    text = r"tensor 'x' was deleted by trainer 1, client 1 \(test\)"
    with pytest.raises(LookupError, match=text):
        held[[0]]
    with pytest.raises(LookupError, match=text):
        held[[0]] = 1.0
    late = held.write_async([6], 1.0)
    with pytest.raises(LookupError, match=text):
        held.flush()
    assert isinstance(late.exception(), LookupError)
    held.delete()  # again: nothing to do
    anew = DistTensor((3,), torch.int64, "x", world=mine)  # the name is another tensor's now
    with pytest.raises(LookupError, match=text):
        held[[0]]
    assert anew[:].tolist() == [0, 0, 0]


def test_rows_that_a_restarted_server_has_lost_are_not_made_anew(servers):
    mine, other = servers.trainers(2)
    held = DistTensor((7, 2), name="x", world=mine)
    counting(held)
    servers.restart(1)
    with pytest.raises(LookupError, match=r"server 1 has no tensor number .* restarted since"):
        held[[6]]
    with pytest.raises(LookupError, match=r"servers \[1\] have no rows of a tensor that was on all of them"):
        DistTensor((7, 2), name="x", world=other)
    assert servers.stores[1].names() == [] and held[[0, 1]].tolist() == [[0, 0], [1, 1]]
    with pytest.raises(LookupError, match=r"server 1 has no such tensor"):
        DistTensor.find("x", world=other)
    held.delete()
    assert not DistTensor((7, 2), name="x", world=other)[:].any()


def test_a_tensor_without_a_name_is_freed_when_nobody_holds_it(servers):
    mine, other = servers.trainers(2)

    def names():
        gc.collect()
        for world in (mine, other):
            flush_all(world)  # tells the owners what was dropped
            world.settle()
        assert servers.stores[0].names() == servers.stores[1].names()
        return servers.stores[0].names()

    first = DistTensor((7, 2), world=mine)
    counting(first)
    first_name = first.name
    del first
    assert names() == [first_name]  # the other trainer has yet to create it
    theirs = DistTensor((7, 2), world=other)
    assert theirs.name == first_name and theirs[3].tolist() == [3, 3]
    second = DistTensor((2,), world=other)
    assert second.name != first_name
    del theirs
    assert names() == [second.name]
    other.leave()  # with what it holds
    assert names() == [second.name]  # trainer 0 has yet to create it
    mine.leave()
    assert names() == []


def test_a_guest_frees_nothing_that_a_trainer_has_yet_to_create(servers):
    mine, _ = servers.trainers(2)
    guest = servers.trainer(1, 2)
    guest.group, guest.id = "readers", "guest"
    held = DistTensor((7, 2), world=mine)
    name = held.name
    found = DistTensor.find(name, world=guest)
    assert found[3].tolist() == [0, 0]
    del held, found
    gc.collect()
    for world in (mine, guest):
        flush_all(world)
        world.settle()
    guest.leave()
    assert servers.stores[0].names() == [name], "trainer 1 has yet to create it"


def test_the_last_handle_frees_a_tensor_at_once(servers):
    """Nothing else is asked of the servers: no barrier, no other tensor."""
    mine, other = servers.trainers(2)
    theirs, held = DistTensor((7, 2), world=other), DistTensor((7, 2), world=mine)
    told = held.write_async([1], torch.ones(1, 2))
    named = DistTensor((3,), name="stays", world=mine)
    freed = []
    for store, generation in zip(servers.stores, held.generations, strict=True):
        freed.append(threading.Event())
        weakref.finalize(store.stored(generation).shard, freed[-1].set)
    del theirs
    del held
    assert all(each.wait(60) for each in freed)
    told.result()
    assert [store.names() for store in servers.stores] == [["stays"]] * 2
    del named


def test_handles_end_with_their_world(servers):
    before = set(threading.enumerate())  # other tests' worlds may still be there
    world = servers.trainer()
    tensor = DistTensor((7, 2), world=world)
    (thread,) = [each for each in threading.enumerate() if each.name == "glt-release" and each not in before]
    Handles.of(world).end()
    assert not thread.is_alive()
    del tensor
    flush_all(world)  # does what the thread would have done
    world.settle()
    assert servers.stores[0].names() == []


def test_writes_without_waiting_are_seen_by_reads_behind_them_in_order(servers, few_rows):
    few_rows(64)
    tensor = DistTensor((40, 4), torch.int64, world=servers.trainer())
    expected = torch.zeros(40, 4, dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    for step in range(30):
        ids = torch.randperm(40, generator=generator)[:25]
        values = torch.full((25, 4), step)
        done = tensor.write_async(ids, values)
        values.fill_(-1)  # its own again
        expected[ids] = step
        if step % 7 == 0:
            same(tensor[:], expected)
    assert done.result() is None
    tensor.flush()
    same(tensor[torch.arange(40)], expected)


def test_what_was_written_by_a_tensor_that_is_dropped_at_once_arrives(servers, few_rows):
    few_rows(64)
    world = servers.trainer()
    kept = DistTensor((100, 4), name="x", world=world)
    for value in range(1, 4):
        DistTensor.find("x", world=world).write_async(slice(None), torch.full((100, 4), float(value)))
        gc.collect()
        flush_all(world)
        world.settle()
        assert kept[:].eq(value).all()
    assert [len(store.stored(kept.generations[rank]).orders) for rank, store in enumerate(servers.stores)] == [0, 0]


def test_calls_of_a_trainer_that_is_gone_hold_nothing_up(servers):
    world = servers.trainer()
    store = servers.stores[0]
    tensor = DistTensor((10,), name="x", world=world)
    generation = tensor.generations[0]
    change = partial(store.change, world, generation, "write", (0, 1), torch.ones(1), "sequence")
    waiting = ThreadPoolExecutor(1).submit(change, 2)
    world.leave()  # change 1 never comes
    for late in (waiting.result, lambda _: change(3)):
        with pytest.raises(RuntimeError, match="the trainer of this change is gone"):
            late(30)
    assert not store.read(None, generation, (0, 5)).any()


def test_a_loss_is_told_and_does_not_hold_up_what_comes_later(servers):
    world = servers.trainer()
    tensor = DistTensor((10,), torch.int64, name="x", world=world)
    tensor[9] = 1
    world.lost[1] = PeerLost("lost server 1 in a test")
    with pytest.raises(PeerLost, match="server 1 in a test"):
        tensor[9] = 2
    assert tensor[0].item() == 0  # the other owner is well
    world.lost.clear()
    tensor[9] = 3
    assert tensor[[9, 0]].tolist() == [3, 0]
    tensor.flush()  # what was raised once is not raised again


def test_large_requests_travel_in_pieces(servers, few_rows):
    few_rows(256)
    world = servers.trainer()
    tensor = DistTensor((1000, 8), world=world)
    expected = counting(tensor)
    before = world.num_calls
    same(tensor[:], expected)
    assert world.num_calls - before == 126  # 8 rows in each, on either server
    ids = torch.randint(0, 1000, (700,), generator=torch.Generator().manual_seed(1))
    same(tensor[ids], expected[ids])
    stats = [store.stats()[tensor.name] for store in servers.stores]
    assert sum(each["written_bytes"] for each in stats) == tensor.nbytes == 32_000
    assert sum(each["read_bytes"] for each in stats) == 32_000 + 700 * 32
    assert [each["num_rows"] for each in stats] == [500, 500]
    world.most_waiting = 0
    tensor.write_async(slice(None), expected).result()
    assert world.most_waiting < 4, "besides the one that is sent"


def test_it_does_not_travel_itself(world):
    with pytest.raises(TypeError, match=r"DistTensor.find\('x'\)"):
        pickle.dumps(DistTensor((3,), name="x", world=world))
    said = repr(DistTensor.find("x", world=world))
    assert said == f"DistTensor('x', float32 [3], 12 B on {world.num_servers} servers)"
