"""How many files and connections a process may have open."""

from __future__ import annotations

import resource


def allow_descriptors() -> int:
    """Raises the limit of this process as far as it may itself; returns it.

    Each stream of a client takes two descriptors on a server, and what shells allow by default is soon used up.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
