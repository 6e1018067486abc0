"""Ids: UUID version 7 (RFC 9562), text that sorts by time of creation."""

from __future__ import annotations

import os
import time
import uuid


def new_id() -> str:
    milliseconds = time.time_ns() // 1_000_000
    value = milliseconds << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
