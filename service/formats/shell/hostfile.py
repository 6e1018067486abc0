"""The hosts on which the launcher of DeepSpeed starts ranks (deepspeed 0.19.8, launcher/runner.py,
fetch_hostfile and parse_resource_filter)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.formats.shell.files import LaunchFiles
from service.formats.shell.headers import options
from service.formats.shell.programs import base_name

_LINE = re.compile(r"(?P<host>[\w.:-]{1,253})\s+slots=(?P<slots>\d{1,4})\s*(?:#.*)?", re.ASCII)
_NAMES = ("hostfile", "H")
_FILTER = re.compile(r"([\w.-]+)(?::([\d,]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of a job, and the ranks on all of them."""

    count: int
    num_ranks: int


def hosts_of(before: Sequence[str], files: LaunchFiles) -> Hosts | None:
    """Returns the hosts of a command, by the words in front of its program; None where another
    launcher starts it, or the file was not sent or is none of hosts."""
    names = [base_name(word) for word in before]
    if "deepspeed" not in names:
        return None
    own = options(before[names.index("deepspeed") + 1 :])
    file = next((own[name] for name in _NAMES if name in own), None)
    text = None if file is None else files.find(file)
    slots = None if text is None else _slots(text)
    if slots is None:
        return None
    chosen = _chosen(slots, own)
    return Hosts(count=len(chosen), num_ranks=sum(chosen.values())) if chosen else None


def _slots(text: str) -> dict[str, int] | None:
    lines = [line.strip() for line in text.splitlines()]
    matches = [_LINE.fullmatch(line) for line in lines if line and not line.startswith("#")]
    slots_of_host = {match["host"]: int(match["slots"]) for match in matches if match}
    return slots_of_host if slots_of_host and len(slots_of_host) == len(matches) else None


def _chosen(slots: Mapping[str, int], own: Mapping[str, str]) -> dict[str, int]:
    """Returns the ranks by host that filters and counts leave."""
    if "include" in own:
        kept = {host: devices for host, devices in _filtered(own["include"]) if host in slots}
        return {host: len(devices) or slots[host] for host, devices in kept.items()}
    chosen = dict(slots)
    for host, devices in _filtered(own.get("exclude", "")):
        if host in chosen:
            chosen[host] = max(chosen[host] - len(devices), 0) if devices else 0
    chosen = {host: count for host, count in chosen.items() if count}
    nodes, gpus = (_count(own.get(name, "")) for name in ("num_nodes", "num_gpus"))
    if nodes is not None:
        chosen = dict([*chosen.items()][:nodes])
    return chosen if gpus is None else dict.fromkeys(chosen, gpus)


def _filtered(text: str) -> list[tuple[str, set[str]]]:
    """Returns the hosts of a filter such as worker-0@worker-1:0,2 with their devices; none where
    all of a host are meant."""
    matches = [_FILTER.fullmatch(part) for part in text.split("@")]
    return [(match[1], {*(match[2] or "").split(",")} - {""}) for match in matches if match]


def _count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,5}", text, re.ASCII) else None
