"""The settings of an operator, each an environment variable with the prefix SHARDWRIGHT_."""

from __future__ import annotations

import difflib
import os
import re
from importlib.util import find_spec
from ipaddress import ip_network
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from shardwright.variables import OF_CALLERS

_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?")
"""An origin as browsers send it, which is in lower case and without a path (RFC 6454)."""


def _normalize_database_url(url_text: str) -> str:
    """Returns the URL with the driver that the service uses. Raises ValueError for another database
    than PostgreSQL or a SQLite file."""
    try:
        url = make_url(url_text)
    except ArgumentError:
        raise ValueError(
            "is no database URL, such as sqlite:///shardwright.db or postgresql://user@host/name"
        ) from None
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("postgresql+psycopg", "sqlite"):
        raise ValueError(f"{url.drivername} is not supported: use sqlite:/// or postgresql://")
    in_memory = url.database in (None, "", ":memory:") or url.query.get("mode") == "memory"
    if url.drivername == "sqlite" and in_memory:
        raise ValueError("SQLite needs a file, such as sqlite:///shardwright.db")
    return url.render_as_string(hide_password=False)


def _check_dask_address(address: str | None) -> str | None:
    """Returns the address unchanged. Raises ValueError where it is not that of a Dask scheduler, or
    Dask is not installed."""
    if address and not address.startswith(("tcp://", "tls://", "ws://", "wss://")):
        raise ValueError("is no address of a Dask scheduler, such as tcp://scheduler:8786")
    if address and find_spec("distributed") is None:
        raise ValueError("needs the package distributed, which is in requirements-extras.lock")
    return address


def _check_networks(listed: str) -> str:
    """Returns the text unchanged. Raises ValueError unless its comma-separated items are addresses
    or networks."""
    for network in filter(None, listed.split(",")):
        try:
            ip_network(network.strip())
        except ValueError as error:
            raise ValueError(f"{error}: list addresses or networks, such as 10.1.0.0/16") from None
    return listed


def _check_origins(listed: str) -> str:
    """Returns the text unchanged. Raises ValueError unless each of its comma-separated items is
    "*" or an origin: scheme, host and port."""
    for origin in listed_items(listed):
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{origin!r} is no origin: list scheme, host and port as browsers send them, such"
                " as https://grafana.example.org or http://localhost:3000, without a path"
            )
    return listed


def listed_items(listed: str) -> list[str]:
    """Returns the items of a comma-separated setting."""
    return [item.strip() for item in listed.split(",") if item.strip()]


PREFIX = "SHARDWRIGHT_"
_YEAR_S = 365 * 24 * 3600.0


class Misconfigured(ValueError):
    """A setting breaks a rule. The message says which setting, and what is wrong with it."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    database_url: Annotated[str, AfterValidator(_normalize_database_url)] = (
        "sqlite:///shardwright.db"
    )
    """SQLite file (an absolute path has four slashes: `sqlite:////var/lib/shardwright.db`) or
    PostgreSQL."""

    database_wait_s: Annotated[float, Field(ge=1, le=3600)] = 30.0
    """Seconds that a statement may take, and that one waits for a lock or a free connection. The
    answer is then 503."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes a free one."""

    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that serve. Each has queues, caches and memory of its own."""

    max_connections: Annotated[int, Field(ge=8)] | None = None
    """Connections that clients may have open, to each process. Beyond them the one is closed that
    has been idle for longest. Unset, it is half of the descriptors that a process may open (`ulimit
    -n`), and at most 1,024."""

    trusted_proxies: Annotated[str, AfterValidator(_check_networks)] = ""
    """Addresses or networks of proxies in front, with commas between them, such as
    `10.0.0.5,10.1.0.0/16`. `X-Forwarded-For` and `X-Forwarded-Proto` are believed from them, and
    from nobody else."""

    proxy_checks_callers: bool = False
    """A proxy in front decides who may ask. Unless this or `SHARDWRIGHT_REQUIRE_API_KEYS` is set,
    the service listens only where no other machine reaches it."""

    log_level: Annotated[str, Field(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"
    """Least level of the messages that are logged, as a line of JSON each: DEBUG, INFO, WARNING or
    ERROR."""

    max_body_bytes: Annotated[int, Field(ge=1024, le=2**30)] = 16 * 2**20
    """Largest request body that is read."""

    body_wait_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """Seconds to wait for the next piece of a request body. A body that comes more slowly than
    1,000 bytes a second has these seconds for all of its delay. The answer is then 408."""

    require_api_keys: bool = False
    """Answer only requests that carry a key made by `python -m service.api_keys`, each tenant
    seeing its own."""

    cors_origins: Annotated[str, AfterValidator(_check_origins)] = ""
    """Origins of pages that may read the API in a browser, with commas between them, such as
    `https://grafana.example.org`; `*` allows all. Pages send a key as `Authorization`: cookies of
    the service's own pages do not go with such requests."""

    metrics_need_key: bool = False
    """Answer `/metrics` only to a key of the scope `admin`. Without it whoever reaches the service
    may read its metrics, which tell nothing of single tenants."""

    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    """Requests that a key may send a minute, or all callers together where no keys are asked for;
    beyond that the answer is 429. Each process counts for itself. Unset, there is no limit."""

    streams_per_tenant: Annotated[int, Field(ge=1, le=10_000)] = 32
    """Event streams that a tenant may have open, in each process; beyond that the answer is 429.
    Without keys everybody is one tenant."""

    max_streams: Annotated[int, Field(ge=1, le=10_000)] = 128
    """Event streams of all tenants together, in each process; beyond that the answer is 429. What a
    client does not read may take some 4 MiB of the system's buffers."""

    max_stored_bytes_per_tenant: Annotated[int, Field(ge=2**10, le=2**62)] = 10 * 2**30
    """Bytes of predictions, recommendations, reports, benchmarks, sweeps, entries of the catalogue
    and versions of its own profile together that a tenant may store, or all callers together where
    no keys are asked for; beyond that the answer is 409. The default holds some two million
    recommendations, or 600 of the largest logs, and leaves room for others on a small disk."""

    heavy_concurrency: Annotated[int, Field(ge=1)] = 2
    """Searches and calibrations that compute at the same time; cheaper requests never wait behind
    them."""

    heavy_queue: Annotated[int, Field(ge=0, le=32)] = 16
    """Requests that may wait while others compute; beyond that the answer is 503."""

    heavy_wait_s: Annotated[float, Field(ge=0, le=300)] = 30.0
    """Seconds that a request waits for its turn, or until the cost model is compiled, before the
    answer is 503."""

    idempotency_ttl_s: Annotated[float, Field(ge=60, le=10 * _YEAR_S)] = 24 * 3600.0
    """Seconds for which an Idempotency-Key remembers its answer."""

    idempotency_lease_s: Annotated[float, Field(ge=1, le=3600)] = 10.0
    """Seconds for which a process that has crashed still holds the Idempotency-Keys of its
    requests. One that lives renews its hold of them for as long as it computes."""

    sweep_processes: Annotated[int, Field(ge=0, le=256)] = 1
    """Processes that compute the items of sweeps, beside searches; 0 leaves them to other
    processes of the service. Each worker process has so many."""

    sweep_lease_s: Annotated[float, Field(ge=1, le=3600)] = 10.0
    """Seconds for which a process that has crashed still holds the items that it computed. One that
    lives renews its hold of them."""

    dask_scheduler: Annotated[str | None, AfterValidator(_check_dask_address)] = None
    """Address of a Dask scheduler, such as tcp://scheduler:8786, whose workers then compute the
    items of sweeps."""

    stop_grace_s: Annotated[float, Field(ge=0, le=3600)] = 20.0
    """Seconds that requests may take to finish once the service is told to stop. The others are
    then answered with 503, and the process ends some seconds later."""

    retention_days: Annotated[int, Field(ge=1, le=36500)] | None = None
    """Once an hour, drop predictions and recommendations that are older than this and that no
    report refers to, and sweeps that ended before. Unset, they are kept for good."""

    unattended_look_s: Annotated[float, Field(ge=0.05, le=3600)] = 30.0
    """Seconds between looks whether a profile's policy asks for a calibration."""


def from_environment(**overrides: Any) -> Settings:
    """Returns the settings of the environment, replaced by `overrides`. Raises Misconfigured for a
    value that breaks a rule, and for a variable with the service's prefix that is neither a setting
    nor a variable of the client."""
    names = [f"{PREFIX}{name.upper()}" for name in Settings.model_fields]
    # A variable that sets nothing is mostly a setting misspelt.
    for name in sorted(os.environ.keys() - OF_CALLERS):
        if name.upper().startswith(PREFIX) and name.upper() not in names:
            similar = difflib.get_close_matches(name.upper(), names, n=1)
            hint = f"; did you mean {similar[0]}?" if similar else ""
            raise Misconfigured(f"{name} sets nothing{hint}")
    try:
        return Settings(**overrides)
    except ValidationError as error:
        reasons = [f"{item['loc'][0]}: {item['msg']}" for item in error.errors()]
        raise Misconfigured("; ".join(reasons)) from None


def describe_settings() -> str:
    """Returns the help of the settings: each variable with its default and its meaning."""
    lines = ["environment variables, each with its default:"]
    for name, field in Settings.model_fields.items():
        lines.append(f"  {PREFIX}{name.upper()} ({field.default})")
        lines.append("      " + " ".join((field.description or "").split()))
    return "\n".join(lines)
