"""Gradients of rows are summed once, in a fixed order, and rows are updated as torch.optim updates them."""

import threading
import time

import numpy as np
import pytest
import torch

from glt import _core

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # of torch.optim.Adagrad

NUM_ROWS, DIM = 50, 7


def batch(rng, n):
    """Rows with many duplicates, and a gradient for each."""
    return torch.randint(NUM_ROWS, (n,), generator=rng), torch.randn(n, DIM, generator=rng)


def table_of(tensor):
    return _core.RowTable((tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy())


def merge_of(*parts, num_rows=NUM_ROWS):
    return _core.RowMerge([(rows.numpy(), grads.numpy()) for rows, grads in parts], num_rows, parts[0][1].shape[1])


def sums_of(merge, dim=DIM, scale=1.0, num_threads=1):
    rows, sums = np.empty(len(merge), np.int64), np.empty((len(merge), dim), np.float32)
    merge.sum(rows, sums, scale, num_threads)
    return rows, sums


@pytest.mark.parametrize("num_rows", [1, 3, NUM_ROWS, 5000, 1 << 40])
def test_duplicates_are_summed_once_in_the_order_in_which_they_come(num_rows):
    rng = np.random.default_rng(0)
    rows = rng.integers(num_rows, size=2000)
    grads = rng.standard_normal((2000, DIM)).astype(np.float32)
    expected = {}
    for row, grad in zip(rows.tolist(), grads, strict=True):
        expected[row] = expected[row] + grad if row in expected else grad
    parts = [(rows[:700], grads[:700]), (rows[700:700], grads[700:700]), (rows[700:], grads[700:])]
    merge = _core.RowMerge(parts, num_rows, DIM)
    for num_threads in (1, 4):
        found, sums = sums_of(merge, num_threads=num_threads)
        assert found.tolist() == sorted(expected)
        assert np.array_equal(sums, np.stack([expected[row] for row in found.tolist()]))  # to the bit: the same order


def test_the_sum_of_a_row_does_not_depend_on_the_other_rows():
    rng = torch.Generator().manual_seed(1)
    parts = [batch(rng, 400), batch(rng, 300)]
    rows, sums = sums_of(merge_of(*parts), scale=0.5)
    for owner in range(3):
        mine = [(r[r % 3 == owner], g[r % 3 == owner]) for r, g in parts]
        found, theirs = sums_of(merge_of(*mine), scale=0.5)
        assert np.array_equal(found, rows[rows % 3 == owner])
        assert np.array_equal(theirs, sums[rows % 3 == owner])


def test_nothing_and_no_columns():
    assert len(_core.RowMerge([], 5, 3)) == 0
    empty = torch.empty(0, dtype=torch.int64), torch.empty(0, 3)
    assert len(merge_of(empty, empty, num_rows=0)) == 0
    rows, sums = sums_of(merge_of((torch.tensor([2, 2, 0]), torch.empty(3, 0))), dim=0)
    assert rows.tolist() == [0, 2] and sums.shape == (2, 0)


def test_a_row_outside_the_table_is_named_before_anything_moves():
    good = torch.tensor([1]), torch.ones(1, 2)
    with pytest.raises(IndexError, match=r"parts\[1\]: row -1 at position 2 is outside \[0, 5\)"):
        merge_of(good, (torch.tensor([0, 4, -1]), torch.ones(3, 2)), num_rows=5)
    with pytest.raises(IndexError, match=r"parts\[0\]: row 5 at position 0"):
        merge_of((torch.tensor([5]), torch.ones(1, 2)), num_rows=5)


def test_wrong_arrays_are_refused():
    rows, grads = np.zeros(2, np.int64), np.ones((2, 3), np.float32)
    for part, dim, error, message in [
        ((rows, grads.astype(np.float64)), 3, TypeError, "grads: expected float32"),
        ((rows.astype(np.int32), grads), 3, TypeError, "rows: expected a 1-d array of int64"),
        ((rows, grads), 4, ValueError, r"grads: expected \[2, 4\]"),
    ]:
        with pytest.raises(error, match=message):
            _core.RowMerge([part], 5, dim)
    merge = _core.RowMerge([(rows, grads)], 5, 3)
    right, wrong = table_of(torch.zeros(5, 3)), table_of(torch.zeros(4, 3))
    for dtype, state, message in [
        ("float64", right, "dtype = float64: expected float32, bfloat16 or float16"),
        ("float16", right, "weights has 5 rows of 12 bytes: expected 5 of 6"),
        ("float32", wrong, "state has 4 rows of 12 bytes: expected 5 of 12"),
    ]:
        with pytest.raises(ValueError, match=message):
            merge.adagrad(right, dtype, state, 1.0, 0.1, 1e-10)


def steps_of_torch(kind, options, weights, batches):
    embedding = torch.nn.Embedding.from_pretrained(weights.clone(), freeze=False, sparse=True)
    optimizer = kind(embedding.parameters(), **options)
    for rows, grads in batches:
        optimizer.zero_grad()
        embedding(rows).backward(grads)
        optimizer.step()
    return embedding.weight.detach(), optimizer.state[embedding.weight]


@pytest.mark.parametrize(
    ("kind", "options", "names"),
    [
        (torch.optim.Adagrad, {"lr": 0.3, "lr_decay": 0.01, "eps": 1e-6}, ["sum"]),
        (torch.optim.SparseAdam, {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-8}, ["exp_avg", "exp_avg_sq"]),
    ],
    ids=["Adagrad", "Adam"],
)
@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_steps_are_those_of_torch(kind, options, names, num_parts):
    rng = torch.Generator().manual_seed(2)
    weights = torch.randn(NUM_ROWS, DIM, generator=rng)
    batches = [batch(rng, n % 40) for n in range(200)]
    expected, state = steps_of_torch(kind, options, weights, batches)
    kept = [torch.zeros(NUM_ROWS, DIM) for _ in names]
    tables, lr, eps = [table_of(each) for each in (weights, *kept)], options["lr"], options["eps"]
    for step, (rows, grads) in enumerate(batches):
        merge = merge_of(*zip(rows.tensor_split(num_parts), grads.tensor_split(num_parts), strict=True))
        if kind is torch.optim.Adagrad:
            merge.adagrad(tables[0], "float32", tables[1], 1.0, lr / (1 + step * options["lr_decay"]), eps, 3)
        else:
            beta1, beta2 = options["betas"]
            step_size = lr * (1 - beta2 ** (step + 1)) ** 0.5 / (1 - beta1 ** (step + 1))
            merge.adam(tables[0], "float32", *tables[1:], 1.0, step_size, 1 - beta1, 1 - beta2, eps, 3)
    torch.testing.assert_close(weights, expected)
    for name, found in zip(names, kept, strict=True):
        torch.testing.assert_close(found, state[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_two_bytes_are_rounded_once_per_step(dtype):
    rng = torch.Generator().manual_seed(4)
    weights = torch.randn(NUM_ROWS, DIM, generator=rng).to(dtype)
    expected, total = weights.clone(), torch.zeros(NUM_ROWS, DIM)
    for _ in range(20):
        rows, grads = batch(rng, 60)
        before, state = expected.float(), total.clone()
        merge = merge_of((rows, grads))
        merge.adagrad(table_of(weights), str(dtype).removeprefix("torch."), table_of(total), 0.25, 0.1, 1e-10)
        merge.adagrad(table_of(before), "float32", table_of(state), 0.25, 0.1, 1e-10)
        expected = before.to(dtype)
        assert torch.equal(weights, expected) and torch.equal(total, state)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_weights_at_any_address(dtype):
    weights, total = np.ones((5, 3), dtype), np.zeros((5, 3), np.float32)
    odd = np.empty(weights.nbytes + 1, np.uint8)[1:].view(dtype).reshape(weights.shape)
    odd[:] = weights
    merge = _core.RowMerge([(np.array([1, 4]), np.ones((2, 3), np.float32))], 5, 3)
    for each in (weights, odd):
        merge.adagrad(_core.RowTable(each), dtype, _core.RowTable(total.copy()), 1.0, 0.5, 1e-10)
    assert (odd == weights).all() and weights[:, 0].tolist() == [1, 0.5, 1, 1, 0.5]


def test_special_values_survive_two_bytes():
    weights = torch.tensor([[float("inf"), float("nan"), -0.0, 3.38e38]], dtype=torch.bfloat16)
    merge = merge_of((torch.tensor([0]), torch.zeros(1, 4)), num_rows=1)
    merge.adagrad(table_of(weights), "bfloat16", table_of(torch.ones(1, 4)), 1.0, 0.1, 1e-10)
    assert weights[0, 0] == float("inf") and weights[0, 1].isnan() and weights[0, 3].isfinite()


def test_threads_change_nothing():
    rng = torch.Generator().manual_seed(5)
    rows, grads = torch.randint(20000, (50000,), generator=rng), torch.randn(50000, 16, generator=rng)
    results = []
    for num_threads in (1, 2, 8):
        weights, mean, square = (torch.zeros(20000, 16) for _ in range(3))
        merge_of((rows, grads), num_rows=20000).adam(
            table_of(weights), "float32", table_of(mean), table_of(square), 1.0, 0.1, 0.1, 0.001, 1e-8, num_threads
        )
        results.append((weights, mean, square))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("dim", [1, 2, 33])
def test_readers_never_see_half_a_step(dim):
    num_rows, num_steps, num_reads = 4000, 0, [0]
    weights, total = torch.zeros(num_rows, dim), torch.zeros(num_rows, dim)
    table, state = table_of(weights), table_of(total)
    merge = merge_of((torch.arange(num_rows), torch.ones(num_rows, dim)), num_rows=num_rows)
    stop, torn = threading.Event(), []

    def read():
        out = np.empty((num_rows, dim), np.float32)
        while not stop.is_set():
            table.read(None, 0, out)
            torn.extend(out[(out != out[:, :1]).any(axis=1)])
            num_reads[0] += 1
            time.sleep(0.0002)  # for the GIL: without it the writer may never wake in time to take it

    reader = threading.Thread(target=read)
    reader.start()
    while num_steps < 300 or num_reads[0] < 10:  # pytest's time limit stands guard
        merge.adagrad(table, "float32", state, 1.0, 0.1, 1e-10, 2)
        num_steps += 1
    stop.set()
    reader.join()
    assert not torn
    assert (total == num_steps).all() and (weights == weights[0, 0]).all()
