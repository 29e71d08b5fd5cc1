"""Graphs, features and their sources."""

from glt.data.dataset import Dataset
from glt.data.device_group import DeviceGroup
from glt.data.feature import Feature
from glt.data.graph import Graph
from glt.data.schema import HOMOGENEOUS, Schema
from glt.data.topology import Topology
from glt.data.window_gather import WindowGather

__all__ = ["HOMOGENEOUS", "Dataset", "DeviceGroup", "Feature", "Graph", "Schema", "Topology", "WindowGather"]
