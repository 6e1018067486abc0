"""Who calls: keys that an operator gives to tenants, each for some of what the service does.

`python -m service.api_keys create --tenant NAME [--scope recommend --scope report ...] | list |
revoke ID`

A key is sw_<id>_<secret>, sent as `Authorization: Bearer`. The secret is shown once; the database
has its hash.
"""

from __future__ import annotations

import argparse
import hmac
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from service.errors import NotFound, Unauthenticated
from service.identifiers import digest
from service.settings import Misconfigured, from_environment
from service.store import Store, database
from service.store.tables import ApiKeyRow

SCOPES = {
    "recommend": "ask questions, and read their answers",
    "report": "report what was measured, and read one's own reports, summaries and drift",
    "calibrate": (
        "change what all share: calibrations, activations, policies, catalogue entries; replay"
        " answers"
    ),
    "admin": "all of that, and to see what belongs to other tenants",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """`tenant`: whose rows a request makes, and sees unless it sees all; None where no key is asked
    for."""

    tenant: str | None
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        return scope in self.scopes or self.sees_all

    @property
    def sees_all(self) -> bool:
        return "admin" in self.scopes


ANYONE = Caller(None, frozenset(SCOPES))


def caller_of(store: Store, authorization: Sequence[str]) -> Caller:
    """Whose key the Authorization headers of a request carry. Raises Unauthenticated."""
    if len(authorization) != 1:
        raise Unauthenticated("One key is required: Authorization: Bearer sw_...")
    kind, _, key = authorization[0].partition(" ")
    parts = key.strip().split("_", 2)
    if kind.lower() != "bearer" or len(parts) != 3 or parts[0] != "sw":
        raise Unauthenticated(
            "The Authorization header must be Bearer and a key, sw_<id>_<secret>."
        )
    with store.reading() as rows:
        row = rows.api_keys.find(parts[1]) if parts[1].isalnum() and parts[1].isascii() else None
    known = row is not None and hmac.compare_digest(row.secret_hash, digest(parts[2]))
    if row is None or not known or row.revoked_at is not None:
        raise Unauthenticated("The key is not known, or has been revoked.")
    return Caller(row.tenant, frozenset(row.scopes))


def create(store: Store, tenant: str, scopes: Sequence[str]) -> str:
    """A new key, as its holder will send it."""
    id_, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    row = ApiKeyRow(
        id=id_,
        tenant=tenant,
        scopes=sorted({*scopes}),
        secret_hash=digest(secret),
        created_at=datetime.now(UTC),
    )
    with store.writing() as rows:
        rows.api_keys.add(row)
    return f"sw_{id_}_{secret}"


def revoke(store: Store, id_: str) -> None:
    with store.writing() as rows:
        rows.api_keys.revoke(id_, datetime.now(UTC))


def _listed(store: Store) -> list[str]:
    with store.reading() as rows:
        keys = rows.api_keys.all()
    lines = [
        f"{row.id}  {row.created_at:%Y-%m-%d}  {row.tenant}  {' '.join(row.scopes)}"
        f"{f'  revoked {row.revoked_at:%Y-%m-%d}' if row.revoked_at else ''}"
        for row in keys
    ]
    return lines or ["no keys"]


def _tenant(given: str) -> str:
    if not 1 <= len(given) <= 100 or not given.isprintable() or given != given.strip():
        raise argparse.ArgumentTypeError("must be 1 to 100 printable characters")
    return given


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m service.api_keys",
        description=(
            "Keys of tenants. SHARDWRIGHT_REQUIRE_API_KEYS=true makes the service ask for them."
        ),
    )
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("create", help="a new key, shown once")
    making.add_argument(
        "--tenant", required=True, type=_tenant, help="whose rows it makes and sees"
    )
    scopes = "; ".join(f"{name}: {meaning}" for name, meaning in SCOPES.items())
    making.add_argument(
        "--scope", action="append", choices=SCOPES, help=f"{scopes}. Both of the first unless given"
    )
    commands.add_parser("list", help="every key, without its secret")
    commands.add_parser("revoke", help="refuse a key from now on").add_argument("id")
    given = parser.parse_args()
    try:
        engine = database.connect(from_environment().database_url)
        with database.translated_errors():
            database.migrate(engine)
    except Misconfigured as error:
        parser.error(str(error))
    except database.DatabaseUnusable as error:
        parser.error(f"the database cannot be used: {error}")
    store = Store(engine)
    try:
        if given.command == "create":
            lines = [create(store, given.tenant, given.scope or ["recommend", "report"])]
        elif given.command == "revoke":
            revoke(store, given.id)
            lines = [f"{given.id} is revoked"]
        else:
            lines = _listed(store)
    except NotFound as error:
        parser.error(str(error))
    finally:
        engine.dispose()
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
