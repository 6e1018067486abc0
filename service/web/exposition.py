"""Writes metrics in the format that Prometheus asks for."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable with which prometheus-client keeps metrics in files of that folder. It
is read when prometheus-client is imported."""


def share_between_processes() -> None:
    """Makes the processes that this one starts from now on keep their metrics in one folder, so
    that any of them can answer a scrape for all. prometheus_client finds the folder in the
    environment."""
    if _FOLDER not in os.environ:
        folder = tempfile.mkdtemp(prefix="shardwright-metrics-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[_FOLDER] = folder


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Returns the metrics of all worker processes and the given families as bytes, and their media
    type. The format is the one that the scrape's Accept header asks for."""
    registry = CollectorRegistry()
    registry.register(_process_metrics())
    registry.register(_Families(families))
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


def _process_metrics() -> Collector:
    """Returns a collector of the metrics of all worker processes, or of this one alone where no
    folder is shared."""
    folder = os.environ.get(_FOLDER)
    if folder is None:
        return REGISTRY
    # The files of a process end with its id: gauge_livesum_123.db.
    for pid in {int(path.stem.rpartition("_")[2]) for path in Path(folder).glob("gauge_live*.db")}:
        if _has_ended(pid):
            # Its gauges of running work are dropped; its counters stay.
            mark_process_dead(pid)  # type: ignore[no-untyped-call]
    # With None it is registered nowhere: the caller does that, for this scrape alone.
    return MultiProcessCollector(None)  # type: ignore[no-untyped-call]


def _has_ended(pid: int) -> bool:
    """Returns whether no process has this id any more."""
    try:
        # Signal 0 only asks whether the process exists.
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # the process belongs to somebody else
    return False
