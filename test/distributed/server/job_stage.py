"""Jobs of servers and trainers on a stage of actors, each started as a script would be."""

import os
import time
from contextlib import contextmanager

from service_actors import Stage

import glt


def scale(factor, values):
    return factor * values


def take_part(env, **given):
    for name in [name for name in os.environ if name.startswith(("GLT_", "TORCHELASTIC"))]:
        if name != "GLT_TEST_CLUSTER":
            del os.environ[name]
    os.environ.update(env)
    glt.distributed.register_server_function(scale, "scale")
    try:
        glt.distributed.initialize(**given)
    except SystemExit as ended:  # a server
        assert ended.code == 0
        return -1, 0
    return glt.distributed.get_rank(), glt.distributed.num_trainers()


def finalize(timeout_s=None):
    glt.distributed.finalize(timeout_s)
    glt.distributed.finalize()
    return time.monotonic()


def env_of(stage, role, num_servers, num_trainers, rank, path):
    shared = {
        "GLT_ROLE": role,
        "GLT_NUM_SERVERS": str(num_servers),
        "GLT_NUM_TRAINERS": str(num_trainers),
        "GLT_MASTER_ADDR": "127.0.0.1",
        "GLT_MASTER_PORT": str(stage.port),
        "GLT_PART_CONFIG": str(path),
        "WORLD_SIZE": str(num_trainers),
    }
    return shared | {"GLT_SERVER_RANK" if role == "server" else "RANK": str(rank)}


def begin_job(stage, path, num_servers, num_trainers):
    for rank in range(num_servers):
        env = env_of(stage, "server", num_servers, num_trainers, rank, path)
        stage.begin(rank, "run_function", take_part, env)
    for rank in range(num_trainers):
        env = env_of(stage, "trainer", num_servers, num_trainers, rank, path)
        stage.begin(num_servers + rank, "run_function", take_part, env)
    for rank in range(num_trainers):
        assert stage.result(num_servers + rank) == (rank, num_trainers)


class Job:
    """The trainers of a job; actors are its servers, then its trainers."""

    def __init__(self, stage, num_servers, num_trainers):
        self.stage, self.num_servers = stage, num_servers
        self.trainers = range(num_servers, num_servers + num_trainers)

    def begin(self, function, *args, ranked=False):
        """Begins a function on all trainers, with their ranks as the first argument if it is ``ranked``."""
        for rank, trainer in enumerate(self.trainers):
            self.stage.begin(trainer, "run_function", function, *((rank,) if ranked else ()), *args)

    def results(self):
        return [self.stage.result(trainer) for trainer in self.trainers]

    def run(self, function, *args, ranked=False):
        """What a function returns on each trainer, all at the same time."""
        self.begin(function, *args, ranked=ranked)
        return self.results()


@contextmanager
def job_of(path, num_servers, num_trainers):
    """A job over a partition directory; in the end all leave, and leave nothing behind."""
    with Stage(num_servers + num_trainers) as stage:
        begin_job(stage, path, num_servers, num_trainers)
        job = Job(stage, num_servers, num_trainers)
        yield job
        for trainer in job.trainers:
            stage.ask(trainer, "run_function", finalize)
        stage.end(*range(num_servers + num_trainers))
        stage.expect_nothing_left()
