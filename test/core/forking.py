"""A check made in a forked child."""

import os
import signal


def holds_in_a_fork(check):
    """Forks, and says whether ``check()`` is true there. A child that hangs dies of it, after 30 seconds."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(30)
            status = 0 if check() else 2
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0
