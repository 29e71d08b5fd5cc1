"""A line of a server's log says who wrote it, in either format."""

import json
import logging
import os
import subprocess
import sys

import pytest

from glt.distributed.server.log import LineFormat, check_format


def record(error=None):
    info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("glt.some", logging.WARNING, __file__, 1, "%d lost\nof %s", (3, "a"), info)
    made.created = 1_700_000_000.25
    return made


def test_json_is_one_object_on_one_line():
    line = LineFormat("json", 1, 2).format(record())
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z", "level": "warning", "logger": "glt.some", "message": "3 lost\nof a",
        "server": 1, "worker": 2, "pid": os.getpid(),
    }  # fmt: skip
    assert json.loads(LineFormat("json", 1, None).format(record()))["worker"] is None


def test_text_says_the_same():
    line = LineFormat("text", 1, 2).format(record())
    assert line == f"2023-11-14T22:13:20.250Z WARNING server 1, worker 2, pid {os.getpid()}: glt.some: 3 lost\nof a"
    assert "server 1, pid" in LineFormat("text", 1, None).format(record())


@pytest.mark.parametrize("format", ["text", "json"])
def test_tracebacks_come_with_their_record(format):
    try:
        raise KeyError("what was lost")
    except KeyError as error:
        line = LineFormat(format, 0, None).format(record(error))
    if format == "json":
        assert "\n" not in line
        line = json.loads(line)["traceback"]
    assert "Traceback (most recent call last)" in line and "KeyError: 'what was lost'" in line


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match=r"log_format = 'xml'.*text.*json"):
        check_format("xml")


_PROGRAM = """
import logging, threading, warnings
from glt.distributed.server.log import write_logs
write_logs("json", logging.INFO, 3, 1)
logging.getLogger("a").debug("not this")
logging.getLogger("a").info("this")
warnings.warn("a warning")
thread = threading.Thread(target=lambda: 1 // 0, name="divider")
thread.start(); thread.join()
raise RuntimeError("the end")
"""


def test_warnings_and_what_nobody_caught_are_lines_too():
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1 and ended.stdout == ""
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [each["level"] for each in lines] == ["info", "warning", "critical", "critical"]
    assert {(each["server"], each["worker"]) for each in lines} == {(3, 1)}
    assert "a warning" in lines[1]["message"]
    assert "thread divider ended: ZeroDivisionError" in lines[2]["message"] and "1 // 0" not in lines[2]["message"]
    assert "the end" in lines[3]["message"] and "Traceback" in lines[3]["traceback"]
