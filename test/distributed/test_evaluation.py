"""Metrics of all trainers together are those of one process that has seen everything."""

import datetime
import math
import random
import time

import pytest
import torch
import torch.distributed as dist
from dist_world import hear_all, run_cluster, say_all

from glt.distributed import gather_metrics
from glt.testing.cluster import Cluster

NUM_CLASSES = 4
SIZES = (7, 0, 30)  # of the shares of three trainers


def scores():
    return torch.rand(sum(SIZES), NUM_CLASSES, generator=torch.Generator().manual_seed(0))


def truth():
    return torch.randint(0, NUM_CLASSES, (sum(SIZES),), generator=torch.Generator().manual_seed(1))


def f1(y_pred, y_true):
    """Of class 1: not the mean of anything, so only all predictions together give it."""
    found = y_pred.argmax(-1) == 1
    right = (found & (y_true == 1)).sum()
    return 2 * right / (found.sum() + (y_true == 1).sum())


def accuracy(y_pred, y_true):
    return (y_pred.argmax(-1) == y_true).sum().item() / len(y_true)


def first_score(y_pred, y_true):
    return float(y_pred[0, 0])


def broken(y_pred, y_true):
    raise ArithmeticError("no such metric")


def join(trainer):
    place = {"rank": trainer.rank, "world_size": trainer.world_size, "timeout": datetime.timedelta(minutes=5)}
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{trainer.port}", **place)


def raised(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def gather_all(trainer):
    join(trainer)
    begin = sum(SIZES[: trainer.rank])
    mine = slice(begin, begin + SIZES[trainer.rank])
    y_pred, y_true = scores()[mine], truth()[mine]
    if trainer.rank == 1:
        y_pred = torch.empty(0)  # it has seen nothing, not even how many classes there are
    loss = (scores()[mine].sum() / len(y_true)).item() if len(y_true) else math.nan
    seen = {
        "accuracy": gather_metrics(y_pred=y_pred, y_true=y_true),
        "given": gather_metrics(
            {"loss": loss},
            sums={"edges": 10**15 + trainer.rank, "s": torch.tensor(0.5)},
            y_pred=y_pred,
            y_true=y_true,
            metrics={"f1": f1, "first": first_score},
        ),
        "means": gather_metrics({"loss": loss}, count=SIZES[trainer.rank]),
        "nothing": gather_metrics({"loss": math.nan}, count=0, y_pred=y_pred[:0], y_true=y_true[:0]),
    }
    bfloat = gather_metrics(y_pred=y_pred.bfloat16(), y_true=y_true, metrics={"first": first_score})
    seen["bfloat16"] = bfloat["first"]
    seen["broken"] = raised(lambda: gather_metrics(y_pred=y_pred, y_true=y_true, metrics={"broken": broken}))
    seen["other names"] = raised(lambda: gather_metrics({f"loss{trainer.rank // 2}": 0.0}, count=1))
    seen["bad"] = raised(lambda: gather_metrics({"loss": "high" if trainer.rank == 2 else 0.0}, count=1))
    seen["shapes"] = raised(
        lambda: gather_metrics(y_pred=y_pred[:, :2] if trainer.rank == 2 else y_pred, y_true=y_true, metrics={"f1": f1})
    )
    seen["after"] = gather_metrics(sums={"ranks": trainer.rank})
    dist.destroy_process_group()
    return seen


def test_shares_of_any_size_give_what_the_whole_gives():
    results = run_cluster(3, gather_all, preload=("glt.distributed",))
    whole = gather_metrics(y_pred=scores(), y_true=truth(), metrics={"f1": f1, "first": first_score})
    y_pred, y_true = scores(), truth()
    for rank, seen in enumerate(results):
        assert seen["accuracy"] == {"accuracy": accuracy(y_pred, y_true), "count": 37}
        given = seen["given"]
        assert {name: given[name] for name in whole} == whole, "to the bit"
        assert given["edges"] == 3 * 10**15 + 3 and given["s"] == 1.5
        assert given["loss"] == pytest.approx(y_pred.sum().item() / 37, rel=1e-6)
        assert seen["means"] == {"loss": given["loss"], "count": 37}
        assert math.isnan(seen["nothing"]["loss"]) and math.isnan(seen["nothing"]["accuracy"])
        assert seen["bfloat16"] == float(scores()[0, 0].bfloat16())
        assert seen["broken"][0] == ("ArithmeticError" if rank == 0 else "RemoteError")
        assert "no such metric" in seen["broken"][1]
        assert (
            seen["other names"][0] == "RendezvousError"
            and "gathers other metrics than trainer" in seen["other names"][1]
        )
        kind, text = seen["bad"]
        assert "means['loss'] = 'high': expected a number" in text
        assert kind == ("TypeError" if rank == 2 else "RendezvousError")
        assert rank == 2 or text.startswith("trainer 2 has called gather_metrics in vain: TypeError: ")
        assert "y_pred has rows [2] of torch.float32 on one trainer and [4]" in seen["shapes"][1]
        assert seen["after"] == {"ranks": 3}, "errors leave all trainers at the same place"


def come_or_not(trainer):
    join(trainer)
    dist.barrier()
    found = "", ""
    if trainer.rank != 1:  # which is alive, but elsewhere
        found = raised(lambda: gather_metrics(sums={"x": 1}, timeout_s=4))
    trainer.say("done")
    trainer.hear()  # nobody leaves before all have said so
    return found


def test_who_does_not_come_is_named_and_nobody_waits_for_ever():
    with Cluster(3, come_or_not, preload=("glt.distributed",)) as cluster:
        hear_all(cluster)
        say_all(cluster)
        outcomes = cluster.results()
    kind, text = outcomes[0]
    assert kind == "PeerLost" and text.startswith("trainer 0 of 3 lost trainers 1 at gather_metrics: "), text
    assert "not all of them came within timeout_s = 4 s" in text and "raise timeout_s where they are still at" in text
    kind, text = outcomes[2]
    assert kind == "PeerLost" and "trainer 2 of 3 lost trainer 0, which says who is missing, at gather_m" in text, text


def test_one_process_is_all_trainers():
    assert gather_metrics({"loss": 2}, count=3) == {"loss": 2, "count": 3}
    assert gather_metrics(sums={"a": 1}) == {"a": 1}
    assert gather_metrics() == {}
    assert gather_metrics(y_pred=scores(), y_true=truth()) == {"accuracy": accuracy(scores(), truth()), "count": 37}
    classes = truth().clone()
    classes[:5] += 1
    assert gather_metrics(y_pred=classes, y_true=truth())["accuracy"] == 32 / 37
    with pytest.raises(ArithmeticError, match="no such metric"):
        gather_metrics(y_pred=scores(), y_true=truth(), metrics={"broken": broken})


def test_no_generator_is_touched():
    states = torch.get_rng_state(), random.getstate()
    gather_metrics(y_pred=scores(), y_true=truth())
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"means": {"loss": 1.0}}, ValueError, "means are given without count"),
        ({"means": {"loss": torch.ones(2)}, "count": 1}, TypeError, r"means\['loss'\] = .*: expected a number"),
        ({"means": [1.0], "count": 1}, TypeError, "means is a list: expected a dict"),
        ({"count": -1}, ValueError, "count = -1: expected 0 to .*, the number of items"),
        ({"y_pred": torch.ones(2)}, ValueError, "y_true is None, but the other is given"),
        ({"y_pred": torch.ones(2), "y_true": torch.ones(3)}, ValueError, "y_pred has 2 rows: expected .* 3"),
        ({"y_pred": [1], "y_true": torch.ones(1)}, TypeError, r"y_pred is \[1\]: expected a tensor"),
        ({"y_pred": torch.ones(2, 3), "y_true": torch.ones(2, 2)}, ValueError, r"y_pred has shape \[2, 3\] and y_true"),
        ({"metrics": {"f1": f1}}, ValueError, r"metrics = \['f1'\] need predictions"),
        ({"y_pred": torch.ones(2), "y_true": torch.ones(2), "metrics": [f1]}, TypeError, "expected a dict"),
        ({"y_pred": torch.ones(2), "y_true": torch.ones(2), "metrics": {"f1": 3}}, TypeError, "metrics = .*: expected"),
        ({"sums": {"count": 1}, "count": 1}, ValueError, "'count' is the name of two results"),
        ({"timeout_s": 0}, ValueError, "timeout_s = 0: expected a number, above 0"),
    ],
)
def test_what_cannot_be_gathered_is_an_error_that_names_it(arguments, error, message):
    with pytest.raises(error, match=message):
        gather_metrics(**arguments)


def die_or_gather(trainer):
    join(trainer)
    gather_metrics(sums={"x": 1})
    trainer.say("joined")
    if trainer.rank == 1:
        trainer.hear()  # until it is killed
    start = time.monotonic()
    return *raised(lambda: gather_metrics(sums={"x": 1}, timeout_s=200)), time.monotonic() - start


def test_a_killed_trainer_ends_the_others_long_before_the_deadline():
    with Cluster(3, die_or_gather, preload=("glt.distributed",)) as cluster:
        hear_all(cluster)
        cluster.kill(1)
        outcomes = cluster.outcomes()
    for rank in (0, 2):
        kind, text, seconds = outcomes[rank].value
        lost = "trainers 1" if rank == 0 else "trainer 0, which says who is missing,"
        assert kind == "PeerLost" and f"trainer {rank} of 3 lost {lost} at gather_metrics" in text, text
        assert seconds < 60, "of 200"
