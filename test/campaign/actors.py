"""A cluster of processes that do what the campaign tells them, by name."""

import time

from glt.testing.cluster import Cluster

_GOES_ON_S = 60.0


def act(trainer, kind):
    module, _, name = kind.partition(".")
    actor = getattr(__import__(module), name)(trainer)
    while (told := trainer.hear(24 * 3600.0)) is not None:
        name, args, given = told
        try:
            trainer.say((True, getattr(actor, name)(*args, **given)))
        except BaseException as error:
            trainer.say((False, f"{type(error).__name__}: {error}"))


class Actors(Cluster):
    """``count`` processes, each with an actor, a class named ``module.class``."""

    def __init__(self, count: int, kind: str, deadline_s: float) -> None:
        super().__init__(count, act, kind, deadline_s=deadline_s)

    def ask(self, actor: int, method: str, *args, **given):
        self.say(actor, (method, args, given))
        is_good, value = self.hear(actor)
        if not is_good:
            raise AssertionError(f"actor {actor}, {method}: {value}")
        return value

    def expect_progress(self, actor: int, more: int = 20) -> None:
        """What an actor counts grows."""
        before, until = self.ask(actor, "counted"), time.monotonic() + _GOES_ON_S
        while (now := self.ask(actor, "counted")) < before + more:
            assert time.monotonic() < until, f"actor {actor} went from {before} to {now} within {_GOES_ON_S:g} s"
            time.sleep(0.05)

    def end(self) -> None:
        """All go home, and nothing is left of them."""
        for actor in range(self.world_size):
            self.say(actor, None)
        self.results()
        self.expect_nothing_left()
