"""RelBench's own example scripts with their loaders and with glt's: only the imports of the loaders are replaced.

Claims: the scripts train to the same metrics within the noise of seeds; an epoch of the loaders takes less CPU.

Method: ``gnn_entity.py`` and ``gnn_recommendation.py`` of a checkout of RelBench 2, which wants that version installed,
on the database of ``examples/relbench``. Each run is a process of its own; loaders take turns, seed by seed. ``script``
is the whole script behind its imports: graph, training, evaluation. ``epoch`` is one more epoch of the training loader
alone, with nothing trained. PyG's loaders want pyg-lib, which has to be built, see README.md.

    python -m benchmarks.bench_relbench --checkout DIR [--rounds 5] [--toy]
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import types
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._harness import Report, arguments, find_peers, in_fresh_process, require

SHOP = Path(__file__).parents[1] / "examples/relbench"
OURS = {
    "from torch_geometric.loader import NeighborLoader": "from glt.loader import NeighborLoader",
    "from relbench.modeling.loader import LinkNeighborLoader": (
        "from glt.loader import RelBenchLinkNeighborLoader as LinkNeighborLoader"
    ),
}
SCRIPTS = {"gnn_entity.py": ("stays", "roc_auc"), "gnn_recommendation.py": ("buys", "link_prediction_map")}


def trained(checkout: str, script: str, is_ours: bool, words: list[str]) -> dict[str, float]:
    """Runs a script in this process; returns its metrics, and what it and its loader took."""
    text = Path(checkout, "examples", script).read_text()
    for theirs, ours in OURS.items():
        text = text.replace(theirs, ours) if is_ours else text
    sys.path[:0] = [str(Path(checkout, "examples")), str(SHOP)]
    sys.argv = [script, *words]
    # The scripts want a model of words for text, which the shop has none of.
    sys.modules["sentence_transformers"] = types.ModuleType("sentence_transformers")
    sys.modules["sentence_transformers"].SentenceTransformer = lambda *_, **__: None  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as cache, open(os.devnull, "w") as nowhere:
        sys.argv += ["--cache_dir", cache]
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            _register_shop(cache)
            named: dict[str, Any] = {"__name__": "__main__"}
            start, cpu = time.perf_counter(), time.process_time()
            exec(compile(text, script, "exec"), named)
            took = {"script_s": time.perf_counter() - start, "script_cpu_s": time.process_time() - cpu}
        loader = named["train_loader"] if "train_loader" in named else named["loader_dict"]["train"]
        require(type(loader).__module__.startswith("glt.") == is_ours, f"{script} has a loader of {type(loader)}")
        start, cpu = time.perf_counter(), time.process_time()
        num_batches = sum(1 for _ in loader)
        took |= {"epoch_s": time.perf_counter() - start, "epoch_cpu_s": time.process_time() - cpu}
    metric = SCRIPTS[script][1]
    scores = {split: float(named[f"{split}_metrics"][metric]) for split in ("val", "test")}
    return {"batches": num_batches, **scores, **took}


def _register_shop(cache: str) -> None:
    from relbench.base import TaskType
    from relbench.datasets import register_dataset
    from relbench.metrics import link_prediction_map
    from relbench.tasks import register_task

    TaskType.RECOMMENDATION = TaskType.LINK_PREDICTION  # type: ignore[attr-defined]  # RelBench 3's name
    from shop import Buys, Shop, Stays

    Buys.metrics = [link_prediction_map]
    register_dataset("rel-shop", Shop, cache_dir=f"{cache}/db")
    for name, task in (("stays", Stays), ("buys", Buys)):
        register_task("rel-shop", name, task, cache_dir=f"{cache}/{name}")


def main() -> None:
    options = arguments(__doc__, rounds=5, checkout={"help": "RelBench 2's repository, which has the scripts"})
    report, found = Report("relbench", options.toy), defaultdict(list)
    peers = find_peers("relbench.tasks", "torch_frame", "pyg_lib")
    if options.checkout is None or "relbench.tasks" not in peers or "torch_frame" not in peers:
        print("no scripts: expected --checkout DIR, a repository of RelBench 2, and pip install 'relbench<3'")
        return
    loaders = ["glt", "pyg"] if "pyg_lib" in peers else ["glt"]
    words = "--dataset rel-shop --no-download --channels 32 --num_neighbors 32 --batch_size 256 --epochs".split()
    for seed in range(options.rounds):
        for script, (task, _) in SCRIPTS.items():
            epochs = 1 if options.toy else 2 if task == "stays" else 3
            for loader in loaders:
                more = [*words, str(epochs), "--task", task, "--seed", str(seed)]
                run = in_fresh_process(trained, options.checkout, script, loader == "glt", more)
                found[script, loader].append(run)
                print(f"{script} {loader} seed {seed}: {run}", flush=True)
    for (script, loader), runs in found.items():
        scores = {}
        for split in ("val", "test"):
            each = [run[split] for run in runs]
            scores |= {split: float(np.mean(each)), f"{split}_sd": float(np.std(each, ddof=min(1, len(each) - 1)))}
        took = {name: float(np.median([run[name] for run in runs])) for name in runs[0] if name.endswith("_s")}
        report.add(script=script, loader=loader, seeds=len(runs), batches=runs[0]["batches"], **scores, **took)
    report.finish()


if __name__ == "__main__":
    main()
