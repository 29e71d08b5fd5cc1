"""``glt launch`` between two network namespaces that stand for hosts: one that nobody answers for, and a cable cut."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cable_world import HERE, NOWHERE, THERE, Cable
from launch_world import PATHS, SLEEP, Launched, said

pytestmark = pytest.mark.integration

Launch = Callable[..., Launched]


def test_a_host_that_nobody_answers_for(launch: Launch, cable: Cable, script: Path) -> None:
    begin = time.monotonic()
    launched = launch(
        "--hosts",
        f"{HERE},{NOWHERE}",
        *cable.server.flags,
        *PATHS,
        "--connect-timeout",
        10,
        script,
        before=cable.before,
    )
    assert launched.ended() == 3
    assert time.monotonic() - begin < 60
    assert f"host {NOWHERE}: ssh does not reach it" in launched.err and f"host {HERE}" not in launched.err
    assert launched.out == "" and "nothing was started" in launched.err


def test_a_cut_cable(launch: Launch, cable: Cable, script: Path) -> None:
    """The launcher names the host and stops the other; on the host that is cut off, processes end by themselves."""
    launched = launch(
        "--hosts",
        f"{HERE},{THERE}",
        *cable.server.flags,
        *PATHS,
        *"--lost-timeout 8 --stop-timeout 2 --num-trainers 0 --extra-envs".split(),
        f"DO_server={SLEEP}",
        script,
        before=cable.before,
    )
    lines = "".join(launched.wait_for('"role": "server"') for _ in range(2))
    pids = [each["pid"] for each in said(lines).values()]
    assert sorted(said(lines)) == [f"server-0@{HERE}", f"server-1@{THERE}"]
    begin = time.monotonic()
    with cable.cut():
        assert launched.ended() == 255
        assert f"host {THERE}: failed (code 255): the connection to it ended" in launched.err, launched.err
        while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() - begin < 60, left
            time.sleep(0.05)
