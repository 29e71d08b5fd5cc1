"""The command ``glt top``: servers, trainers and their loaders, live in a terminal."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from glt import _deadlines as deadlines
from glt._checks import format_size
from glt._stats import with_ratios
from glt.distributed.endpoint.poller import Poller, Snapshot, parse_address

_DESCRIPTION: Final = """\
Shows servers, trainers and their loaders, live, until Ctrl-C. Give the addresses of their endpoints: --metrics-port of
glt serve, or glt.distributed.publish_stats() of trainers. One that does not answer has a row that says so.

Where an endpoint asks for the read token, it is that of GLT_TOKEN_FILE. With https, certificates are checked as
GLT_TLS_CA and GLT_TLS_SERVER_NAME say."""
_EPILOG: Final = """\
exit status:
  0  it was ended by Ctrl-C; with --once or --json: all have answered
  1  with --once or --json: one has not answered
  2  a flag is wrong, or rich is missing

examples:
  glt top 10.0.0.1:9100 10.0.0.2:9100
  glt top --once localhost:9100
  glt top --json localhost:9100 | python -m json.tool"""

_STAGES: Final = ("sampling", "gathering", "remote", "blocked")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of ``glt top``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("addresses", nargs="+", metavar="ADDRESS", help="HOST:PORT, or http(s)://HOST:PORT")
    parser.add_argument("--interval", type=_period, default=1.0, metavar="S", help="seconds between looks (default: 1)")
    parser.add_argument("--once", action="store_true", help="print one table and end; for pipes, too")
    parser.add_argument("--json", action="store_true", help="print the numbers once, as JSON by address; needs no rich")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Runs ``glt top``; returns its exit status."""
    try:
        for address in arguments.addresses:
            parse_address(address)
    except ValueError as error:
        parser.error(str(error))
    if not arguments.json:
        try:
            import rich  # noqa: F401
        except ImportError as error:
            parser.error(f"it needs the package rich ({error}): pip install 'glt-graph[top]', or give --json")
        if not arguments.once and not sys.stdout.isatty():
            parser.error("stdout is no terminal: give --once for one table, or --json")
    pollers = [Poller(address, arguments.interval) for address in dict.fromkeys(arguments.addresses)]
    try:
        if arguments.json or arguments.once:
            deadline = time.monotonic() + deadlines.HANDSHAKE_S
            for each in pollers:
                each.answered.wait(max(0.0, deadline - time.monotonic()))
            return _once({each.address: each.newest for each in pollers}, arguments.json)
        _watch(pollers, arguments.interval)
    except KeyboardInterrupt:
        return 0
    finally:
        for each in pollers:
            each.close()


def _period(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, from 0.1 to 3600")
    return value


def _once(snapshots: Mapping[str, Snapshot], as_json: bool) -> int:
    if as_json:
        print(json.dumps({address: each.stats or {"error": _complaint(each)} for address, each in snapshots.items()}))
    else:
        from rich.console import Console

        # A pipe has no width: columns are as wide as their text.
        Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(_view(snapshots))
    return 0 if all(each.stats is not None for each in snapshots.values()) else 1


def _watch(pollers: Sequence[Poller], period_s: float) -> NoReturn:
    from rich.live import Live

    def look() -> Any:
        return _view({each.address: each.newest for each in pollers})

    for each in pollers:
        each.answered.wait(deadlines.POLL_S)
    with Live(look(), auto_refresh=False, screen=True, vertical_overflow="ellipsis") as live:
        while True:
            live.update(look(), refresh=True)
            time.sleep(min(period_s, 1.0))


# -- tables --------------------------------------------------------------------------------------------------------

# Heading, and the text of a row: of its numbers, and of its counters' growth per second (None: not known yet).
_Row = Mapping[str, Any]
_Column = tuple[str, Callable[[_Row, Callable[[str], float | None]], str]]


def _count(name: str) -> Callable[[_Row, Any], str]:
    return lambda row, _: "" if row.get(name) is None else f"{row[name]:,.0f}"


def _batches_per_s(row: _Row, growth: Callable[[str], float | None]) -> str:
    rate = row["batches_per_s"] if "batches_per_s" in row else growth("num_batches")
    return "" if rate is None else f"{rate:,.1f}"


def _bytes_per_s(row: _Row, growth: Callable[[str], float | None]) -> str:
    rate = row["bytes_per_s"] if "bytes_per_s" in row else growth("channel_received_bytes")
    return "" if rate is None else f"{format_size(round(rate))}/s"


def _waiting(row: _Row, _: Any) -> str:
    waiting = row.get("num_unread", row.get("channel_num_queued"))
    return "" if waiting is None else f"{waiting:,.0f}"


def _stage(row: _Row, growth: Callable[[str], float | None]) -> str:
    recent = {stage: growth(f"{stage}_s") for stage in (*_STAGES, "disk")}
    times = {each: rate for each, rate in recent.items() if rate} or {
        each: row.get(f"{each}_s", 0) for each in (*_STAGES, "disk")
    }
    disk = times.pop("disk", 0)  # a part of gathering
    shares = {("disk" if each == "gathering" and disk > time / 2 else each): time for each, time in times.items()}
    most = max(shares, key=lambda stage: shares[stage])
    return f"{most} {shares[most] / sum(shares.values()):.0%}" if shares[most] else ""


def _hits(row: _Row, _: Any) -> str:
    if not (row.get("num_remote_nodes") or row.get("num_cached_nodes")):
        return ""
    return f"{row['cache_hit_ratio']:.0%}" if "cache_hit_ratio" in row else ""


_OF_PROCESS: Final[tuple[_Column, ...]] = (
    ("clients", _count("num_clients")),
    ("loaders", _count("num_loaders")),
    ("workers", _count("num_workers")),
    ("restarts", _count("num_restarts")),
    ("errors", _count("num_errors")),
    ("batch/s", _batches_per_s),
    ("bytes", _bytes_per_s),
    ("to be sent", _count("num_queued")),
    ("most time", _stage),
)
_OF_LOADER: Final[tuple[_Column, ...]] = (
    ("batches", _count("num_batches")),
    ("batch/s", _batches_per_s),
    ("bytes", _bytes_per_s),
    ("to be sent", _count("num_queued")),
    ("for trainer", _waiting),
    ("hits", _hits),
    ("most time", _stage),
)


def _view(snapshots: Mapping[str, Snapshot]) -> Any:
    from rich import box
    from rich.console import Group
    from rich.table import Table

    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": 0, "pad_edge": False, "title_justify": "left"}
    processes, loaders, complaints = Table(title="Processes", **look), Table(title="Loaders", **look), []
    processes.add_column("process, where", overflow="fold", min_width=16)
    processes.add_column("state")
    loaders.add_column("loader, its client, where", overflow="fold", min_width=30)
    for table, columns in ((processes, _OF_PROCESS), (loaders, _OF_LOADER)):
        for heading, _ in columns:
            table.add_column(heading, justify="left" if heading == "most time" else "right")
    for address, each in snapshots.items():
        stats = each.stats
        if each.error:
            complaints.append(_plain(f"{address}: {_complaint(each)}", "red"))
        if stats is None:
            processes.add_row(_plain(address), _plain(*("no answer", "red") if each.error else ("asking", "yellow")))
            continue
        state = ("draining", "yellow") if stats.get("is_draining") else ("running", "green")
        state = ("no worker", "red") if stats.get("num_workers") == 0 else state
        state = ("no answer", "red") if each.error else state
        totals = stats.get("totals") or _sum(stats["loaders"])
        growth = _growth(each, lambda of: of.get("totals") or _sum(of["loaders"]))
        name = f"{str(stats.get('server') or stats.get('trainer') or '').partition(' (')[0]}\n{address}"
        cells = [column({**stats, **totals}, growth) for _, column in _OF_PROCESS]
        processes.add_row(_plain(name), _plain(*state), *cells, style="dim" if each.error else "")
        for loader, row in stats["loaders"].items():
            growth = _growth(each, partial(_of_loader, loader))
            cells = [column(row, growth) for _, column in _OF_LOADER]
            where = f"{str(row['client']).partition(' (')[0]}, {address}" if "client" in row else address
            loaders.add_row(_plain(f"{loader}\n{where}"), *cells, style="dim" if each.error else "")
    return Group(processes, *complaints, *([loaders] if loaders.row_count else []))


def _of_loader(name: str, stats: dict[str, Any]) -> _Row:
    found: _Row = stats["loaders"].get(name, {})
    return found


def _complaint(snapshot: Snapshot) -> str:
    if snapshot.stats is None:
        return f"no answer: {snapshot.error}" if snapshot.error else "no answer yet"
    return f"no answer for {time.monotonic() - snapshot.at_s:.0f} s: {snapshot.error}"


def _growth(snapshot: Snapshot, part: Callable[[dict[str, Any]], _Row]) -> Callable[[str], float | None]:
    def growth(name: str) -> float | None:
        if snapshot.stats is None or snapshot.before is None or snapshot.at_s <= snapshot.before_s:
            return None
        now, then = part(snapshot.stats).get(name), part(snapshot.before).get(name)
        return None if now is None or then is None or now < then else (now - then) / (snapshot.at_s - snapshot.before_s)

    return growth


def _sum(loaders: Mapping[str, _Row]) -> dict[str, Any]:
    """Of loaders of a trainer, which tells no totals."""
    names = {name for row in loaders.values() for name, value in row.items() if isinstance(value, int | float)}
    return with_ratios({name: sum(row.get(name, 0) for row in loaders.values()) for name in names})


def _plain(text: str, style: str = "") -> Any:
    """What comes from outside may hold marks of rich, and codes that terminals obey."""
    from rich.text import Text

    return Text("".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in str(text)), style)
