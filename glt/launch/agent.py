"""torchrun for one host of ``glt launch``: ``python -m glt.launch.agent PIPES TORCHRUN_ARGS...``.

Beyond torchrun, trainers write to pipes of the keeper instead of to files that grow, and failures are told at once, one
line of JSON for each, ``{"rank", "pid", "code", "message"}``. ``PIPES`` is JSON too: ``out`` and ``err``, a file
descriptor for each local rank, ``report``, one more, and ``folder``, for small files.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, Final

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher import api as launcher
from torch.distributed.run import config_from_args, parse_args

_STOP_S: Final = 30.0  # after a failure; the launcher stops all long before, if it lives


class PipeLogs(LogsSpecs):
    """Sends what each trainer writes to a pipe of its own; in ``folder`` torch's ``@record`` leaves tracebacks."""

    def __init__(self, folder: str, out: list[int], err: list[int]) -> None:
        super().__init__(log_dir=folder)
        self._folder, self._out, self._err = folder, out, err

    @property
    def root_log_dir(self) -> str:
        return self._folder

    def reify(self, envs: Mapping[int, Mapping[str, str]]) -> LogsDest:
        errors = {rank: str(Path(self._folder) / f"error-{rank}.json") for rank in envs}
        for rank, path in errors.items():
            envs[rank]["TORCHELASTIC_ERROR_FILE"] = path  # type: ignore[index]
        return LogsDest(
            stdouts={rank: f"/dev/fd/{self._out[rank]}" for rank in envs},
            stderrs={rank: f"/dev/fd/{self._err[rank]}" for rank in envs},
            error_files=errors,
        )


class ReportingAgent(LocalElasticAgent):
    """torchrun's agent, except that it tells of each trainer that fails at once, and stops none. torchrun tells of
    failures once it has stopped the others, and counts what those did then: one that merely lost a peer may be known
    before its cause. The launcher stops all, once it knows the cause."""

    report: int  # file descriptor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ended: set[int] = set()
        self._give_up_at = inf

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._look(worker_group)
        is_over = time.monotonic() > self._give_up_at
        if is_over or len(self._ended) == len(worker_group.workers):
            result: RunResult = super()._monitor_workers(worker_group)
            return result
        return RunResult(state=WorkerState.HEALTHY)

    def _look(self, worker_group: WorkerGroup) -> None:
        """Tells of trainers that have failed since it last looked; they stay for torchrun to reap."""
        failed = []
        for worker in worker_group.workers:
            pid = int(worker.id)
            if pid in self._ended:
                continue
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                continue
            self._ended.add(pid)
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            if code:
                assert self._logs_specs is not None
                error = Path(self._logs_specs.root_log_dir, f"error-{worker.local_rank}.json")
                told, raised_s = recorded_error(error)
                failed.append((raised_s, code > 0, worker.global_rank, pid, code, told if code > 0 else ""))
        for _, _, rank, pid, code, message in sorted(failed):  # those of one look: the earlier raised, the killed first
            told = json.dumps({"rank": rank, "pid": pid, "code": code, "message": message})
            os.write(self.report, told.encode() + b"\n")
            self._give_up_at = min(self._give_up_at, time.monotonic() + _STOP_S)


def recorded_error(path: Path) -> tuple[str, float]:
    """What ``@record`` wrote of an exception, and when it was raised; else nothing, and now."""
    try:
        told = json.loads(path.read_bytes())["message"]
        if isinstance(told, dict):
            return str(told["message"]), float(told["extraInfo"]["timestamp"])
        return str(told), time.time()
    except (OSError, ValueError, KeyError, TypeError):  # it did not use it, or was killed while it wrote
        return "", time.time()


def main(argv: list[str]) -> int:
    """Runs the trainers of this host; returns 0, 1 if one failed, or 128 and the signal that ended this."""
    pipes = json.loads(argv[0])
    arguments = parse_args([f"--log-dir={pipes['folder']}", *argv[1:]])  # else torchrun makes one, and leaves it
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # glt launch says it
    config, command, words = config_from_args(arguments)
    config.logs_specs = PipeLogs(pipes["folder"], pipes["out"], pipes["err"])
    ReportingAgent.report = pipes["report"]
    launcher.LocalElasticAgent = ReportingAgent  # type: ignore[misc]
    try:
        launcher.elastic_launch(config, command)(*words)
    except ChildFailedError:
        return 1  # it has been told
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the keeper tells it when to end
    sys.exit(main(sys.argv[1:]))
