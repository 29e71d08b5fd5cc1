"""The page's program with PyTorch Lightning: two trainers, whole runs and runs that go on within an epoch."""

import ast
import os
import uuid
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from launch_world import expect_none_marked, mark_of

from glt.data.synthetic import synthetic_graph
from glt.loader import NeighborLoader
from glt.partition import RandomPartitioner

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "lightning.md"
NUM_BATCHES, STOPPED = 10, 6  # of a trainer and epoch; of the second epoch before the checkpoint
CHECKPOINT = f"checkpoints/epoch=1-step={NUM_BATCHES + STOPPED}.ckpt"

BEFORE = """\
import os, sys
import torch
from glt.data.synthetic import synthetic_graph
"""

# Writes the seeds of each batch, and trains.
AFTER = """
task = synthetic_graph(2000, num_classes=4)


class InProcess(lightning.LightningDataModule):
    data = task.to_pyg()

PAGE_METHOD


def step(self, batch, number):
    with open(f"{sys.argv[2]}.{self.global_rank}", "a") as file:
        print(self.current_epoch, number, batch.input_id.tolist(), file=file)
    return taught(self, batch, number)


taught, Sage.training_step = Sage.training_step, step
whole = lightning.Trainer
options = dict(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
lightning.Trainer = lambda **given: whole(**given | options)
if sys.argv[3] == "without":
    glt.lightning.LoaderCheckpoint = lightning.pytorch.callbacks.Callback
InProcess.data.train_mask = torch.zeros(task.num_nodes, dtype=torch.bool)
InProcess.data.train_mask[:640] = True
if sys.argv[1] == "in process":
    Partition = lambda *given: InProcess()
seeds = torch.arange(1000)
trainer = train("parts", seeds[:640], seeds[640:], task.x.shape[1], 4, *sys.argv[4:])
if sys.argv[1] != "in process":
    assert trainer.callback_metrics["accuracy"] > 0.6, trainer.callback_metrics
"""


def program():
    method, whole = (block.split("\n```")[0] for block in PAGE.read_text().split("```python\n")[1:])
    method = "\n".join("    " + line for line in method.splitlines()).replace("batch_size=128", "batch_size=32")
    for before, after in {"share, 64,": "share, 32,", "every_n_train_steps=100": "every_n_train_steps=2"}.items():
        assert whole.count(before) == 1, before
        whole = whole.replace(before, after)
    return BEFORE + whole + AFTER.replace("PAGE_METHOD", method)


@pytest.fixture(scope="module")
def train(start, tmp_path_factory):
    """Runs the program once; gives its result, its folder and the batches of each trainer."""
    if find_spec("lightning") is None:
        pytest.skip("no PyTorch Lightning here: pip install lightning")
    folder, mark = tmp_path_factory.mktemp("lightning"), uuid.uuid4().hex
    task = synthetic_graph(2000, num_classes=4)
    tables = {"node_feat": task.x, "node_label": task.y, "edge_assign_strategy": "by_dst"}
    RandomPartitioner(folder / "parts", 2, task.num_nodes, task.edge_index, **tables).partition()
    (folder / "program.py").write_text(program())

    def run(kind, log, callback, *checkpoint):
        (folder / kind).mkdir(exist_ok=True)
        if not (folder / kind / "parts").exists():
            os.symlink(folder / "parts", folder / kind / "parts")
        words = [folder / "program.py", kind, log, callback, *checkpoint]
        paths = os.pathsep.join([str(PAGE.parents[2]), os.environ.get("PYTHONPATH", "")])
        done = start(*words, folder=folder / kind, PYTHONPATH=paths, **mark_of(mark))
        said = [folder / kind / f"{log}.{rank}" for rank in range(2)]
        return done, [path.read_text().splitlines() if path.exists() else [] for path in said]

    yield run
    expect_none_marked(mark)


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["partitions", "in process"])
def test_training_goes_on_within_the_epoch(train, kind):
    done, whole = train(kind, "whole", "with")
    assert done.returncode == 0, done.stdout + done.stderr
    for lines in whole:
        assert [line.split(" ", 2)[:2] for line in lines] == [[str(e), str(n)] for e in (0, 1) for n in range(10)]
    for epoch in range(2):
        of_epoch = [line.split(" ", 2)[2] for lines in whole for line in lines if line.startswith(f"{epoch} ")]
        seeds = sorted(seed for text in of_epoch for seed in ast.literal_eval(text))
        # input_id is a position in a trainer's own seeds, of partitions; in process all have the same.
        assert seeds == (sorted([*range(320)] * 2) if kind == "partitions" else [*range(640)])
    done, rest = train(kind, "rest", "with", CHECKPOINT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rest == [lines[NUM_BATCHES + STOPPED :] for lines in whole]


@pytest.mark.integration
def test_a_checkpoint_without_the_callback_is_refused(train):
    done, _ = train("without", "whole", "without")
    assert done.returncode == 0, done.stdout + done.stderr
    done, _ = train("without", "rest", "without", CHECKPOINT)
    assert done.returncode != 0 and "ValueError: state: seeds_crc32" in done.stdout + done.stderr
    done, _ = train("without", "rest", "with", CHECKPOINT)
    assert done.returncode != 0
    assert "the checkpoint was written without LoaderCheckpoint, and there are 2" in done.stdout + done.stderr


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")  # of Lightning
@pytest.mark.parametrize(
    ("kept", "is_given", "limits"),
    [
        ({"every_n_epochs": 1}, True, {}),
        ({"every_n_epochs": 1}, True, {"limit_train_batches": 2}),  # which a loader does not know of
        ({"every_n_train_steps": 3}, False, {}),  # the callback may be left out later
    ],
)
def test_one_trainer_goes_on_at_any_checkpoint(tmp_path, kept, is_given, limits):
    lightning = pytest.importorskip("lightning", reason="no PyTorch Lightning here: pip install lightning")
    from glt.lightning import LoaderCheckpoint

    data = synthetic_graph(200, num_classes=4).to_pyg()

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.linear, self.seeds = torch.nn.Linear(data.x.shape[1], 1), []

        def training_step(self, batch, batch_idx):
            self.seeds += [(self.current_epoch, name, each.input_id.tolist()) for name, each in batch.items()]
            return sum(self.linear(each.x).mean() for each in batch.values())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def train(callbacks, ckpt_path=None):
        given = {"batch_size": 10, "shuffle": True, "random_seed": 3}
        loaders = {f"of {num}": NeighborLoader(data, [2], torch.arange(num), **given) for num in (50, 30)}
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        quiet["enable_checkpointing"] = ckpt_path is None
        model = Model()
        trainer = lightning.Trainer(max_epochs=3, callbacks=callbacks, **quiet, **limits)
        trainer.fit(model, loaders, ckpt_path=ckpt_path)
        return model.seeds

    checkpoints = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, **kept)
    whole = train([checkpoints, LoaderCheckpoint()])
    paths = sorted(tmp_path.iterdir(), key=lambda path: int(path.stem.rpartition("=")[2]))
    for path in paths[:2]:
        num_batches = int(path.stem.rpartition("=")[2])
        rest = train([LoaderCheckpoint()] if is_given else [], path)
        assert rest == whole[2 * num_batches :]


@pytest.mark.integration
def test_the_callback_refuses_another_number_of_trainers():
    pytest.importorskip("lightning", reason="no PyTorch Lightning here: pip install lightning")
    from glt.lightning import LoaderCheckpoint

    trainer = SimpleNamespace(world_size=1, global_rank=0)
    fit = {"state_dict": {"combined_loader": ["state"]}}
    checkpoint = {"loops": {"fit_loop": fit}}
    callback = LoaderCheckpoint()
    callback.on_save_checkpoint(trainer, None, checkpoint)
    callback.on_load_checkpoint(trainer, None, checkpoint)
    assert fit["state_dict"]["combined_loader"] == ["state"]
    with pytest.raises(RuntimeError, match="was written by 1 trainers, and there are 2 trainers"):
        callback.on_load_checkpoint(SimpleNamespace(world_size=2, global_rank=1), None, checkpoint)
    callback.on_load_checkpoint(trainer, None, {"loops": {"fit_loop": fit}})  # of one trainer, without it
