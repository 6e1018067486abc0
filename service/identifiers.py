"""Ids: UUID version 7 (RFC 9562), text that sorts by time of creation."""

from __future__ import annotations

import os
import time
import uuid
from datetime import datetime


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
