"""Bars of what takes longer than two seconds: drawn on terminals, after that time, and ended."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time

import pytest

from glt import _deadlines as deadlines
from glt._progress import progress_bar


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(deadlines, "SHOWN_S", 0.2)


def test_nothing_is_drawn_where_stderr_is_no_terminal(soon, capsys):
    with progress_bar("work", 10) as advance:
        advance(5)
        time.sleep(0.5)
        advance(5)
    assert capsys.readouterr().err == ""


def test_nothing_is_drawn_where_there_is_no_stderr():
    """As of a daemon that was started with it closed."""
    code = "from glt._progress import progress_bar\nwith progress_bar('work', 9) as add:\n  add(9)\nprint('done')"
    words = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code]
    done = subprocess.run(words, stdout=subprocess.PIPE, timeout=60)
    assert done.stdout == b"done\n"


def test_nothing_is_drawn_of_what_is_done_at_once(capsys):
    with progress_bar("work", 10, shown=True) as advance:
        advance(10)
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.parametrize("total", [10, None])
def test_a_long_step_is_shown_while_it_takes_place(soon, capsys, total):
    with progress_bar("work", total, shown=True) as advance:
        time.sleep(0.6)  # nothing is told meanwhile
        drawn = capsys.readouterr().err
        advance(10)
    assert "work" in drawn and "0" in drawn
    assert capsys.readouterr().err.endswith("\n")  # what comes next begins a line


def test_no_bar_is_left_by_an_exception(soon, capsys):
    with pytest.raises(OSError, match="full"), progress_bar("work", 10, shown=True):
        time.sleep(0.3)
        raise OSError("the disk is full")
    assert capsys.readouterr().err.endswith("\n")


PROGRAM = """
import sys, time
from glt import _deadlines as deadlines
from glt.partition import RandomPartitioner
from glt.testing import ring_graph

class Slow(RandomPartitioner):
    def assign_nodes(self, at, num_nodes):
        time.sleep(1)
        return super().assign_nodes(at, num_nodes)

deadlines.SHOWN_S = 0.2
graph = ring_graph()
Slow(sys.argv[1], 2, 40, graph.edge_index).partition(**({"progress": False} if len(sys.argv) > 2 else {}))
"""


@pytest.mark.parametrize("flags", [(), ("quiet",)])
def test_partitioning_on_a_terminal(tmp_path, flags):
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "parts"), *flags]
    done = subprocess.run(command, stderr=inside, timeout=120)
    os.close(inside)
    drawn = b""
    try:
        while some := os.read(terminal, 65536):
            drawn += some
    except OSError:
        pass  # its other end is closed
    os.close(terminal)
    assert done.returncode == 0, drawn
    assert (b"partition" in drawn) == (not flags), drawn
