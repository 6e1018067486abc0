"""Names that the service computes: ids of rows, and digests by which equal runs and equal logs are
recognised."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import uuid_utils


def new_id() -> str:
    """Returns a UUID of version 7 (RFC 9562 §5.7). As text, the ids of one process sort in the
    order in which they were made, those of one millisecond included."""
    return str(uuid_utils.uuid7())


def earliest_id(at: datetime) -> str:
    """Returns a text that sorts before every id made at that time or later: the first 48 bits of a
    UUID of version 7 are its time in milliseconds."""
    milliseconds = f"{int(at.timestamp() * 1000):012x}"  # 48 bits in hexadecimal
    return f"{milliseconds[:8]}-{milliseconds[8:]}"


def digest(*parts: str) -> str:
    """Returns the SHA-256 of the texts, joined by newlines, in hexadecimal."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def run_hash(request: Mapping[str, Any]) -> str:
    """Returns the digest of a question with its layout. The order of keys makes no difference."""
    return digest(json.dumps(request, sort_keys=True))


def log_hash(log: str, run: str, outcome: str) -> str:
    """Returns the digest of a training log together with the run it belongs to and its outcome.
    Line endings, blank lines and a byte order mark make no difference."""
    lines = (line.rstrip() for line in log.removeprefix("\ufeff").splitlines())
    return digest(run, outcome, *filter(None, lines))
