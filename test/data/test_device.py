"""Devices: CUDA's and the meta device."""

import ctypes
import pickle
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

import glt
from glt.data import Dataset, DeviceGroup, Feature, Topology
from glt.data import device as cuda_device
from glt.data.device import group_of
from glt.loader import LinkNeighborLoader, NeighborLoader
from glt.partition import AssignedPartitioner, IdMap, PartitionerBase, RandomPartitioner, to_original_order
from glt.sampler import NeighborSampler


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(cuda_device, "missing_for_cuda", lambda: "there is no GPU")


@pytest.fixture
def two_gpus(monkeypatch):
    """As far as constructors look."""
    monkeypatch.setattr(cuda_device, "missing_for_cuda", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_what_is_missing_is_told_in_order(monkeypatch):
    monkeypatch.setattr(glt._core, "has_cuda", False)
    assert "this build of glt has no CUDA kernels" in cuda_device.missing_for_cuda()
    monkeypatch.setattr(glt._core, "has_cuda", True)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "is built without CUDA; install" in cuda_device.missing_for_cuda()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(glt._core, "cuda_version", 13000, raising=False)
    monkeypatch.setattr(cuda_device, "_cuda_of_driver", lambda: None)
    assert cuda_device.missing_for_cuda() == (
        "there is no NVIDIA driver (libcuda.so.1); glt's kernels need 580 or newer (compiled with CUDA 13.0): "
        "install or update the driver"
    )
    monkeypatch.setattr(cuda_device, "_cuda_of_driver", lambda: 12040)
    monkeypatch.setattr(cuda_device, "_release_of_driver", lambda: " 550.54.14")
    assert cuda_device.missing_for_cuda() == (
        "found NVIDIA's driver 550.54.14, which runs CUDA 12.4; glt's kernels need 580 or newer "
        "(compiled with CUDA 13.0): update the driver, or sample on the CPU"
    )
    monkeypatch.setattr(cuda_device, "_cuda_of_driver", lambda: 13010)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch finds no GPU" in cuda_device.missing_for_cuda()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cuda_device.missing_for_cuda() is None


def test_the_driver_is_asked_for_its_version(cxx, tmp_path, monkeypatch):
    source, stand_in, load = tmp_path / "driver.cc", tmp_path / "libcuda.so.1", ctypes.CDLL
    source.write_text('extern "C" int cuDriverGetVersion(int* version) { *version = 12040; return 0; }')
    subprocess.run([*cxx, "-shared", "-fPIC", str(source), "-o", str(stand_in)], check=True, timeout=120)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: load(str(tmp_path / name)))
    assert cuda_device._cuda_of_driver() == 12040
    monkeypatch.setattr(ctypes, "CDLL", lambda name: load(str(tmp_path / "nowhere" / name)))
    assert cuda_device._cuda_of_driver() is None


def test_importing_initialises_no_gpu():
    code = "import glt, glt.data, torch; assert not torch.cuda.is_initialized(); print(glt.has_cuda)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == str(glt.has_cuda), done.stderr


def test_what_is_no_gpu_is_refused_by_name(two_gpus):
    for device, error, message in [
        ("cpu", ValueError, "where = 'cpu': expected a GPU"),
        (None, TypeError, "where = None: expected a device"),
        (True, TypeError, "where = True: expected a device"),
        ("gpu", ValueError, "where = 'gpu': expected a device, such as"),
        (2, ValueError, "where = 2: expected one of the 2 GPUs here"),
        (-1, ValueError, "where = -1: expected a device"),
    ]:
        with pytest.raises(error, match=message):
            cuda_device.cuda_device(device, "where")
    for device in (1, "cuda:1", torch.device("cuda:1")):
        assert cuda_device.cuda_device(device, "where") == torch.device("cuda", 1)


def test_features_that_ask_for_a_gpu_say_what_is_missing(no_gpu):
    table, group = torch.zeros(4, 2), DeviceGroup(0, [0, 1])
    for options, message in [
        ({"device": 0}, "device = 0: there is no GPU"),
        ({"device": "cuda", "split_ratio": 0.5}, "device = 'cuda': there is no GPU"),
        ({"device": "cpu"}, "device = 'cpu': expected a GPU"),
        ({"device_group_list": [group]}, "device_list of group 0 = .*: there is no GPU"),
        ({"split_ratio": 0.5}, "split_ratio = 0.5: expected device or device_group_list"),
        ({"split_ratio": 2}, "split_ratio = 2: expected a share of the rows, 0 to 1"),
        ({"split_ratio": "half"}, "split_ratio = 'half'"),
        ({"hotness": torch.zeros(3)}, r"hotness is torch.float32 \[3\]: expected numbers \[4\] on the CPU"),
        ({"store_dtype": "int7"}, "store_dtype = 'int7': expected one of"),
    ]:
        with pytest.raises(ValueError, match=message):
            Feature(table, **options)
    with pytest.raises(ValueError, match="device = 'cuda:0': there is no GPU"):
        Feature(table).placed("cuda:0")


def test_a_dataset_passes_on_where_rows_are_to_be(two_gpus):
    dataset = Dataset()
    dataset.init_graph(torch.tensor([[0, 1], [1, 0]]))
    dataset.init_node_features(torch.eye(2), split_ratio=0.5, device=1)
    dataset.init_edge_features(torch.eye(2), device=0)
    assert dataset.get_node_feature().split_ratio == 0.5 and dataset.get_node_feature().device == 1
    assert dataset.get_edge_feature().uses_gpu
    with pytest.raises(TypeError, match="with_gpu"):
        dataset.init_node_features(torch.eye(2), with_gpu=True)


def test_groups_of_gpus(two_gpus):
    group = DeviceGroup(3, [torch.device("cuda:1"), 0])
    assert group.size == 2 and repr(group) == "DeviceGroup(3, ['cuda:1', 'cuda:0'])"
    assert group_of(torch.device("cuda:0"), [group]) == (torch.device("cuda:1"), torch.device("cuda:0"))
    assert group_of(torch.device("cuda:0"), []) == (torch.device("cuda:0"),)
    with pytest.raises(ValueError, match="cuda:2 is in none of device_group_list"):
        group_of(torch.device("cuda:2"), [group])
    for devices in ([], [0, 0], ["cuda"]):
        with pytest.raises(ValueError, match="expected at least one GPU, by number, each once"):
            DeviceGroup(0, devices)
    with pytest.raises(ValueError, match="device_list of group 0 has 'cpu': expected GPUs"):
        DeviceGroup(0, ["cpu"])


def test_a_feature_travels_with_its_options_and_places_nothing_yet(two_gpus):
    groups = [DeviceGroup(0, [0, 1])]
    feature = Feature(torch.eye(4), split_ratio=0.25, device_group_list=groups, hotness=torch.arange(4))
    copy = pickle.loads(pickle.dumps(feature))
    assert copy.split_ratio == 0.25 and copy.device_group_list[0].device_list == groups[0].device_list
    assert copy.hotness.tolist() == [0, 1, 2, 3] and copy.uses_gpu and not copy._placed
    assert repr(copy) == "Feature(float32 [4, 4], split_ratio=0.25, 64 B)"
    assert torch.equal(copy[torch.tensor([2])], torch.eye(4)[2:3])  # ids on the CPU: as ever
    copy.check()
    copy.close()


EDGES = torch.arange(40).reshape(2, 20) % 10
TIMED = Data(edge_index=EDGES, num_nodes=10, time=torch.arange(10))


def meta(*shape, dtype=torch.int64):
    return torch.empty(*shape, dtype=dtype, device="meta")


PARTITIONED = {
    **{name: meta(20) for name in ("edge_feat", "edge_weight", "edge_time")},
    **{name: meta(10) for name in ("node_feat", "node_label", "node_time", "hotness", "balance_ntypes")},
    "edge_index": meta(2, 20),
    "node_attrs": {"a": meta(10)},
}


class Nowhere(PartitionerBase):
    def assign_nodes(self, node_type, num_nodes):
        return meta(num_nodes)


SEEDS = {"edge_label_index": EDGES[:, :4]}


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *(
            (
                "node_attrs['a']" if name == "node_attrs" else name,
                partial(RandomPartitioner, num_parts=2, **({"num_nodes": 10, "edge_index": EDGES} | {name: given})),
            )
            for name, given in PARTITIONED.items()
        ),
        ("owners", lambda root: AssignedPartitioner(root, 2, 10, EDGES, owners=meta(10))),
        ("what Nowhere.assign_nodes returned", lambda root: Nowhere(root, 2, 10, EDGES).partition()),
        ("rows", lambda _: to_original_order(meta(10, 2), torch.arange(10))),
        ("node_map", lambda _: to_original_order(torch.ones(10), meta(10))),
        ("ids", lambda _: IdMap(torch.arange(10).numpy(), torch.arange(10).numpy()).to_new(meta(3))),
        ("edge_index", lambda _: Topology(meta(2, 20), num_nodes=10)),
        ("edge_ids", lambda _: Topology(EDGES, num_nodes=10, edge_ids=meta(20))),
        ("edge_weight", lambda _: Topology(EDGES, num_nodes=10, edge_weight=meta(20))),
        ("edge_index", lambda _: Dataset().init_graph(meta(2, 20))),
        ("node_features", lambda _: Dataset.from_arrays(EDGES, 10).init_node_features(meta(10, 3))),
        ("input_nodes", lambda _: NeighborLoader(TIMED, [2], input_nodes=meta(4))),
        ("x of data", lambda _: NeighborLoader(Data(edge_index=EDGES, x=meta(10, 3), num_nodes=10), [2])),
        ("input_nodes", lambda _: NeighborLoader(TIMED, [2], input_nodes=meta(10, dtype=torch.bool))),
        (
            "input_time",
            lambda _: NeighborLoader(TIMED, [2], input_nodes=torch.arange(4), input_time=meta(4), time_attr="time"),
        ),
        ("edge_label_index", lambda _: LinkNeighborLoader(TIMED, [2], edge_label_index=meta(2, 4))),
        ("edge_label", lambda _: LinkNeighborLoader(TIMED, [2], **SEEDS, edge_label=meta(4))),
        (
            "src_weight of neg_sampling",
            lambda _: LinkNeighborLoader(
                TIMED, [2], **SEEDS, neg_sampling=NegativeSampling("binary", 1.0, src_weight=meta(10))
            ),
        ),
        ("seeds", lambda _: NeighborSampler(TIMED, [2]).sample_prob(meta(4), 10)),
    ],
)
def test_tensors_on_the_meta_device_are_named(tmp_path, name, make):
    with pytest.raises(ValueError) as caught:
        make(tmp_path / "parts")
    assert str(caught.value).startswith(f"{name} is a tensor [") and "on the meta device" in str(caught.value)
