"""Which sampling processes have malloc keep what was freed: none that may register memory with CUDA.

Those need large tensors to have their pages for themselves.
"""

from dataclasses import fields

import pytest

from glt.distributed.engine.worker import WorkerSpec
from glt.distributed.server import pool_worker
from glt.distributed.server.pool import PoolWorkerSpec


@pytest.mark.parametrize(("device", "keeps"), [("cpu", True), ("host", True), ("cuda:0", False), ("cuda:1", False)])
def test_workers_of_a_trainer(device, keeps):
    spec = {**dict.fromkeys(each.name for each in fields(WorkerSpec)), "device": device}
    assert WorkerSpec(**spec).keeps_freed_memory == keeps


@pytest.mark.parametrize(
    ("graph_mode", "missing", "may"),
    [("CPU", None, False), ("ZERO_COPY", None, True), ("CUDA", None, True), ("ZERO_COPY", "there is no GPU", False)],
)
def test_samplers_of_a_server(monkeypatch, graph_mode, missing, may):
    """Whatever GPU a loader will ask for."""
    monkeypatch.setattr(pool_worker, "missing_for_cuda", lambda: missing)
    spec = PoolWorkerSpec(0, 0, {"graph_mode": graph_mode, "device": "host"}, 1, 1, 1.0, 20, "text")
    assert pool_worker.may_use_gpu(spec) == may
