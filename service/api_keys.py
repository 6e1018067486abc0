"""API keys, which an operator makes for tenants. Each key has scopes: what it may be used for.

`python -m service.api_keys create --tenant NAME [--scope recommend --scope report ...] | list |
revoke ID`

A key reads sw_<id>_<secret> and is sent as `Authorization: Bearer`. Its secret is shown once; the
database stores a hash of it.
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
    """Who sends a request, and what it may do."""

    tenant: str | None
    """The tenant that owns the rows the request makes, and whose rows it sees. None where the
    service asks for no keys."""
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        return scope in self.scopes or self.sees_all

    @property
    def sees_all(self) -> bool:
        return "admin" in self.scopes


ANYONE = Caller(None, frozenset(SCOPES))
"""Every caller of a service that asks for no keys."""


def caller_of(store: Store, authorization: Sequence[str]) -> Caller:
    """The caller whose key is in the Authorization headers of a request. Raises Unauthenticated
    unless there is exactly one header, with a key that is known and not revoked."""
    if len(authorization) != 1:
        raise Unauthenticated("One key is required: Authorization: Bearer sw_...")
    kind, _, key = authorization[0].partition(" ")
    parts = key.strip().split("_", 2)
    if kind.lower() != "bearer" or len(parts) != 3 or parts[0] != "sw":
        raise Unauthenticated(
            "The Authorization header must be Bearer and a key, sw_<id>_<secret>."
        )
    _, id_, secret = parts
    with store.reading() as rows:
        row = rows.api_keys.find(id_) if id_.isalnum() and id_.isascii() else None
    # compare_digest takes the same time wherever the hashes differ, so that none can be guessed.
    is_known = row is not None and hmac.compare_digest(row.secret_hash, digest(secret))
    if row is None or not is_known or row.revoked_at is not None:
        raise Unauthenticated("The key is not known, or has been revoked.")
    return Caller(row.tenant, frozenset(row.scopes))


def create(store: Store, tenant: str, scopes: Sequence[str]) -> str:
    """Stores a new key, and returns it in the form in which its holder sends it."""
    id_ = secrets.token_hex(6)
    secret = secrets.token_urlsafe(32)
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


def _list_keys(store: Store) -> list[str]:
    with store.reading() as rows:
        keys = rows.api_keys.all()
    return [_describe_key(row) for row in keys] or ["no keys"]


def _describe_key(row: ApiKeyRow) -> str:
    line = f"{row.id}  {row.created_at:%Y-%m-%d}  {row.tenant}  {' '.join(row.scopes)}"
    return f"{line}  revoked {row.revoked_at:%Y-%m-%d}" if row.revoked_at else line


def _parse_tenant(name: str) -> str:
    if not 1 <= len(name) <= 100 or not name.isprintable() or name != name.strip():
        raise argparse.ArgumentTypeError("must be 1 to 100 printable characters")
    return name


def main() -> int:
    parser = _argument_parser()
    arguments = parser.parse_args()
    try:
        engine = database.connect(from_environment().database_url)
        with database.translated_errors():
            database.migrate(engine)
    except Misconfigured as error:
        parser.error(str(error))
    except database.DatabaseUnusable as error:
        parser.error(f"the database cannot be used: {error}")
    try:
        lines = _run(arguments, Store(engine))
    except NotFound as error:
        parser.error(str(error))
    finally:
        engine.dispose()
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def _argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m service.api_keys",
        description=(
            "Keys of tenants. SHARDWRIGHT_REQUIRE_API_KEYS=true makes the service ask for them."
        ),
    )
    commands = parser.add_subparsers(dest="command", required=True)
    create_command = commands.add_parser("create", help="a new key, shown once")
    create_command.add_argument(
        "--tenant", required=True, type=_parse_tenant, help="whose rows it makes and sees"
    )
    scopes = "; ".join(f"{name}: {meaning}" for name, meaning in SCOPES.items())
    create_command.add_argument(
        "--scope", action="append", choices=SCOPES, help=f"{scopes}. Both of the first unless given"
    )
    commands.add_parser("list", help="every key, without its secret")
    commands.add_parser("revoke", help="refuse a key from now on").add_argument("id")
    return parser


def _run(arguments: argparse.Namespace, store: Store) -> list[str]:
    """Runs the command, and returns the lines that it prints."""
    if arguments.command == "create":
        return [create(store, arguments.tenant, arguments.scope or ["recommend", "report"])]
    if arguments.command == "revoke":
        revoke(store, arguments.id)
        return [f"{arguments.id} is revoked"]
    return _list_keys(store)


if __name__ == "__main__":
    sys.exit(main())
