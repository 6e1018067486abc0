"""API keys, which an operator makes for tenants. Each key has scopes: what it may be used for.

`python -m service.api_keys create --tenant NAME [--scope recommend --scope report ...]
[--expires-in 90d] | rotate ID [--overlap 1d] | list | revoke ID`

A key reads sw_<id>_<secret> and is sent as `Authorization: Bearer`. Its secret is shown once; the
database stores a hash of it.
"""

from __future__ import annotations

import argparse
import hmac
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from service.durations import parse_duration
from service.errors import Conflict, NotFound, Unauthenticated, Unavailable
from service.identifiers import digest
from service.settings import Misconfigured, from_environment
from service.store import Store, database
from service.store.api_keys import PRESENTED_IN_SQLITE, PresentedKey
from service.store.tables import ApiKeyRow

SCOPES = {
    "recommend": "ask questions, and read their answers",
    "report": (
        "report what was measured, read one's own reports, summaries and drift, and make and use"
        " one's own versions of the profile"
    ),
    "calibrate": (
        "change what all share: calibrations, activations, policies, catalogue entries; replay"
        " answers"
    ),
    "admin": "all of that, and to see what belongs to other tenants",
}
_USE_NOTED_EACH = timedelta(hours=1)
"""The precision of the time at which a key was last used. It is coarse so that requests seldom
write."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, and what it may do."""

    tenant: str | None
    """The tenant that owns the rows the request makes, and whose rows it sees. None where the
    service asks for no keys."""
    scopes: frozenset[str]
    key_id: str | None = None
    """Id of the key that the request carries. It is no secret."""

    def may(self, scope: str) -> bool:
        return scope in self.scopes or self.sees_all

    @property
    def sees_all(self) -> bool:
        return "admin" in self.scopes


_NOT_KNOWN = "The key is not known, or has been revoked."
ANYONE = Caller(None, frozenset(SCOPES))
"""Every caller of a service that asks for no keys."""


def caller_of(store: Store, authorization: Sequence[str]) -> Caller:
    """Returns the caller whose key is in the Authorization headers of a request, and stores at most
    once an hour when the key was used. Raises Unauthenticated unless there is exactly one header,
    with a key that is neither revoked nor expired."""
    id_, secret = _parse_key(authorization)
    key = stored_key(store, id_)
    now = datetime.now(UTC)
    caller = _verified_caller(key, secret, now)
    if _use_is_to_be_noted(key, now):
        # Whoever asks is answered even where the database takes no writes just now.
        with suppress(Unavailable), store.writing() as rows:
            rows.api_keys.set_used(key.id, now)
    return caller


def stored_key(store: Store, id_: str) -> PresentedKey:
    """Returns the key with this id from the database, and keeps it in memory. Raises
    Unauthenticated where there is none."""
    changes = store.memory.changes
    # Read before the key, so that no change between the two goes unnoticed.
    commits, key_row = changes.count(), changes.row(PRESENTED_IN_SQLITE, id_)
    with store.reading() as rows:
        # Ids of keys are hexadecimal. PostgreSQL refuses some other characters with an error.
        key = rows.api_keys.presented(id_) if id_.isalnum() and id_.isascii() else None
    if key is None:
        raise Unauthenticated(_NOT_KNOWN)
    store.memory.keep_until_change(("key", id_), commits, key, row=key_row)
    return key


def cached_caller(store: Store, authorization: Sequence[str]) -> Caller | None:
    """Returns the caller where its key is in memory and nothing has changed since it was read. None
    where the database has to be asked, or told that the key is in use. Raises Unauthenticated."""
    id_, secret = _parse_key(authorization)
    key: PresentedKey | None = store.memory.unchanged(("key", id_))
    now = datetime.now(UTC)
    if key is None or _use_is_to_be_noted(key, now):
        return None
    return _verified_caller(key, secret, now)


def _parse_key(authorization: Sequence[str]) -> tuple[str, str]:
    """Returns the id and the secret of the key in an Authorization header such as "Bearer
    sw_<id>_<secret>". Raises Unauthenticated where there is not exactly one such header."""
    if len(authorization) != 1:
        raise Unauthenticated("One key is required: Authorization: Bearer sw_...")
    kind, _, key = authorization[0].partition(" ")
    parts = key.strip().split("_", 2)
    if kind.lower() != "bearer" or len(parts) != 3 or parts[0] != "sw":
        raise Unauthenticated(
            "The Authorization header must be Bearer and a key, sw_<id>_<secret>."
        )
    return parts[1], parts[2]


def _verified_caller(key: PresentedKey, secret: str, now: datetime) -> Caller:
    """Returns the caller of a key. Raises Unauthenticated where the secret is wrong or the key is
    not in force."""
    # compare_digest takes the same time wherever the hashes differ, so that none can be guessed.
    if not hmac.compare_digest(key.secret_hash, digest(secret)):
        raise Unauthenticated(_NOT_KNOWN)
    return caller_in_force(key, now)


def caller_in_force(key: PresentedKey, now: datetime) -> Caller:
    """Returns the caller who holds a key. Raises Unauthenticated where the key is revoked or has
    expired."""
    if key.revoked_at is not None:
        raise Unauthenticated(_NOT_KNOWN)
    if key.expires_at is not None and key.expires_at <= now:
        raise Unauthenticated(f"The key expired on {key.expires_at:%Y-%m-%d}; ask for a new one.")
    return Caller(key.tenant, frozenset(key.scopes), key.id)


def _use_is_to_be_noted(key: PresentedKey, now: datetime) -> bool:
    """Returns whether the stored time of a key's last use is an hour old. Storing every use would
    write to the database with each request."""
    return key.last_used_at is None or key.last_used_at <= now - _USE_NOTED_EACH


def create(
    store: Store, tenant: str, scopes: Sequence[str], lifetime: timedelta | None = None
) -> str:
    """Stores a new key, and returns the text that its holder sends. A key without `lifetime` does
    not expire."""
    row, key = _new_key(tenant, scopes, lifetime)
    with store.writing() as rows:
        rows.api_keys.add(row)
        rows.audit.add("key.created", row.id, **_audited(row))
    return key


def rotate(store: Store, id_: str, overlap: timedelta) -> str:
    """Stores a new key with the tenant, scopes and lifetime of an old one, and returns its text.
    The old key is refused once `overlap` has passed. Raises NotFound, or Conflict where the old key
    is not in force."""
    now = datetime.now(UTC)
    with store.writing() as rows:
        old = rows.api_keys.get(id_)
        if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
            raise Conflict(f"The key {id_} is revoked or expired; create another.")
        lifetime = None if old.expires_at is None else old.expires_at - old.created_at
        row, key = _new_key(old.tenant, old.scopes, lifetime)
        old.expires_at = min(old.expires_at or now + overlap, now + overlap)
        rows.api_keys.add(row)
        rows.audit.add("key.rotated", id_, new_key=row.id, old_expires_at=_iso(old.expires_at))
        rows.audit.add("key.created", row.id, **_audited(row))
    return key


def revoke(store: Store, id_: str) -> None:
    """Makes a key be refused from now on. Raises NotFound."""
    with store.writing() as rows:
        rows.api_keys.revoke(id_, datetime.now(UTC))
        rows.audit.add("key.revoked", id_)


def _new_key(
    tenant: str, scopes: Sequence[str], lifetime: timedelta | None
) -> tuple[ApiKeyRow, str]:
    """Returns the row of a new key, and the text that its holder sends."""
    id_ = secrets.token_hex(6)
    secret = secrets.token_urlsafe(32)
    now = datetime.now(UTC)
    row = ApiKeyRow(
        id=id_,
        tenant=tenant,
        scopes=sorted({*scopes}),
        secret_hash=digest(secret),
        created_at=now,
        expires_at=None if lifetime is None else now + lifetime,
    )
    return row, f"sw_{id_}_{secret}"


def _audited(row: ApiKeyRow) -> dict[str, object]:
    """Returns the fields of a key that the audit trail keeps. The secret is not among them."""
    expires_at = None if row.expires_at is None else _iso(row.expires_at)
    return {"of_tenant": row.tenant, "scopes": row.scopes, "expires_at": expires_at}


def _iso(at: datetime) -> str:
    """Returns a time as answers write it, such as "2026-01-31T12:00:00Z"."""
    return at.isoformat().replace("+00:00", "Z")


def _list_keys(store: Store) -> list[str]:
    """Returns a line for each key, or the line "no keys"."""
    with store.reading() as rows:
        keys = rows.api_keys.all()
    return [_describe_key(row) for row in keys] or ["no keys"]


def _describe_key(row: ApiKeyRow) -> str:
    """Returns a key in a line: id, date, tenant, scopes, last use, and its end where it has one."""
    parts = [row.id, f"{row.created_at:%Y-%m-%d}", row.tenant, " ".join(row.scopes)]
    parts.append(f"used {row.last_used_at:%Y-%m-%d}" if row.last_used_at else "never used")
    if row.expires_at:
        parts.append(f"expires {row.expires_at:%Y-%m-%d %H:%M}")
    if row.revoked_at:
        parts.append(f"revoked {row.revoked_at:%Y-%m-%d}")
    return "  ".join(parts)


def _parse_tenant(name: str) -> str:
    """Returns the name of a tenant. Raises ArgumentTypeError where it may not be one."""
    if not 1 <= len(name) <= 100 or not name.isprintable() or name != name.strip():
        raise argparse.ArgumentTypeError("must be 1 to 100 printable characters")
    return name


def _parse_span(text: str) -> timedelta:
    """Returns the span of time in a text such as "90d". Raises ArgumentTypeError."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parse_lifetime(text: str) -> timedelta:
    """Returns the span of time in a text such as "90d". Raises ArgumentTypeError where it is zero
    or not a span."""
    lifetime = _parse_span(text)
    if not lifetime:
        raise argparse.ArgumentTypeError(
            f"must be longer than {text}, since the key would be refused from the beginning; say"
            " for how long it is to be used, such as 90d"
        )
    return lifetime


def main() -> int:
    """Runs the command and prints its lines. Returns the exit status."""
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
    sys.stderr.write(f"in the database {engine.url}\n")  # a URL hides its password as text
    try:
        lines = _run(arguments, Store(engine))
    except (Conflict, NotFound) as error:
        parser.error(str(error))
    finally:
        engine.dispose()
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def _argument_parser() -> argparse.ArgumentParser:
    """Returns the parser of the commands create, rotate, list and revoke."""
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
    create_command.add_argument(
        "--expires-in", type=_parse_lifetime, help="refuse the key after so long, such as 90d"
    )
    rotate_command = commands.add_parser(
        "rotate", help="a new key like another, which is refused a day later"
    )
    rotate_command.add_argument("id")
    rotate_command.add_argument(
        "--overlap",
        type=_parse_span,
        default=timedelta(days=1),
        help="how much later: 1d unless given",
    )
    commands.add_parser("list", help="every key, without its secret")
    commands.add_parser("revoke", help="refuse a key from now on").add_argument("id")
    return parser


def _run(arguments: argparse.Namespace, store: Store) -> list[str]:
    """Runs the command, and returns the lines that it prints. Raises Conflict or NotFound."""
    if arguments.command == "create":
        scopes = arguments.scope or ["recommend", "report"]
        return [create(store, arguments.tenant, scopes, arguments.expires_in)]
    if arguments.command == "rotate":
        return [rotate(store, arguments.id, arguments.overlap)]
    if arguments.command == "revoke":
        revoke(store, arguments.id)
        return [f"{arguments.id} is revoked"]
    return _list_keys(store)


if __name__ == "__main__":
    sys.exit(main())
