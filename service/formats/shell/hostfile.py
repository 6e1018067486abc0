"""The hosts on which the launcher of DeepSpeed starts ranks (deepspeed 0.19.8, launcher/runner.py,
fetch_hostfile and parse_resource_filter)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.formats.shell.files import LaunchFiles
from service.formats.shell.headers import options
from service.formats.shell.launchers import positive_integer
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
    """Returns the hosts that DeepSpeed's launcher uses, whatever the scheduler was asked for.
    `before` are the words in front of the program. None where another launcher starts it, or where
    neither its hostfile nor --include lists the devices."""
    names = [base_name(word) for word in before]
    if "deepspeed" not in names:
        return None
    flags = options(before[names.index("deepspeed") + 1 :])
    file = next((flags[name] for name in _NAMES if name in flags), None)
    text = None if file is None else files.find(file)
    slots = None if text is None else _slots(text)
    if slots is None:
        slots = {host: 0 for host, _ in _hosts_and_devices(flags.get("include", ""))}
    ranks = _ranks_by_host(slots, flags)
    if not all(ranks.values()):  # a host with all of its devices, however many
        return None
    return Hosts(count=len(ranks), num_ranks=sum(ranks.values())) if ranks else None


def _slots(text: str) -> dict[str, int] | None:
    """Returns the number of devices of each host in a hostfile: {"worker-0": 8} for "worker-0
    slots=8". None where a line has another form."""
    lines = [line.strip() for line in text.splitlines()]
    matches = [_LINE.fullmatch(line) for line in lines if line and not line.startswith("#")]
    slots_of_host = {match["host"]: int(match["slots"]) for match in matches if match}
    return slots_of_host if slots_of_host and len(slots_of_host) == len(matches) else None


def _ranks_by_host(slots: Mapping[str, int], flags: Mapping[str, str]) -> dict[str, int]:
    """Returns the number of ranks on each host: its slots, changed by the launcher's --include,
    or else by --exclude, --num_nodes and --num_gpus."""
    if "include" in flags:  # beside which the launcher refuses the other options
        included = _hosts_and_devices(flags["include"])
        # A host that is listed without devices has a rank on each of its slots.
        return {host: len(devices) or slots[host] for host, devices in included if host in slots}
    ranks = dict(slots)
    for host, devices in _hosts_and_devices(flags.get("exclude", "")):
        if host in ranks:
            # A host that is listed without devices is excluded as a whole.
            ranks[host] = max(ranks[host] - len(devices), 0) if devices else 0
    hosts = [host for host, count in ranks.items() if count]
    hosts = hosts[: positive_integer(flags.get("num_nodes"))]  # all, where that is None
    num_gpus = positive_integer(flags.get("num_gpus"))
    return {host: ranks[host] if num_gpus is None else num_gpus for host in hosts}


def _hosts_and_devices(text: str) -> list[tuple[str, set[str]]]:
    """Returns the hosts of a filter, each with its devices: [("worker-0", set()), ("worker-1",
    {"0", "2"})] for worker-0@worker-1:0,2. An empty set means all devices."""
    matches = [_FILTER.fullmatch(part) for part in text.split("@")]
    return [(match[1], {*(match[2] or "").split(",")} - {""}) for match in matches if match]
