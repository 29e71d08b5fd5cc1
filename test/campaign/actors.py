"""A cluster of processes that do what the campaign tells them, by name."""

import contextlib
import itertools
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

from promptness import WITHIN_S, expect_prompt

from glt.testing.cluster import Cluster

_GOES_ON_S = 60.0
_numbers = itertools.count(1)


def act(trainer, kind):
    module, _, name = kind.partition(".")
    actor = getattr(__import__(module), name)(trainer)
    while (told := trainer.hear(24 * 3600.0)) is not None:
        name, args, given = told
        try:
            trainer.say((True, getattr(actor, name)(*args, **given)))
        except BaseException as error:
            trainer.say((False, f"{type(error).__name__}: {error}"))


class Pace:
    """Of what goes on for ever: slow, since others need the processor too, but for those rounds that are asked for."""

    def __init__(self, slow_s: float) -> None:
        self._slow_s, self._num_asked, self._asked = slow_s, 0, threading.Event()

    def ask(self, count: int) -> None:
        self._num_asked += count
        if count:
            self._asked.set()

    def wait(self) -> None:
        if self._num_asked > 0:
            self._num_asked -= 1
        else:
            self._asked.wait(self._slow_s)
            self._asked.clear()


def keep_output(cluster: Cluster, error: BaseException) -> None:
    """Keeps what the processes wrote, since something failed, and says where."""
    folder = Path(tempfile.gettempdir(), f"glt-campaign-{os.getpid()}")
    folder.mkdir(exist_ok=True)
    log, outputs = folder / f"{next(_numbers)}.log", map(cluster.output, range(cluster.world_size))
    log.write_text("\n---\n".join([f"{type(error).__name__}: {error}", *outputs]))
    print(f"what they wrote: {log}", flush=True)


class Actors(Cluster):
    """``count`` processes, each with an actor, a class named ``module.class``. What they wrote is kept if anything
    fails."""

    def __init__(self, count: int, kind: str, deadline_s: float) -> None:
        super().__init__(count, act, kind, deadline_s=deadline_s)
        self._made = contextlib.ExitStack()

    def enter(self, context):
        """Enters a context that ends with these processes."""
        return self._made.enter_context(context)

    def __exit__(self, kind, error, traceback) -> None:
        if error is not None:
            keep_output(self, error)
        super().__exit__(kind, error, traceback)
        self._made.close()

    def ask(self, actor: int, method: str, *args, **given):
        self.begin(actor, method, *args, **given)
        return self.answer(actor, method)

    def begin(self, actor: int, method: str, *args, **given) -> None:
        """Tells an actor to do something; :meth:`answer` waits for it."""
        self.say(actor, (method, args, given))

    def answer(self, actor: int, method: str):
        is_good, value = self.hear(actor)
        if not is_good:
            raise AssertionError(f"actor {actor}, {method}: {value}")
        return value

    def ask_all(self, actors, method: str, *args, **given) -> list:
        """Has several do something at the same time."""
        for actor in actors:
            self.begin(actor, method, *args, **given)
        return [self.answer(actor, method) for actor in actors]

    def expect_progress(self, *actors: int, more: int = 20) -> None:
        """What these actors count grows."""
        before, until = {actor: self.ask(actor, "counted", more) for actor in actors}, time.monotonic() + _GOES_ON_S
        while late := {actor: now for actor in before if (now := self.ask(actor, "counted")) < before[actor] + more}:
            assert time.monotonic() < until, f"counts of actors were {before}, and after {_GOES_ON_S:g} s are {late}"
            time.sleep(0.05)

    def expect_failure(self, actor: int, since_s: float, within_s: float, kinds, *words) -> None:
        """An actor's loader fails, with one of these exceptions that says these words, within ``within_s`` seconds and
        those that whatever happens at once may take."""
        until = time.monotonic() + 6 * (within_s + WITHIN_S)
        while (failure := self.ask(actor, "failure")) is None:
            assert time.monotonic() < until, f"actor {actor} has noticed nothing for {time.monotonic() - since_s:.0f} s"
            time.sleep(0.05)
        kind, text, at_s = failure
        assert kind in kinds and all(word in text for word in words), (
            f"actor {actor}: {kind}: {text}: expected {kinds} {words}"
        )
        expect_prompt(at_s - since_s, f"actor {actor} to notice", within_s + WITHIN_S)

    def end(self, but=()) -> None:
        """All but those that were killed go home, and nothing is left of them."""
        alive = [actor for actor in range(self.world_size) if actor not in but]
        for actor in alive:
            self.say(actor, None)
        outcomes = self.outcomes()
        failed = [outcomes[actor] for actor in alive if outcomes[actor].error_type]
        assert not failed, failed
        self.expect_nothing_left()

    def expect_no_traceback(self) -> None:
        for actor in range(self.world_size):
            assert "Traceback" not in self.output(actor), self.output(actor)[-3000:]


def wake(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
