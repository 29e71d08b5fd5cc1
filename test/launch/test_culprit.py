"""Who is named when one process fails and others fail since they lost it, in whatever order the news comes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from launch_world import SLEEP, Launched, said

Launch = Callable[..., Launched]

# Trainer 1 connects to the others, by sockets of the workspace; they wait for it to hang up, and then fail.
MEET = """
import atexit, socket
def wait_for_loss(name):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name + ".new")
        listener.listen()
        os.rename(name + ".new", name)
        with listener.accept()[0] as peer:
            print("connected")
            peer.recv(1)
def meet(*names):
    peers = [socket.socket(socket.AF_UNIX) for _ in names]
    for peer, name in zip(peers, names):
        while peer.connect_ex(name):
            time.sleep(0.02)
    return peers
"""


def job(launch: Launch, script: Path, *words: object, **do: str) -> Launched:
    env = {name: f"{MEET}\n{code}" for name, code in do.items()}
    return launch("--workspace", script.parent, *words, script, env=env)


def test_who_refuses_to_end_does_not_hold_up_the_news(launch: Launch, script: Path) -> None:
    """Trainer 1 is killed. torchrun stops trainer 0, which takes its time; only then it tells of trainer 1. Meanwhile
    the server fails, by an error that does not look like the loss of a peer."""
    launched = job(
        launch,
        script,
        *"--num-trainers 2 --stop-timeout 3".split(),
        DO_server="wait_for_loss('s'); sys.exit('no answer')",
        DO_trainer_0="signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP,
        DO_trainer_1="peers = meet('s'); " + SLEEP,
    )
    lines = launched.wait_for_all("trainer-1@localhost | {", "connected")
    pid = said(lines)["trainer-1@localhost"]["pid"]
    os.kill(pid, signal.SIGKILL)
    assert launched.ended() == 137, launched.err
    assert f"failed: trainer-1@localhost: pid {pid} was killed by SIGKILL" in launched.err
    assert "also failed: server-0@localhost" in launched.err


def test_who_takes_its_time_to_end_is_not_hidden_by_who_lost_it(launch: Launch, script: Path) -> None:
    """Trainer 1 raises, hangs up as it ends, and ends later than the others; torchrun would have stopped it."""
    launched = job(
        launch,
        script,
        "--num-trainers",
        2,
        DO_server=SLEEP,
        DO_trainer_0="wait_for_loss('t'); raise ConnectionResetError('of trainer 1')",
        DO_trainer_1="peers = meet('t'); atexit.register(time.sleep, 1.5); atexit.register(peers[0].close); "
        "raise ValueError('mine')",
    )
    assert launched.ended() == 1, launched.err
    pids = {who: told["pid"] for who, told in said(launched.out).items()}
    assert f"failed: trainer-1@localhost: pid {pids['trainer-1@localhost']} exited with code 1" in launched.err
    assert "ValueError: mine" in launched.err.partition("its last lines:")[2]
    assert f"also failed: trainer-0@localhost: pid {pids['trainer-0@localhost']}" in launched.err


def test_a_loss_that_nobody_explains_is_a_failure(launch: Launch, script: Path) -> None:
    """Server 1 leaves without an error; server 0 is all there is to name."""
    launched = job(
        launch,
        script,
        *"--num-servers 2 --num-trainers 0".split(),
        DO_server_0="wait_for_loss('t'); raise ConnectionResetError('of server 1')",
        DO_server_1="peers = meet('t')",
    )
    assert launched.ended() == 1
    assert "failed: server-0@localhost" in launched.err and "of server 1" in launched.err, launched.err


def test_who_fails_while_the_job_is_stopped_is_not_to_blame(launch: Launch, script: Path) -> None:
    launched = job(
        launch,
        script,
        *"--num-servers 2 --num-trainers 0".split(),
        DO_server_0="signal.signal(signal.SIGTERM, lambda *a: sys.exit(7)); print('handles it'); " + SLEEP,
        DO_server_1=SLEEP,
    )
    lines = launched.wait_for_all("handles it", "server-1@localhost | {")
    pid = said(lines)["server-1@localhost"]["pid"]
    os.kill(pid, signal.SIGKILL)
    assert launched.ended() == 137
    assert f"failed: server-1@localhost: pid {pid} was killed" in launched.err and "also" not in launched.err
