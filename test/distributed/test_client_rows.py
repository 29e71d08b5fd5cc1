"""Rows that the client of a stream keeps: batches are whole, however they are made and however little is kept."""

import numpy as np
import pytest
import torch

from glt.channel.message import MessageKind, MessageLayout, encode_message, error_message, read_message
from glt.data import Feature
from glt.distributed.engine.client_rows import ClientRows, KeptRows, RowsToSend
from glt.errors import MessageError

NUM_NODES = 600
X = torch.arange(NUM_NODES)[:, None] * torch.tensor([1.0, 2.0, 3.0])
MARK = torch.arange(NUM_NODES).to(torch.bfloat16)
FEATURES = {"x": Feature(X), "mark": Feature(MARK), "small": Feature(X / 7, store_dtype="int8")}


def message_of(nodes, rows, index):
    tensors = {"n_id/n0": nodes, **{f"{n}/n0": each.tensor[rows.ids] for n, each in FEATURES.items()}}
    specs = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()} | rows.specs
    layout = MessageLayout(specs)
    buffer = torch.empty(layout.nbytes + 64, dtype=torch.uint8)
    buffer = buffer[-buffer.data_ptr() % 64 :][: layout.nbytes]
    layout.write_header(buffer, MessageKind.BATCH, loader=1, index=index)
    out = layout.tensors(buffer)
    for name, tensor in tensors.items():
        out[name].copy_(tensor)
    rows.write(out)
    return buffer


@pytest.mark.parametrize("num_slots", [16, 64, 256, 900])
@pytest.mark.parametrize("seed", [0, 1])
def test_batches_are_whole_in_whatever_order_they_are_made(num_slots, seed):
    """Batches take room in turn, and are sampled before that and written after it in any order, or given up."""
    random = np.random.default_rng(seed)
    client = ClientRows(0, FEATURES, num_slots)
    kept = KeptRows([client.to_json()], 1 << 20)
    sampled, waiting, num_given_up = [], [], 0
    for index in range(400):
        # Some nodes are asked for far more often than others, as in graphs.
        hot = random.integers(0, 60, 40)
        nodes = np.unique(np.concatenate([hot, random.integers(0, NUM_NODES, 40)])).astype(np.int64)
        random.shuffle(nodes)
        sampled.append((nodes, client.split(nodes)))
        del nodes
        while sampled and random.random() < 0.6:  # takes room
            nodes, rows = sampled.pop(random.integers(len(sampled)))
            waiting.append([index, torch.from_numpy(nodes), rows, None])
        unwritten = [each for each in waiting if each[3] is None]
        random.shuffle(unwritten)
        for each in unwritten[: random.integers(0, 4)]:
            if random.random() < 0.05:
                waiting = [other for other in waiting if other is not each]
                num_given_up += 1
                continue
            each[3] = message_of(each[1], each[2], each[0])
            each[2].done()
        while waiting and waiting[0][3] is not None:  # is sent
            _, nodes, _, buffer = waiting.pop(0)
            message = kept.complete(read_message(buffer))
            assert torch.equal(message.tensors["n_id/n0"], nodes)
            for name, each in FEATURES.items():
                assert torch.equal(message.tensors[f"{name}/n0"], each[nodes])
            assert set(message.tensors) == {"n_id/n0", "x/n0", "mark/n0", "small/n0"}
    assert kept.num_known > 400 and num_given_up > 5
    assert client.slots.num_used <= client.slots.num_slots


def test_what_is_no_batch_passes():
    client = ClientRows(0, FEATURES, 16)
    kept = KeptRows([client.to_json()], 1 << 20)
    error = read_message(error_message(ValueError("no"), role="sampler", rank=0, loader=1, epoch=0, index=0))
    assert kept.complete(error) is error


def complete(told=None, most_bytes=1 << 20, x=X[:4], **changed):
    rows = RowsToSend(ClientRows(0, {"x": FEATURES["x"]}, 16), np.arange(4))
    parts = {name: torch.from_numpy(each) for name, each in rows._arrays.items()} | changed
    tensors = {"x/n0": x} | {f"n0/{name}": each for name, each in parts.items() if each is not None}
    message = read_message(encode_message(tensors, MessageKind.BATCH))
    return KeptRows(told or [{"type": 0, "names": ["x"], "num_slots": 16}], most_bytes).complete(message)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float8_e4m3fn, torch.bfloat16, torch.int16])
@pytest.mark.parametrize("shape", [(4,), (4, 0), (4, 2), (4, 2, 0, 3)])
def test_rows_of_any_dtype_and_shape(shape, dtype):
    x = torch.ones(shape, dtype=dtype)
    assert torch.equal(complete(x=x).tensors["x/n0"].float(), x.float())


def test_a_sampler_that_tells_nonsense_is_refused_and_nothing_is_read_or_written_elsewhere():
    assert torch.equal(complete().tensors["x/n0"], X[:4])
    u32, i64 = torch.uint32, torch.int64
    for nonsense in (
        {"slots": None},
        {"slots": torch.tensor([16], dtype=i64), "slots_at": torch.tensor([4], dtype=u32)},
        {"slots": torch.tensor([-1], dtype=i64), "slots_at": torch.tensor([4], dtype=u32)},
        {"slots": torch.tensor([1], dtype=i64)},
        {"slots": torch.tensor([1.0]), "slots_at": torch.tensor([4], dtype=u32)},
        {"rows_at": torch.tensor([0, 1, 2, 4], dtype=u32)},
        {"rows_at": torch.tensor([0, 1, 2, 2], dtype=u32)},
        {"kept": torch.tensor([4], dtype=i64), "kept_in": torch.tensor([0], dtype=u32)},
        {"kept": torch.tensor([0], dtype=i64), "kept_in": torch.tensor([16], dtype=u32)},
        {"told": [{"type": 0, "names": ["y"], "num_slots": 16}]},
        {"told": [{"type": 0, "names": ["x"], "num_slots": -1}]},
        {"told": [{"type": 0, "names": ["x"], "num_slots": 1 << 60}]},
        {"told": [{"type": 0, "names": ["x"], "num_slots": float("inf")}]},
        {"told": [{"type": 0, "names": ["x"], "num_slots": 1 << 18}]},
        {"told": [{"type": "0/../x", "names": ["x"], "num_slots": 16}]},
        {
            "told": [
                {
                    "type": 0,
                    "names": ["x"],
                    "num_slots": 16,
                    "packings": {"x": {"store_dtype": "int8", "row_shape": [1 << 45]}},
                }
            ]
        },
        {
            "told": [
                {
                    "type": 0,
                    "names": ["x"],
                    "num_slots": 16,
                    "packings": {"x": {"store_dtype": "int8", "row_shape": [1.5]}},
                }
            ]
        },
        {
            "told": [
                {
                    "type": 0,
                    "names": ["x"],
                    "num_slots": 16,
                    "packings": {"x": {"store_dtype": "int9", "row_shape": [3]}},
                }
            ]
        },
        {"told": [{"type": 0, "names": ["x"], "num_slots": 16, "packings": {"x": {}}}]},
        {"told": [{"type": 0, "names": ["x"], "num_slots": 16, "packings": ["x"]}]},
        {"told": [{"type": 0, "num_slots": 16}]},
        {"most_bytes": 16 * 12 - 1},
    ):
        with pytest.raises(MessageError, match="does not fit"):
            complete(**nonsense)
