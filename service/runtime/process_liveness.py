"""Which process runs a request, and whether it is gone.

A process is told by its number among those that share its list of processes: a container has a list
of its own, whatever name it gives its host.
"""

from __future__ import annotations

import os
import socket
import uuid

_STARTED = uuid.uuid4().hex
"""Tells this process from earlier ones of its number, as in a container that is started again."""


def new_process_token() -> str:
    """Of a request of this process."""
    return "/".join((_host(), str(os.getpid()), _STARTED, uuid.uuid4().hex))


def process_has_ended(token: str) -> bool:
    """Whether the process that a token is of ran on this host and does not any more; of others
    nobody here knows."""
    host, pid, started, *_ = (*token.rsplit("/", 3), "", "", "")
    if host != _host() or not pid.isdecimal():
        return False
    if int(pid) == os.getpid():
        return started != _STARTED
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # it is somebody else's, or no number of a process
    return False


def _host() -> str:
    """Of the list of processes, where the system says which that is (pid_namespaces(7))."""
    try:
        return f"{socket.gethostname()[:64]} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()[:64]
