"""Features on a GPU: device rows, pinned rows and both, equal to the CPU's. Not yet run on a GPU.

Tables whose memory is to be registered with CUDA have 64 MB: of those below ``SMALL_BYTES`` torch makes a pinned copy.
"""

import logging
import multiprocessing

import numpy as np
import pytest
import torch
from gpus import GPU

from glt.data import DeviceGroup, Feature
from glt.data.packing import STORE_DTYPES
from glt.data.pinned import SMALL_BYTES, PinnedMemory, process_pages

pytestmark = list(GPU.marks)


def bits(tensor):
    return tensor.cpu().contiguous().view(torch.uint8).numpy()


@pytest.mark.parametrize("split_ratio", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("by_hotness", [False, True])
def test_rows_equal_those_of_the_cpu(split_ratio, by_hotness):
    hotness = torch.rand(5000) if by_hotness else None
    ids = torch.randint(0, 5000, (20_000,))
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        for width in (1, 3, 16, 100, 128, 602):
            feature = Feature(
                (torch.randn(5000, width) * 50).to(dtype), split_ratio=split_ratio, device=0, hotness=hotness
            )
            for given in (ids.cuda(), ids.int().cuda()):
                out = feature.gather(given)
                assert out.is_cuda and out.dtype == dtype
                np.testing.assert_array_equal(bits(out), bits(feature[ids]))
            assert feature.placed(0).num_hot == round(split_ratio * 5000)
            feature.close()
            assert process_pages().num_bytes == 0


def test_rows_at_odd_addresses_and_positions():
    memory = torch.randint(0, 255, (1_280_000 * 50 + 1,), dtype=torch.uint8)
    table = memory[1:].view(1_280_000, 50)
    feature = Feature(table, device=0)
    ids, positions = torch.randint(0, len(table), (300,)), torch.randperm(900)[:300]
    out = torch.zeros(900, 50, dtype=torch.uint8, device="cuda")
    feature.gather(ids.cuda(), out, positions=positions.to(torch.uint32).cuda())
    expected = torch.zeros(900, 50, dtype=torch.uint8)
    expected[positions] = table[ids]
    assert torch.equal(out.cpu(), expected)
    assert process_pages().num_bytes >= table.nbytes
    feature.close()
    assert process_pages().num_bytes == 0


@pytest.mark.parametrize("num_columns", [32, 33])
@pytest.mark.parametrize("store_dtype", STORE_DTYPES)
def test_packed_rows_equal_those_of_the_cpu(store_dtype, num_columns):
    table = torch.randn(1000, num_columns) * 50
    feature = Feature(table, split_ratio=0.5, device=0, store_dtype=store_dtype)
    ids = torch.randint(0, 1000, (5000,))
    assert torch.equal(feature.gather(ids.cuda()).cpu(), feature.gather(ids))


def test_bad_ids_are_errors_and_the_device_lives_on():
    feature = Feature(torch.arange(100.0).view(50, 2), split_ratio=0.5, device=0)
    ids = torch.arange(40_000) % 50
    ids[[1234, 30_000]] = 50
    with pytest.raises(IndexError, match=r"ids\[1234\] = 50 is row 50 of 50"):
        feature.gather(ids.cuda())
    out = feature.gather(ids.cuda(), wait=False)
    assert out[1234].tolist() == [0.0, 0.0]
    with pytest.raises(IndexError, match=r"ids\[1234\]"):
        feature.check()
    assert feature.gather(torch.tensor([49], device="cuda")).tolist() == [[98.0, 99.0]]


def test_gathers_follow_the_stream_of_their_caller():
    feature = Feature(torch.randn(1 << 16, 64), split_ratio=0.5, device=0)
    feature.placed(0)
    stream = torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)
            ids = torch.randint(0, 1 << 16, (10_000,), device="cuda")  # ready on this stream alone
            out = feature.gather(ids, wait=False)
            copy = out.clone()
        feature.check()
        stream.synchronize()
        assert torch.equal(copy.cpu(), feature[ids.cpu()])


def test_mapped_files_are_pinned_or_refused_with_a_remedy(tmp_path, caplog):
    table = np.random.default_rng(0).random((640_000, 25), np.float32)
    np.save(tmp_path / "x.npy", table)
    mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    feature, ids = Feature(mapped, device=0), torch.randint(0, len(table), (999,))
    with caplog.at_level(logging.INFO):
        try:
            out = feature.gather(ids.cuda())
        except RuntimeError as error:
            assert "share_memory_" in str(error)
            pytest.skip(f"this kernel or driver does not pin mapped files: {error}")
    np.testing.assert_array_equal(out.cpu().numpy(), table[ids.numpy()])
    assert process_pages().num_bytes >= table.nbytes
    # The second, read-only map, not the private one; but where the GPU cannot be told that it only reads.
    is_private = process_pages().has_any(mapped.data_ptr(), mapped.nbytes)
    assert is_private == ("its private map is pinned instead" in caplog.text)
    feature.close()
    assert process_pages().num_bytes == 0


def _gather_in_child(feature, ids, answer):
    rows = feature.gather(ids.cuda()).cpu()
    num_bytes = process_pages().num_bytes
    feature.close()
    answer.send_bytes(rows.numpy().tobytes())  # not the tensor, whose memory would come from this process, if it lives
    answer.send(num_bytes)


def test_processes_pin_the_same_shared_pages():
    table = torch.randn(1 << 19, 32).share_memory_()
    feature, ids = Feature(table, device=0), torch.randint(0, len(table), (500,))
    feature.gather(ids.cuda())
    assert process_pages().num_bytes >= table.nbytes
    spawn = multiprocessing.get_context("spawn")
    running = []
    try:
        for _ in range(2):
            answer, theirs = spawn.Pipe(duplex=False)
            child = spawn.Process(target=_gather_in_child, args=(feature, ids, theirs), daemon=True)
            child.start()
            theirs.close()  # so that the child's end is the only one, and its death is the end of the file
            running.append((child, answer))
        for child, answer in running:
            assert answer.poll(120), f"child {child.pid} has said nothing for 120 s"
            try:
                rows, num_bytes = answer.recv_bytes(), answer.recv()
            except EOFError:
                child.join(60)
                pytest.fail(f"child {child.pid} died with exit code {child.exitcode}")
            assert rows == table[ids].numpy().tobytes() and num_bytes >= table.nbytes
            child.join(60)
            assert child.exitcode == 0
    finally:
        for child, answer in running:
            child.kill()
            answer.close()
    feature.close()


def test_memory_can_be_pinned_twice_and_again():
    tensor = torch.randn(SMALL_BYTES // 4 + 1000)
    for _ in range(3):
        first, second = PinnedMemory(tensor, torch.device("cuda:0")), PinnedMemory(tensor[50:], torch.device("cuda:0"))
        assert tensor.is_pinned() and first.tensor is tensor
        first.close()
        assert tensor[50:].is_pinned(), "still in use"
        second.close()
        assert not tensor.is_pinned()
    held = tensor.pin_memory()
    PinnedMemory(held, torch.device("cuda:0")).close()
    assert held.is_pinned()


def test_small_memory_is_copied_and_its_pages_are_left_to_others():
    for dtype in (torch.float32, torch.uint64, torch.uint32, torch.int8, torch.bfloat16):
        tensor = torch.arange(1000).to(dtype)
        memory = PinnedMemory(tensor, torch.device("cuda:0"))
        assert memory.tensor.is_pinned() and not tensor.is_pinned() and process_pages().num_bytes == 0
        assert torch.equal(bits_of(memory.tensor), bits_of(tensor))
        memory.close()


def bits_of(tensor):
    return tensor.view(torch.uint8)


def test_large_rows_are_registered_in_place_and_hot_ones_may_follow_later():
    table = torch.randn(400_000, 50)
    ids = torch.randint(0, len(table), (10_000,))
    cold, both = Feature(table, device=0), Feature(table, split_ratio=0.5, device=0)
    for feature in (cold, both):  # the second copies rows whose pages the first has registered
        assert torch.equal(feature.gather(ids.cuda()).cpu(), table[ids])
    assert process_pages().num_bytes >= table.nbytes
    cold.close()
    assert torch.equal(both.gather(ids.cuda()).cpu(), table[ids])
    both.close()
    assert process_pages().num_bytes == 0 and not table.is_pinned()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_gpus_of_a_group_share_the_hot_rows():
    table, ids = torch.randn(1001, 40), torch.randint(0, 1001, (5000,))
    feature = Feature(table, split_ratio=0.7, device_group_list=[DeviceGroup(0, [0, 1])])
    for device in (0, 1):
        assert torch.equal(feature.gather(ids.to(f"cuda:{device}")).cpu(), table[ids])
