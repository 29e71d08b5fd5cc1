"""Puts this folder on the path of every test, and has trainers' sampling processes forked: see forked.py."""

import os
from pathlib import Path

from glt.testing.cluster import Cluster

Cluster.__init__.__kwdefaults__["preload"] += ("forked_trainers",)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parent)]))
