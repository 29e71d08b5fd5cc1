"""The numbers of loaders where people look at them: TensorBoard, Weights & Biases, the loggers of Lightning."""

import importlib.util
import pickle
import re
import warnings
from pathlib import Path

import pytest
import torch

import glt
from glt.data.synthetic import synthetic_graph
from glt.lightning import StatsCallback
from glt.loader import NeighborLoader, Stats

TASK = synthetic_graph(500)
PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "stats.md").read_text()


def make_loader(num_seeds=40, **options):
    return NeighborLoader(TASK.to_pyg(), [2], torch.arange(num_seeds), batch_size=10, **options)


def run_block(word, leave_out="", **names):
    (code,) = [code for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S) if word in code]
    exec(compile(code.replace(leave_out, ""), "stats.md", "exec"), names)
    return names


def test_scalars_are_the_numbers_by_flat_names():
    server = Stats(server="a", uptime_s=2, is_draining=False, totals={"num_batches": 3}, workers={"0": {"pid": None}})
    assert server.scalars() == {"glt/uptime_s": 2.0, "glt/is_draining": 0.0, "glt/totals/num_batches": 3.0}
    loader = make_loader()
    assert "glt/batches_per_s" not in loader.stats().scalars(), "nothing was timed"
    list(loader)
    stats = loader.stats()
    found = stats.scalars("train/")
    assert all(type(value) is float for value in found.values())
    assert found.pop("train/batches_per_s") == 4 / stats["epoch_s"]
    assert found.pop("train/wait_ratio") == stats["wait_s"] / stats["epoch_s"]
    assert found == {f"train/{name}": value for name, value in stats.items()}
    with pytest.raises(TypeError, match=r"prefix = 3: expected text, such as 'train/'"):
        stats.scalars(3)


@pytest.mark.skipif(importlib.util.find_spec("lightning") is not None, reason="Lightning is installed here")
@pytest.mark.skipif(importlib.util.find_spec("pytorch_lightning") is not None, reason="Lightning is installed here")
def test_without_lightning_the_callback_says_what_to_install():
    with pytest.raises(ModuleNotFoundError, match="StatsCallback needs PyTorch Lightning: pip install lightning"):
        StatsCallback()


@pytest.mark.integration
def test_the_page_logs_to_tensorboard(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="no TensorBoard here: pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    run_block("SummaryWriter", loader=make_loader())
    events = EventAccumulator("runs/first").Reload()
    assert set(events.Tags()["scalars"]) == set(
        make_loader().stats().scalars() | {"glt/batches_per_s": 0, "glt/wait_ratio": 0}
    )
    assert [(each.step, each.value) for each in events.Scalars("glt/num_batches")] == [(0, 4), (1, 4), (2, 4)]


@pytest.mark.integration
def test_the_page_logs_to_weights_and_biases(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="no Weights & Biases here: pip install wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = run_block("wandb", leave_out="run.finish()\n", loader=make_loader())["run"]
    summary = dict(run.summary)  # of what was logged last
    run.finish()
    assert summary["glt/num_batches"] == 4 and 0 < summary["glt/wait_ratio"] <= 1


# -- Lightning ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["lightning", "pytorch_lightning"])
def lightning(request):
    reason = f"no {request.param} here: pip install lightning pytorch-lightning"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield pytest.importorskip(request.param, reason=reason)


def model_of(lightning):
    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(TASK.x.shape[1], 2)

        def training_step(self, batch, batch_idx):
            batches = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list) else [batch]
            return sum(self.linear(each.x).square().mean() for each in batches)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Model()


def logged(lightning, folder, callback, loaders, resumed=None, **options):
    """What a real trainer wrote, in order: (step, numbers)."""
    loggers = lightning.pytorch.loggers if hasattr(lightning, "pytorch") else lightning.loggers

    found = []

    class Kept(loggers.CSVLogger):
        def log_metrics(self, metrics, step=None):
            found.append((step, metrics))

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    options = {"max_epochs": 2, "logger": Kept(folder), "accelerator": "cpu", "log_every_n_steps": 1} | options
    trainer = lightning.Trainer(callbacks=[callback], default_root_dir=folder, **quiet | options)
    trainer.fit(model_of(lightning), loaders, **resumed or {})
    return found


@pytest.mark.integration
def test_lightning_logs_each_epoch(lightning, tmp_path):
    loader = make_loader(50, shuffle=True)
    list(loader)  # what was before the training is not logged
    epochs = logged(lightning, tmp_path, StatsCallback(), loader)
    counts = [(step, found["glt/num_batches"], found["glt/num_seeds"]) for step, found in epochs]
    assert counts == [(5, 5, 50), (10, 5, 50)]
    assert sum(found["glt/wait_s"] for _, found in epochs) < loader.stats()["wait_s"]
    assert all(0 < found["glt/wait_ratio"] < 1 for _, found in epochs)


@pytest.mark.integration
def test_lightning_logs_every_so_many_batches_of_several_loaders(lightning, tmp_path):
    other = torch.utils.data.DataLoader([TASK.to_pyg()] * 7, collate_fn=lambda batch: batch[0])
    loaders = {"users": make_loader(70), "items": make_loader(70), "other": other}
    steps = logged(lightning, tmp_path, StatsCallback(every_n_batches=3), loaders)
    assert [(step, found["glt/users/num_batches"], found["glt/items/num_batches"]) for step, found in steps] == [
        (3, 3, 3), (6, 3, 3), (7, 1, 1), (10, 3, 3), (13, 3, 3), (14, 1, 1)
    ]  # fmt: skip
    assert not any("other" in name for _, found in steps for name in found)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("every", "expected"), [(None, [(5, 3), (10, 5)]), (2, [(4, 2), (5, 1), (7, 2), (9, 2), (10, 1)])]
)
def test_lightning_logs_an_epoch_that_is_gone_on_with(lightning, tmp_path, every, expected):
    callbacks = lightning.pytorch.callbacks if hasattr(lightning, "pytorch") else lightning.callbacks
    checkpoints = callbacks.ModelCheckpoint(tmp_path, "within", every_n_train_steps=2, save_top_k=-1)
    given = {"enable_checkpointing": True, "logger": False, "max_steps": 3}
    logged(lightning, tmp_path, checkpoints, make_loader(50), **given)
    resumed = {"ckpt_path": tmp_path / "within.ckpt"}
    steps = logged(lightning, tmp_path, StatsCallback(every), make_loader(50), resumed)
    assert [(step, found["glt/num_batches"]) for step, found in steps] == expected


@pytest.mark.integration
def test_lightning_is_told_what_is_wrong(lightning, tmp_path):
    with pytest.raises(ValueError, match="logger = False of the Trainer, and callbacks has StatsCallback"):
        logged(lightning, tmp_path, StatsCallback(), make_loader(), logger=False)
    plain = torch.utils.data.DataLoader([TASK.to_pyg()], collate_fn=lambda batch: batch[0])
    with pytest.raises(TypeError, match="train_dataloaders has type DataLoader, without stats"):
        logged(lightning, tmp_path, StatsCallback(), plain)
    with pytest.raises(ValueError, match="every_n_batches = 0"):
        StatsCallback(0)


@pytest.mark.integration
def test_the_page_logs_in_lightning(lightning, tmp_path, monkeypatch):
    if lightning.__name__ != "lightning":
        pytest.skip("the page is of the package lightning")
    monkeypatch.chdir(tmp_path)
    trainer = run_block("lightning.Trainer", glt=glt, model=model_of(lightning), loader=make_loader())["trainer"]
    assert trainer.current_epoch == 3 and (tmp_path / "lightning_logs").is_dir()


@pytest.mark.integration
def test_the_callback_goes_to_other_processes(lightning):
    assert repr(pickle.loads(pickle.dumps(StatsCallback(2)))) == "StatsCallback(every 2 batches)"
    assert repr(StatsCallback()) == "StatsCallback(each epoch)"
