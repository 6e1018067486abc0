"""Tokens that name the process of a request, and whether that process has ended.

A process id means something only among the processes that share a PID namespace: every container
has one of its own, whatever name it gives its host. A token therefore names the namespace too.
"""

from __future__ import annotations

import os
import socket
import uuid

_PROCESS_UUID = uuid.uuid4().hex
"""Tells this process from an earlier one with the same id, as after a restart of a container."""


def new_process_token() -> str:
    """A token for one request of this process."""
    return "/".join((_pid_namespace(), str(os.getpid()), _PROCESS_UUID, uuid.uuid4().hex))


def process_has_ended(token: str) -> bool:
    """Whether the process that made the token ran in this PID namespace and has ended. Of
    processes elsewhere nothing is known here, so the answer is False."""
    namespace, pid, process_uuid, *_ = (*token.rsplit("/", 3), "", "", "")
    if namespace != _pid_namespace() or not pid.isdecimal():
        return False
    if int(pid) == os.getpid():
        return process_uuid != _PROCESS_UUID
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # the process belongs to somebody else, or the number is no process id
    return False


def _pid_namespace() -> str:
    """The host's name with the id of the PID namespace, where the system has those
    (pid_namespaces(7))."""
    try:
        return f"{socket.gethostname()[:64]} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()[:64]
