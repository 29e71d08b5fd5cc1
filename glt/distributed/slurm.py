"""Where trainers find their ranks when a script names none: in torchrun's variables, or in those of a SLURM step, which
become torchrun's."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, MutableMapping
from typing import Final

FIRST_PORT: Final = 20000
NUM_PORTS: Final = 10000  # of this range, which ends below the ports that kernels hand out (32768)
_PER_STEP: Final = 2  # torch.distributed's, and that of server 0
_STRIDE: Final = 1009  # steps of a job, and jobs that follow each other, have other ports
_MOST_HOSTS: Final = 1 << 20

logger = logging.getLogger(__name__)


def adopt_environment(env: MutableMapping[str, str] = os.environ) -> None:
    """In a task of a SLURM step, sets ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``,
    ``GROUP_RANK``, ``MASTER_ADDR``, ``MASTER_PORT`` and ``GLT_MASTER_PORT``, and for a server ``GLT_SERVER_RANK``, from
    SLURM's variables. What is set already stays; with ``RANK`` or ``WORLD_SIZE``, as torchrun sets, everything does.
    Logs which was taken. ValueError names a variable of SLURM that makes no sense."""
    if env.get("RANK") or env.get("WORLD_SIZE"):
        logger.info("rank %s of %s, as RANK and WORLD_SIZE say", env.get("RANK"), env.get("WORLD_SIZE"))
        return
    # The batch script has SLURM_PROCID and SLURM_NTASKS too, and is no task: what srun alone sets tells.
    if not env.get("SLURM_STEP_ID") or not env.get("SLURM_STEP_NUM_TASKS"):
        return
    step = f"{env.get('SLURM_JOB_ID')}.{env['SLURM_STEP_ID']}"
    if env.get("GLT_ROLE") == "server":
        env.setdefault("GLT_SERVER_RANK", _variable(env, "SLURM_PROCID"))
        logger.info("server %s, as SLURM_PROCID says in step %s", env["GLT_SERVER_RANK"], step)
        return
    env.update(variables_of(env))
    logger.info(
        "rank %s of %s from SLURM's step %s; the first is at %s port %s",
        *(env["RANK"], env["WORLD_SIZE"], step, env["MASTER_ADDR"], env["MASTER_PORT"]),
    )


def variables_of(env: Mapping[str, str]) -> dict[str, str]:
    """Returns torchrun's variables of a task of SLURM; ValueError names one of SLURM's that makes no sense."""
    rank, size, node = (_variable(env, f"SLURM_{name}") for name in ("PROCID", "STEP_NUM_TASKS", "NODEID"))
    tasks = _variable(env, "SLURM_STEP_TASKS_PER_NODE", "2(x3),1")
    counts = tasks_per_node(tasks)
    if not int(node) < len(counts):
        raise ValueError(f"SLURM_NODEID = {node}, and SLURM_STEP_TASKS_PER_NODE = {tasks!r} has {len(counts)} nodes")
    if len(set(counts)) > 1 and "GLT_ROLE" not in env:
        raise ValueError(
            f"SLURM_STEP_TASKS_PER_NODE = {tasks!r}: expected as many tasks on each node; give srun --ntasks-per-node"
        )
    port = port_of(int(_variable(env, "SLURM_JOB_ID")), int(_variable(env, "SLURM_STEP_ID")))
    first = expand_hosts(_variable(env, "SLURM_STEP_NODELIST", "node[01-03,7],gpu5"))[0]
    found = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": _variable(env, "SLURM_LOCALID"),
        "LOCAL_WORLD_SIZE": str(counts[int(node)]),
        "GROUP_RANK": node,
        "MASTER_ADDR": first,
        "MASTER_PORT": str(port),
        "GLT_MASTER_PORT": str(port + 1),
    }
    return found | {name: env[name] for name in found if env.get(name)}


def port_of(job_id: int, step_id: int) -> int:
    """The port of ``torch.distributed`` of a step; the next one is that of server 0. Both are of the range
    ``[FIRST_PORT, FIRST_PORT + NUM_PORTS)``."""
    return FIRST_PORT + (job_id + _STRIDE * step_id) * _PER_STEP % NUM_PORTS


def _variable(env: Mapping[str, str], name: str, example: str = "") -> str:
    text = env.get(name)
    if not text:
        raise ValueError(f"{name} is not set, and SLURM_STEP_ID = {env['SLURM_STEP_ID']!r} is: srun sets both")
    if not example and not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{name} = {text!r}: expected a number")
    return text


def tasks_per_node(text: str) -> list[int]:
    """Returns ``[2, 2, 2, 1]`` of ``"2(x3),1"``; ValueError if it is no such text."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part)
        if match is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE = {text!r}: expected numbers of tasks, such as '2(x3),1'")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def expand_hosts(text: str) -> list[str]:
    """Returns the names of a host list of SLURM, in order: ``["node01", "node02", "node7", "gpu5"]`` of
    ``"node[01-02,7],gpu5"``. ValueError if it is none.

    A container need not have ``scontrol``, which would say the same.
    """
    names = [name for part in _split(text) for name in _expand(part, text)]
    if not all(names):
        raise _no_list(text)
    return names


def _split(text: str) -> list[str]:
    """The parts between the commas that stand outside of brackets."""
    if not re.fullmatch(r"(?:[^\[\]]|\[[^\[\]]+\])+", text):
        raise _no_list(text)
    return re.split(r",(?![^\[]*\])", text)


def _expand(part: str, text: str) -> list[str]:
    """The names of one part, whose last brackets change fastest."""
    names = [""]
    for plain, ranges in re.findall(r"([^\[\]]*)(?:\[([^\[\]]+)\])?", part):
        numbers = [number for each in ranges.split(",") for number in _numbers(each, text)] if ranges else [""]
        if len(names) * len(numbers) > _MOST_HOSTS:
            raise _no_list(text)
        names = [f"{name}{plain}{number}" for name in names for number in numbers]
    return names


def _numbers(given: str, text: str) -> list[str]:
    """``["08", "09", "10"]`` of ``"08-10"``: the first number says how many digits there are at least."""
    match = re.fullmatch("([0-9]{1,9})(?:-([0-9]{1,9}))?", given)
    if match is None:
        raise _no_list(text)
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last < first + _MOST_HOSTS:
        raise _no_list(text)
    return [str(number).zfill(len(match[1])) for number in range(first, last + 1)]


def _no_list(text: str) -> ValueError:
    return ValueError(f"SLURM_STEP_NODELIST = {text!r}: expected a list of hosts, such as 'node[01-03,7],gpu5'")
