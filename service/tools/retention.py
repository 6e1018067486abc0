"""Drop old answers: predictions, recommendations and checks that no report refers to, and sweeps
that have ended.

`python -m service.tools.retention --older-than 90d [--tenant NAME] [--compact]`

Reports, benchmarks and versions of the profile stay. The service may run meanwhile. With a tenant
only what is its own is dropped, of any age: one that has stored all that it may gets room at once.
SHARDWRIGHT_RETENTION_DAYS makes the service do the same by itself, for all.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import logging
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from service.durations import parse_duration
from service.errors import ServiceError
from service.settings import Misconfigured, from_environment
from service.store import Store, database
from service.store.answers import GIVEN_AGAIN_FOR, AnswerKind

log = logging.getLogger(__name__)

_BATCH = 200  # one transaction of it takes a fraction of a second, for which writers wait
_PAUSE_S = 0.05  # between batches, for writers that wait
_LOOK_S = 3600.0  # answers are kept for days: an hour more is nothing


@dataclass(frozen=True, slots=True)
class Dropped:
    """The numbers of answers that were dropped, and the bytes by which a SQLite file shrank."""

    recommendations: int
    predictions: int
    checks: int
    sweeps: int
    freed_bytes: int

    def __str__(self) -> str:
        """Returns the numbers in a sentence."""
        return (
            f"dropped {self.recommendations} recommendations, {self.predictions} predictions,"
            f" {self.checks} checks and {self.sweeps} sweeps, and gave"
            f" {self.freed_bytes / 2**20:.1f} MiB back to the file system"
        )


def drop_old_answers(store: Store, age: timedelta, tenant: str | None = None) -> Dropped:
    """Drops answers and ended sweeps older than `age`, and returns how many. With a tenant, drops
    its own only. Raises ValueError for an unknown tenant, and without a tenant for an age below a
    day, since younger answers are given again to whoever asks again."""
    if tenant is not None:
        _require_tenant(store, tenant)
    elif age < GIVEN_AGAIN_FOR:
        raise ValueError(
            "must be at least 1d unless --tenant is given: younger answers are given again to who"
            " asks again"
        )
    before = datetime.now(UTC) - age
    # The deletions leave free pages in a SQLite file, by which it is shrunk in the end.
    dropped = Dropped(
        recommendations=_drop_answers(store, "recommendations", before, tenant),
        predictions=_drop_answers(store, "predictions", before, tenant),
        checks=_drop_answers(store, "checks", before, tenant),
        sweeps=_drop_sweeps(store, before, tenant),
        freed_bytes=store.give_space_back(),
    )
    if dropped.recommendations or dropped.predictions or dropped.checks or dropped.sweeps:
        whose = {} if tenant is None else {"of_tenant": tenant}
        with store.writing() as rows:
            rows.audit.add(
                "answers.dropped", f"before {before:%Y-%m-%d %H:%M}", **whose, **asdict(dropped)
            )
    return dropped


def _require_tenant(store: Store, tenant: str) -> None:
    """Raises ValueError where no key belongs to this tenant, because the name is then misspelt."""
    with store.reading() as rows:
        tenants = {key.tenant for key in rows.api_keys.all()}
    if tenant not in tenants:
        similar = difflib.get_close_matches(tenant, tenants, n=1)
        hint = f": did you mean {similar[0]!r}?" if similar else ""
        raise ValueError(f"must be of a tenant that has a key, and {tenant!r} has none{hint}")


def _drop_answers(store: Store, kind: AnswerKind, before: datetime, tenant: str | None) -> int:
    """Drops old answers of a kind, and returns how many. Each batch has a transaction of its own,
    with a pause behind it, so that requests get their turn."""
    total = 0
    while True:
        with store.writing() as rows:
            rows.lock("retention")  # two processes would delete the same answers
            rows.arrivals.wait_for_writers()  # a report being stored may refer to an answer
            dropped = rows.retention.drop_answers(kind, before, _BATCH, tenant)
        total += dropped
        if dropped < _BATCH:
            return total
        time.sleep(_PAUSE_S)


def _drop_sweeps(store: Store, before: datetime, tenant: str | None) -> int:
    """Drops ended sweeps, and returns how many. Each has a transaction of its own, since a sweep
    may have thousands of items."""
    with store.reading() as rows:
        ended = rows.retention.ended_sweeps(before, tenant)
    total = 0
    for id_ in ended:
        with store.writing() as rows:
            total += rows.retention.drop_sweep(id_, before)
        time.sleep(_PAUSE_S)  # requests that wait to write come in between
    return total


class UnattendedRetention:
    """Drops old answers once an hour, where an age is set."""

    def __init__(self, store: Store, days: int | None) -> None:
        self._store = store
        self._age = None if days is None else timedelta(days=days)

    async def run(self) -> None:
        """Drops old answers once an hour until cancelled, if an age is set. A failure is logged,
        and the next try comes an hour later."""
        while self._age is not None:
            try:
                dropped = await asyncio.to_thread(drop_old_answers, self._store, self._age)
                log.info("old answers are dropped", extra=asdict(dropped))
            except ServiceError as error:
                log.warning("old answers are not dropped: %s", error)
            except Exception:
                log.exception("old answers are not dropped")
            await asyncio.sleep(_LOOK_S)


def main() -> int:
    """Drops old answers as the command line says, and prints what was dropped. Returns the exit
    status."""
    parser = argparse.ArgumentParser(prog="python -m service.tools.retention", description=__doc__)
    parser.add_argument("--older-than", required=True, help="an age, such as 90d")
    parser.add_argument("--tenant", help="drop only what is this tenant's, of any age")
    parser.add_argument(
        "--compact",
        action="store_true",
        help="write a SQLite file anew, which must not be in use: once for one of a release before"
        " this command",
    )
    arguments = parser.parse_args()
    try:
        engine = database.connect(from_environment().database_url)
        with database.translated_errors():
            database.migrate(engine)
            store = Store(engine)
            age = parse_duration(arguments.older_than)
            lines = [str(drop_old_answers(store, age, arguments.tenant))]
            if arguments.compact:
                store.compact()
                lines.append("the file is compact")
            elif not store.can_shrink():
                lines.append("the file keeps its size until it is compacted: see --compact")
    except (Misconfigured, ValueError) as error:
        parser.error(str(error))
    except database.DatabaseUnusable as error:
        parser.error(f"the database cannot be used: {error}")
    engine.dispose()
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
