"""Graphs, features and their sources."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt.data.dataset import Dataset, Graph
    from glt.data.device import DeviceGroup
    from glt.data.disk import DiskFeature
    from glt.data.feature import Feature
    from glt.data.keys import KeyMap, KeyMaps
    from glt.data.packing import Packing
    from glt.data.schema import HOMOGENEOUS, Schema
    from glt.data.topology import Topology

__all__ = [
    "HOMOGENEOUS",
    "Dataset",
    "DeviceGroup",
    "DiskFeature",
    "Feature",
    "Graph",
    "KeyMap",
    "KeyMaps",
    "Packing",
    "Schema",
    "Topology",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "dataset": ["Dataset", "Graph"],
        "device": ["DeviceGroup"],
        "disk": ["DiskFeature"],
        "feature": ["Feature"],
        "keys": ["KeyMap", "KeyMaps"],
        "packing": ["Packing"],
        "schema": ["HOMOGENEOUS", "Schema"],
        "topology": ["Topology"],
    },
)
