"""The metrics that a process keeps about itself, for Prometheus. All names, labels and buckets are
declared here; `service.web.exposition` writes them out.

No label has a value that callers choose or that belongs to one tenant, so that there are few series
and none tells one tenant about another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace
from prometheus_client import Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_RESIDUALS = (-0.4, -0.2, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2, 0.4)

REQUEST_SECONDS = Histogram(
    "shardwright_http_request_duration_seconds",
    "Seconds from the head of a request to the end of its answer.",
    ["method", "route", "status"],
    buckets=_SECONDS,
)
SEARCH_SECONDS = Histogram(
    "shardwright_search_duration_seconds",
    "Seconds that the search of a recommendation took, without its wait in the queue.",
    buckets=_SECONDS,
)
LAYOUTS_EVALUATED = Counter(
    "shardwright_search_layouts_evaluated",
    "Layouts whose step time searches computed. Those pruned by a bound are not counted.",
)
QUEUE_LENGTH = Gauge(
    "shardwright_queue_length",
    "Requests that wait for their turn to compute.",
    ["queue"],
    multiprocess_mode="livesum",
)
QUEUE_RUNNING = Gauge(
    "shardwright_queue_running", "Requests that compute.", ["queue"], multiprocess_mode="livesum"
)
QUEUE_WAIT_SECONDS = Histogram(
    "shardwright_queue_wait_seconds",
    "Seconds that requests waited for their turn, those included that gave up.",
    ["queue"],
    buckets=_SECONDS,
)
QUEUE_REFUSALS = Counter(
    "shardwright_queue_refusals",
    "Requests that were refused because the queue was full or their turn never came.",
    ["queue"],
)
CACHE_LOOKUPS = Counter(
    "shardwright_cache_lookups",
    "Look-ups in caches, by their result: hit or miss. Of `answers`, which are stored, a miss is an"
    " answer that was computed.",
    ["cache", "result"],
)
REPORTS = Counter(
    "shardwright_reports_ingested",
    "Reports that were stored, by the outcome of the run.",
    ["outcome"],
)
RESIDUAL = Histogram(
    "shardwright_report_residual",
    "Natural logarithm of measured over predicted step time, of reports that have one. Runs that a"
    " tenant's own version predicted have the profile `own`, whosever it is.",
    ["profile"],
    buckets=_RESIDUALS,
)

EVENT_STREAMS = Gauge(
    "shardwright_event_streams",
    "Event streams that clients listen to.",
    multiprocess_mode="livesum",
)
CONNECTIONS_CLOSED = Counter(
    "shardwright_connections_closed",
    "Connections that the service has closed on clients, by the reason: `silent` (no request came),"
    " `unread` (nothing of the answer was read), `full` (to make room for another).",
    ["reason"],
)
SWEEP_ITEMS = Counter(
    "shardwright_sweep_items",
    "Items of sweeps that this service finished, by their outcome.",
    ["outcome"],
)


@dataclass(frozen=True, slots=True)
class StoredGauge:
    """A gauge that is read from the database at each scrape, with the same value whichever process
    is asked."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()

    def family(self, values: Mapping[tuple[str, ...], float]) -> Metric:
        """Returns the gauge with these values. The keys are the values of its labels, in their
        order."""
        family = GaugeMetricFamily(self.name, self.meaning, labels=self.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)
        return family


DATABASE_UP = StoredGauge(
    "shardwright_database_up", "Whether the database can be used, as /readyz has it: 1 or 0."
)
SCHEMA = StoredGauge(
    "shardwright_schema_info",
    "Always 1. The revision of the database's schema, and its state: ok if it is the schema that"
    " this release needs, or what is wrong.",
    ("revision", "state"),
)
SWEEP_ITEMS_WAITING = StoredGauge(
    "shardwright_sweep_items_waiting", "Items of sweeps that wait, or are computed now."
)
ACTIVE_VERSION = StoredGauge(
    "shardwright_profile_active_version",
    "The version of the profile that predictions use, save for tenants with one of their own.",
    ("profile",),
)
OWN_VERSIONS = StoredGauge(
    "shardwright_own_versions",
    "Tenants whose predictions use a version of their own, which rests on what they reported.",
)
DRIFT = StoredGauge(
    "shardwright_profile_drift_ratio",
    "The largest of the last changes of step time against predictions, over kinds of runs: 0.1 is"
    " 10% slower, and 0 no change.",
    ("profile",),
)
DRIFTING_KINDS = StoredGauge(
    "shardwright_profile_drifting_kinds",
    "Kinds of runs whose step times have changed against predictions.",
    ("profile",),
)

_tracer = trace.get_tracer("shardwright")


def count_lookup(cache: str, *, is_hit: bool) -> None:
    CACHE_LOOKUPS.labels(cache, "hit" if is_hit else "miss").inc()


def count_report(outcome: str, profile_id: str, residual: float | None) -> None:
    """Counts a report by its outcome. `residual` is log(measured / predicted) of its step time, if
    it has one."""
    REPORTS.labels(outcome).inc()
    if residual is not None:
        RESIDUAL.labels(profile_id).observe(residual)


@contextmanager
def timed_search() -> Iterator[None]:
    """Times the search that the block runs, and traces it where traces are configured."""
    with _tracer.start_as_current_span("search"), SEARCH_SECONDS.time():
        yield


class QueueMetrics:
    """The metrics of one queue, by its name."""

    def __init__(self, queue: str) -> None:
        self._length = QUEUE_LENGTH.labels(queue)
        self._running = QUEUE_RUNNING.labels(queue)
        self._wait_seconds = QUEUE_WAIT_SECONDS.labels(queue)
        self._refusals = QUEUE_REFUSALS.labels(queue)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts a request as waiting while the block runs, and times it."""
        began = time.perf_counter()
        try:
            with _tracer.start_as_current_span("wait"), self._length.track_inprogress():
                yield
        finally:
            self._wait_seconds.observe(time.perf_counter() - began)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts a request as computing while the block runs."""
        with self._running.track_inprogress():
            yield

    def count_refusal(self) -> None:
        self._refusals.inc()
