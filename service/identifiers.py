"""Ids: UUID version 7 (RFC 9562), text that sorts by time of creation; and what tells equal runs
and logs."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any


def earliest_id(at: datetime) -> str:
    """Before every id that is made from then on."""
    milliseconds = f"{int(at.timestamp() * 1000):012x}"
    return f"{milliseconds[:8]}-{milliseconds[8:]}"


def new_id() -> str:
    milliseconds = time.time_ns() // 1_000_000
    value = milliseconds << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


def digest(*parts: str) -> str:
    """SHA-256 of texts, one a line."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def run_hash(request: Mapping[str, Any]) -> str:
    """Of a question with its layout, in whatever order."""
    return digest(json.dumps(request, sort_keys=True))


def log_hash(log: str, run: str, outcome: str) -> str:
    """Of a training log with the run that it is said to be of, and how that is said to have ended;
    however its lines end, and without those that are blank and a byte order mark."""
    lines = (line.rstrip() for line in log.removeprefix("\ufeff").splitlines())
    return digest(run, outcome, *filter(None, lines))
