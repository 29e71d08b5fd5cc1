"""The small parts of ``glt launch``: hosts files, quoted commands, colours, and who is to blame."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from glt.distributed.job.hosts import Host, parse_hosts, read_hosts
from glt.launch.agent import recorded_error
from glt.launch.command import command_of
from glt.launch.hosts import Reach
from glt.launch.job import Console, Failure, first_of


def test_hosts_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# all\n10.0.0.1 30050  # first\n\n  node-2.cluster\nfe80::1\n")
    assert read_hosts(file) == [Host("10.0.0.1", 30050), Host("node-2.cluster"), Host("fe80::1")]
    file.write_bytes(b"\xef\xbb\xbfa\r\n\tb\t30050 \r\n# end")  # as some editors write it
    assert read_hosts(file) == [Host("a"), Host("b", 30050)]
    file.write_text("".join(f"10.0.{at // 250}.{at % 250 + 1}\n" for at in range(1000)))
    assert len(read_hosts(file)) == 1000
    assert parse_hosts("a, b") == [Host("a"), Host("b")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a 0", "line 1: 'a 0': expected ADDRESS"),
        ("a 1 2", "a PORT"),
        ("a\nb 99999", "line 2"),
        ("", "no host"),
        ("-oX=y", "neither the name"),
        ("a;b", "neither the name"),
        ("a\na 5", "names a twice"),
        ("u@h", "neither"),
        ("Node\nnode", "names node twice"),
        ("::1\n0:0:0:0:0:0:0:1", "names ::1 twice"),
        ("999.1.1.1", "neither"),
        ("1.2.3", "neither"),
        ("a \N{ARABIC-INDIC DIGIT THREE}", "a PORT"),
        ("[::1]", "neither"),
        ("a:22", "neither"),
        ("a\x0cb", "line 1"),
        ("a,b", "neither"),
        ("# only", "no host"),
    ],
)
def test_hosts_that_are_none(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ValueError, match=expected):
        read_hosts(tmp_path / "hosts")


def test_commands() -> None:
    assert command_of("train.py", ["a b", "--x"]) == (["train.py", "a b", "--x"], None)
    assert command_of("my train.py", []) == (["my train.py"], None)
    assert command_of("python3 train.py --x 'a b'", []) == (["train.py", "--x", "a b"], None)
    assert command_of("/opt/x/bin/python3.11 train.py", []) == (["train.py"], "/opt/x/bin/python3.11")
    for wrong in ("python3 -u train.py", "python train.py 'x", "python "):
        with pytest.raises(ValueError):
            command_of(wrong, [])


def test_the_users_ssh_options_win() -> None:
    words = Reach(True, ssh_options=("ConnectTimeout=99",), ssh_port=22, ssh_user="me").shell()
    assert words.index("ConnectTimeout=99") < words.index("ConnectTimeout=10")  # ssh takes the first
    command = Reach(True).command(Host("h"), ["a b", "$x", "it's"])
    assert command[-2:] == ["h", "exec 'a b' '$x' 'it'\"'\"'s'"] and "BatchMode=yes" in command


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, file = Terminal(), io.StringIO()
    console = Console(terminal, file)
    console.lines("a@h", ["w", "x"], False)
    console.lines("a@h", ["y"], True)
    assert terminal.getvalue() == "\033[36ma@h\033[0m | w\n\033[36ma@h\033[0m | x\n" and file.getvalue() == "a@h | y\n"
    assert console.last_lines("a@h") == ("w", "x", "y") and console.last_lines("b@h") == ()
    monkeypatch.setenv("NO_COLOR", "1")
    console.lines("a@h", ["z"], False)
    assert terminal.getvalue().endswith("\na@h | z\n")


def test_who_is_to_blame() -> None:
    """Who is killed comes before who lost it an instant earlier, and both before whom torchrun ended."""
    exited, killed, ended = Failure("a", 1, 3), Failure("b", 2, -9), Failure("c", 3, -15)
    assert first_of([exited, killed]) is killed and first_of([exited, ended]) is exited
    assert (exited.exit_status, killed.exit_status) == (3, 137)
    assert "SIGKILL (out of memory, perhaps" in killed.text() and "pid 1 exited with code 3" in exited.text()
    told = Failure(
        "a", 1, 1, "", ("x", "glt.errors.PeerLost: trainer 1 is gone: it left, having failed: ValueError: no")
    )
    itself = Failure("b", 2, 1, "", ("glt.errors.PeerLost: one that it had caught", "ValueError: no"))
    silent = Failure("c", 3, 1)
    assert first_of([told, itself, silent]) is itself and first_of([told, silent]) is silent
    assert first_of([told, killed]) is killed and first_of([told, ended]) is told and first_of([told]) is told


TRACEBACK = "Traceback (most recent call last):"


CONTEXT = f"{TRACEBACK}\nConnectionResetError: [Errno 104] x\n\nDuring handling ... occurred:\n{TRACEBACK}"
GLOO = "[rank0]: RuntimeError: [x/gloo/pair.cc:5] Connection closed by peer [127.0.0.1]:4"
WATCHDOG = "  what():  [Rank 1] Watchdog caught collective operation timeout"


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        (f'{TRACEBACK}\n  File "x"\nglt.errors.PeerLost: trainer 1 is gone\nbye', 1, True),
        (f'[rank0]: {TRACEBACK}\n[rank0]:   File "x"\n{GLOO}', 1, True),
        (f"{CONTEXT}\nValueError: mine\nnote: Connection reset by peer", 1, False),
        (f"{TRACEBACK}\ntorch.distributed.DistNetworkError: x", 1, True),
        (f"{TRACEBACK}\nValueError: mine", 1, False),
        ("", 3, False),
        (f"terminate called after throwing an instance of 'c10::DistBackendError'\n{WATCHDOG}", -6, True),
        ("  what():  mine", -6, False),
        (f"{TRACEBACK}\nBrokenPipeError: x", -9, False),
    ],
)
def test_who_lost_a_peer(text: str, code: int, expected: bool) -> None:
    assert Failure("a", 1, code, "", tuple(text.splitlines())).has_lost_a_peer is expected


def test_what_a_trainer_recorded(tmp_path: Path) -> None:
    """As torch's ``@record`` writes it; else, and of a file that was cut short, nothing, and the time is now."""
    file = tmp_path / "error.json"
    file.write_text('{"message": {"message": "ValueError: no", "extraInfo": {"timestamp": "17"}}}')
    assert recorded_error(file) == ("ValueError: no", 17.0)
    file.write_text('{"message": {"mess')
    begin = time.time()
    for path in (file, tmp_path / "none"):
        told, raised_s = recorded_error(path)
        assert told == "" and begin <= raised_s <= time.time()
