"""torchrun for one host of ``glt launch``: ``python -m glt.launch.agent PIPES TORCHRUN_ARGS...``.

What torchrun does not offer as a program: trainers write to pipes of the keeper instead of to files that grow, and who
failed is told as JSON, ``[{"rank", "pid", "code", "message"}, ...]``, the likely cause first. ``PIPES`` is JSON too:
``out`` and ``err``, a file descriptor for each local rank, ``report``, one more, and ``folder``, for small files.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

_NO_MESSAGE = "To enable traceback see"


class PipeLogs(LogsSpecs):
    """Sends what each trainer writes to a pipe of its own.

    Args:
        folder: For the files in which ``torch.distributed.elastic``'s ``@record`` leaves tracebacks.
        out, err: A descriptor for each local rank.
    """

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


def main(argv: list[str]) -> int:
    """Runs the trainers of this host; returns 0, 1 if one failed, or 128 and the signal that ended this."""
    pipes = json.loads(argv[0])
    arguments = parse_args([f"--log-dir={pipes['folder']}", *argv[1:]])  # else torchrun makes one, and leaves it
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # glt launch says it
    config, command, words = config_from_args(arguments)
    config.logs_specs = PipeLogs(pipes["folder"], pipes["out"], pipes["err"])
    try:
        elastic_launch(config, command)(*words)
    except ChildFailedError as error:
        os.write(pipes["report"], json.dumps(_in_order(error.failures)).encode())
        return 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def _in_order(failures: Mapping[int, ProcessFailure]) -> list[dict]:
    """The likely cause first; without those that torchrun itself ended with SIGTERM, unless nothing else is left.

    Times are whole seconds. Of one second, one that a signal ended comes first: others failed since they lost it.
    """

    def order(rank: int) -> tuple[int, int, int]:
        code = failures[rank].exitcode
        return failures[rank].timestamp, 2 if code == -signal.SIGTERM else int(code > 0), rank

    ranks = sorted(failures, key=order)
    told = [rank for rank in ranks if failures[rank].exitcode != -signal.SIGTERM] or ranks[:1]
    return [
        {"rank": rank, "pid": failures[rank].pid, "code": failures[rank].exitcode, "message": _message(failures[rank])}
        for rank in told
    ]


def _message(failure: ProcessFailure) -> str:
    told = failure.message
    text = str(told.get("message", "")) if isinstance(told, dict) else str(told)
    return "" if failure.exitcode < 0 or text.startswith(_NO_MESSAGE) else text


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the keeper tells it when to end
    sys.exit(main(sys.argv[1:]))
