"""Why this process ends."""

from __future__ import annotations

import sys
import traceback


class Ending:
    """Tells, at exit, why this process ends.

    Errors that were there before it was made do not count: a fork has what its parent had, such as the error of a
    notebook's last cell.
    """

    def __init__(self) -> None:
        # Not the errors themselves, which hold the frames that they went through.
        self._before = {(id(error), text_of(error)) for error in _errors()}

    def failure(self) -> BaseException | None:
        """The exception that ends this process: of a program, or in flight in a child of multiprocessing."""
        failure = next((each for each in _errors() if (id(each), text_of(each)) not in self._before), None)
        if isinstance(failure, SystemExit):  # as mp.spawn of torch ends a child that has failed
            return (failure.__context__ or failure) if failure.code else None
        return failure

    def why(self) -> str:
        """That in words; "" if there is none."""
        failure = self.failure()
        return "" if failure is None else text_of(failure)


def text_of(error: BaseException) -> str:
    """The last line of a traceback, or lines."""
    return "".join(traceback.format_exception_only(error)).strip()


def _errors() -> list[BaseException]:
    """What ended the interpreter, or a cell of it, and what is in flight."""
    return [each for each in (getattr(sys, "last_value", None), sys.exc_info()[1]) if each is not None]
