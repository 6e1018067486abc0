"""Reads the features that Slurm's --constraint asks of nodes."""

from __future__ import annotations

import re

_AND = re.compile(r"[&,]")
_FEATURE = re.compile(r"(?P<name>[A-Za-z][\w.:-]{0,99})(?:\*(?P<count>\d{1,7}))?", re.ASCII)
_MOST_FEATURES = 16  # sites have a few for each kind of node


def required_features(expression: str, num_nodes: int | None) -> tuple[str, ...]:
    """Returns the features that every node of a job must have: ("h100", "ib") for
    --constraint=h100&ib. An expression with alternatives requires none. A feature of only some
    nodes, such as h100*4 of 16, does not count. A key in front is dropped: GPU_SKU:H100_SXM5
    becomes "H100_SXM5"."""
    if "|" in expression:
        return ()
    parts = _AND.split(re.sub(r"[\[\]()\s]", "", expression))[:_MOST_FEATURES]
    features = list[str]()
    for part in parts:
        match = _FEATURE.fullmatch(part)
        if match is None:
            continue
        # The only feature, of a job that names no number of nodes, is that of all its nodes.
        is_only_one = len(parts) == 1 and num_nodes is None
        if match["count"] is None or is_only_one or int(match["count"]) == num_nodes:
            features.append(match["name"].rpartition(":")[2])
    return tuple(features)
