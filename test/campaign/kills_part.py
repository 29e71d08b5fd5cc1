"""Kills and freezes of each kind of process, at random times: what depended on it goes on, or fails in time and by
name, as docs/errors.md says; all batches are right, and nothing is left behind."""

import tempfile
import threading
from collections import Counter, deque
from pathlib import Path

from dist_world import write_world
from score import Clock, Score
from service_kills import Service
from trainer_kills import lose_sampler, lose_trainer

NUM_KILLS, NUM_FREEZES = 100, 30  # of each role in each mode, if there is time
_NUM_LANES = 2  # of trainers, and as many of servers: tries at a time, mostly of waiting
_TOY = "worker mode: sampling process killed", "server mode: sampling process killed", "server mode: client killed"


def run(score: Score, clock: Clock, most: int, is_toy: bool) -> None:
    kills, freezes = (1, 0) if is_toy else (min(most, NUM_KILLS), min(most, NUM_FREEZES))
    with tempfile.TemporaryDirectory() as folder:
        world = write_world(Path(folder), 2)
        trainers = {
            "worker mode: trainer": lose_trainer(world, "mp"),
            "worker mode: sampling process": lose_sampler(world),
            "collocated mode: trainer": lose_trainer(world, "collocated"),
        }
        servers = {
            "server mode: server": Service.lose_server,
            "server mode: sampling process": Service.lose_sampler,
            "server mode: client": Service.lose_client,
        }
        lanes, left = [], []
        for roles in (trainers, servers):
            tries: deque = deque()  # in turn, so that each has had its share whenever the time is over
            for number in range(max(kills, freezes)):
                for word, is_kill, count in (("frozen", False, freezes), ("killed", True, kills)):
                    if number < count:
                        tries += [(f"{role} {word}", lose, number, is_kill) for role, lose in roles.items()]
            tries = deque(each for each in tries if score.wants(each[0]) and (each[0] in _TOY or not is_toy))
            for _ in range(min(len(tries), 1 if is_toy else _NUM_LANES)):
                service = Service(world) if roles is servers else None
                lanes.append(threading.Thread(target=_try_all, args=(score, clock, tries, service), daemon=True))
            left.append(tries)
        for each in lanes:
            each.start()
        for each in lanes:
            each.join()
    for name, count in Counter(each[0] for tries in left for each in tries).items():
        print(f"no time for {count} more of: {name}", flush=True)


def _try_all(score, clock, tries, service) -> None:
    """What each lane does."""
    where = () if service is None else (service,)
    while tries and not clock.is_over:
        name, lose, number, is_kill = tries.popleft()
        with score.trying(name):
            lose(*where, score.random(name, number), is_kill)
    if service is not None and service.is_running:
        with score.trying("server mode: nothing is left"):
            service.end()
