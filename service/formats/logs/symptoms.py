"""Symptoms: lines of a log in which the software or a device itself says that something makes the
run slow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from service.formats.logs.lines import Log, printable
from shardwright.secrets import mask_secrets

SymptomKind = Literal[
    "allocator_retries", "sockets", "network_faults", "network_warnings", "collective_timeouts",
    "device_faults", "throttling", "stragglers", "data_waits", "profiling",
]  # fmt: skip
_MARKS: dict[SymptomKind, tuple[str, ...]] = {
    # torchtitan train.py; DeepSpeed runtime/zero/stage3.py
    "allocator_retries": (
        r"CUDA memory allocation retries",
        r"pytorch allocator cache flushes since last step",
    ),
    # NCCL init.cc, transport/net_socket.cc
    "sockets": (r"NCCL INFO Using network Socket", r"NCCL INFO NET/Socket : Using"),
    # NCCL transport/net_ib.cc, net_socket.cc: work requests that failed, links that are down
    "network_faults": (
        r"NCCL WARN NET/",
        r"NET/IB : Got async event",
        r"NET/IB : Got completion from peer",
        r"NET/Socket : .{0,80} connection .{0,40}(?:failed|closed)",
    ),
    "network_warnings": (r"NCCL WARN(?! NET/)",),
    # torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
    "collective_timeouts": (r"Watchdog caught collective operation timeout",),
    "device_faults": (
        r"NVRM: Xid",
        r"ncorrectable ECC errors? (?:was |were )?(?:encountered|detected|found)",
        r"ouble Bit ECC Error",
        r"GPU has fallen off the bus",
    ),
    # of nvidia-smi -q -d PERFORMANCE
    "throttling": (
        r"Slowdown\s{0,80}: Active",
        r"hermal throttl",
        r"ower throttl",
        r"locks? throttl",
    ),
    "stragglers": (
        r"STRAGGLER DETECTION WARNING",
        r"tragglers? detected",
        r"slow (?:node|rank|host)s?\b",
        r"Slow (?:node|rank|host)s?\b",
    ),
    # Lightning trainer/connectors/data_connector.py; torch/utils/data/dataloader.py
    "data_waits": (
        r"dataloader' does not have many workers",
        r"might make DataLoader running slow",
        r"ata ?[Ll]oader[^\n]{0,60}(?:waited|waiting|stall|timed out|bottleneck|too slow)",
        r"aiting for (?:data|the next batch)\b(?![- ]parallel)",
    ),
    "profiling": (
        r"Device-side CUDA Event completion trace is currently enabled",
        r"CUDA_LAUNCH_BLOCKING=1",
        r"Anomaly Detection has been enabled",
    ),
}
"""Each begins with plain text, which is found much faster than a choice of texts."""
_PATTERNS = {kind: [re.compile(mark) for mark in marks] for kind, marks in _MARKS.items()}
_MAX_QUOTED = 200  # a line or two of a terminal


@dataclass(frozen=True, slots=True)
class Symptom:
    """Lines that say one thing: how many there are, and the first of them, shortened."""

    kind: SymptomKind
    count: int
    line: int
    """From 1."""
    text: str


def symptoms(text: str) -> list[Symptom]:
    """Returns the symptoms that a log shows, such as a throttled device: one for each kind, with
    its first line."""
    plain = Log(text).text
    candidates = (_symptom(plain, kind, patterns) for kind, patterns in _PATTERNS.items())
    return [symptom for symptom in candidates if symptom is not None]


def _symptom(text: str, kind: SymptomKind, patterns: list[re.Pattern[str]]) -> Symptom | None:
    """Returns the number of lines that match one of the patterns, with the first of them; None
    where none does."""
    starts = sorted(match.start() for pattern in patterns for match in pattern.finditer(text))
    if not starts:
        return None
    line_starts = {text.rfind("\n", 0, start) for start in starts}
    first = starts[0]
    line_start = text.rfind("\n", 0, first) + 1
    around = text[max(line_start, first - _MAX_QUOTED) : first + _MAX_QUOTED]
    quoted = around.splitlines()[0].strip()
    return Symptom(
        kind=kind,
        count=len(line_starts),
        line=text.count("\n", 0, first) + 1,
        text=printable(mask_secrets(quoted)[:_MAX_QUOTED]),
    )
