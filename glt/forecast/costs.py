"""What units of work cost: seconds of CPU per edge, byte and message, measured once per machine and kept as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from glt._checks import check_path, real_number
from glt._tracebacks import short_traceback


@short_traceback
@dataclass(frozen=True)
class Costs:
    """Costs per unit. The defaults are rough; measure your own with :func:`glt.forecast.calibrate`. They are means of
    eleven calibrations with graph S of the benchmarks on two cores of an Intel Xeon, 2026-11-29, between which
    ``message_s`` was 0.63 to 0.81 ms; ``round_trip_s`` is that of ``python -m benchmarks.bench_wire`` on an AMD EPYC.

    Attributes:
        batch_s: CPU seconds of a batch without edges, rows and messages: its task, its message, making ``Data`` of it.
        edge_s: CPU seconds per sampled edge, with numbering its ends.
        row_byte_s: CPU seconds per byte of features that is copied into a batch.
        message_s: CPU seconds per request and its answer, both ends together, without what is in them.
        remote_edge_s: CPU seconds per edge that another host samples, beside ``edge_s``; both ends together.
        wire_byte_s: CPU seconds per byte of rows that another host sends, beside ``row_byte_s``; both ends together.
        round_trip_s: Seconds that a batch waits for a small answer over loopback beside ``message_s``: no cable.

    Raises:
        TypeError, ValueError: If a cost is not a number of at least 0.

    Example:
        >>> glt.forecast.Costs(edge_s=2e-8).edge_s
        2e-08
    """

    batch_s: float = 0.98e-3
    edge_s: float = 44e-9
    row_byte_s: float = 0.37e-9
    message_s: float = 0.72e-3
    remote_edge_s: float = 53e-9
    wire_byte_s: float = 0.74e-9
    round_trip_s: float = 0.16e-3

    def __post_init__(self) -> None:
        for each in fields(self):
            real_number(each.name, getattr(self, each.name))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes them as JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Costs:
        """Reads what :meth:`write` wrote.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it holds something else; names the file and what is wrong.
        """
        check_path("path", path, "a file of costs")
        try:
            told = json.loads(Path(path).read_text())
            names = {each.name for each in fields(cls)}
            if not isinstance(told, dict) or told.keys() != names:
                given = sorted(told) if isinstance(told, dict) else type(told).__name__
                raise ValueError(f"it has {given}, expected {sorted(names)}")
            return cls(**told)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{os.fspath(path)} is no file of costs: {error}; glt forecast --calibrate makes one"
            ) from error


def costs_path() -> Path:
    """Where the costs of this machine are kept: ``costs.json`` in ``$GLT_CACHE``, by default ``~/.cache/glt``."""
    return Path(os.environ.get("GLT_CACHE", "~/.cache/glt")).expanduser() / "costs.json"
