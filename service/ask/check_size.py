"""Keeps the answer of a check short, whatever was typed."""

from __future__ import annotations

import json
from typing import Any

MAX_BYTES = 9_900  # a bit below the 10 KB that are promised
_LEAST_NEEDED = (
    ("switches",),
    ("launch_read", "unread"),
    ("launch_read", "assumed"),
    ("assumptions",),
    ("fits", "enough"),
    ("reservations",),
    ("warnings",),
    ("broken_rules",),
)
"""Lists of an answer that may be cut short, each as the path of members to it, the least needed
first."""


def shortened(document: dict[str, Any]) -> dict[str, Any]:
    """Removes items from the ends of lists until the answer is at most MAX_BYTES long, the least
    needed lists first. Changes the document and returns it."""
    for path in _LEAST_NEEDED:
        holder = document
        for step in path[:-1]:
            holder = holder[step] or {}  # an answer without a launch or a prediction has null
        items = holder.get(path[-1]) or []
        while items and len(_written(document)) > MAX_BYTES:
            items.pop()
    return document


def _written(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
