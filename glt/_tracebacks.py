"""Short tracebacks of mistakes: the user's own line, then the check of glt that refused it."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from opcode import opmap
from types import FrameType, TracebackType
from typing import Any, TypeVar

from glt.errors import GltError, RemoteError

# Of what is raised on purpose; an AssertionError is a bug of glt, and is shown whole.
_OF_USE = (ValueError, TypeError, LookupError, RuntimeError, OSError, ImportError, MemoryError)
_LIBRARIES = frozenset({"glt", "torch", "torch_geometric", "numpy"}) | sys.stdlib_module_names - {"__main__"}

T = TypeVar("T", bound=Callable[..., Any])


def short_traceback(what: T) -> T:
    """Marks a function or method that users call, or a class that they create: a mistake that glt finds in it is raised
    with the user's line last but one, and the check that found it last, in place of all the calls between them.

    What is raised elsewhere than in a check of glt keeps its whole traceback: errors of the user's own functions, of
    torch and numpy, and of the interpreter, which may be bugs. So does what passes through the user's functions.
    ``GLT_TRACEBACK=full`` shows all calls. Python 3.10 puts the old traceback back, and always shows them.
    """
    if isinstance(what, type):
        what.__init__ = short_traceback(what.__init__)  # type: ignore[misc]
        return what
    if inspect.isgeneratorfunction(what):

        @functools.wraps(what)
        def iterated(*args: Any, **kwargs: Any) -> Any:
            try:
                return (yield from what(*args, **kwargs))
            except Exception as error:
                _shorten(error)
                raise

        return iterated  # type: ignore[return-value]

    @functools.wraps(what)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return what(*args, **kwargs)
        except Exception as error:
            _shorten(error)
            raise

    return called  # type: ignore[return-value]


def _shorten(error: Exception) -> None:
    """Leaves of the traceback of a deliberate error its last call in glt, if no call after the first is the user's."""
    if not isinstance(error, _OF_USE) or os.environ.get("GLT_TRACEBACK") == "full":
        return
    last = each = error.__traceback__
    end = last
    while each is not None:
        package = _package(each.tb_frame)
        if package not in _LIBRARIES:
            return
        if package == "glt":
            last = each
        end, each = each, each.tb_next
    is_told = isinstance(error, GltError) or isinstance(error.__cause__, RemoteError)  # by another process, perhaps
    if last is not None and (is_told or (end is last and _is_at_raise(last))):
        error.__traceback__ = TracebackType(None, last.tb_frame, last.tb_lasti, last.tb_lineno)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_at_raise(traceback: TracebackType) -> bool:
    return traceback.tb_frame.f_code.co_code[traceback.tb_lasti] == opmap["RAISE_VARARGS"]
