"""Runs migrations on the connection the service passes, or on the database of the settings."""

from __future__ import annotations

from typing import Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection

from service.settings import Settings
from service.store import database
from service.store.tables import Table, UtcDateTime


def plain_types(kind: str, item: object, _: AutogenContext) -> str | Literal[False]:
    """Migrations spell out our types: they must mean the same when those change."""
    return (
        "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, UtcDateTime) else False
    )


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Table.metadata,
        render_as_batch=True,  # SQLite alters a table by copying it
        render_item=plain_types,
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    given: Connection | None = context.config.attributes.get("connection")
    if given is not None:
        run(given)
        return
    with (
        database.connect(Settings().database_url).connect() as connection,
        database.migrating(connection),
    ):
        run(connection)


main()
