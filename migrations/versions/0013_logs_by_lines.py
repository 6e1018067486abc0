"""the hash of a log by its lines, however they end

Revision 0013, after 0012.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _rehash(
        lambda log: [
            line for line in map(str.rstrip, log.removeprefix("\ufeff").splitlines()) if line
        ]
    )


def downgrade() -> None:
    _rehash(lambda log: [log])


def _rehash(parts: Callable[[str], list[str]]) -> None:
    """One by one: they are large."""
    reports = sa.table(
        "reports",
        sa.column("id", sa.String),
        sa.column("outcome", sa.String),
        sa.column("run_hash", sa.String),
        sa.column("submission", sa.Text),
        sa.column("log_hash", sa.String),
    )
    connection, x = op.get_bind(), reports.c
    logged = sa.select(x.id, x.outcome, x.run_hash).where(x.log_hash.is_not(None))
    for id_, outcome, run in connection.execute(logged).all():
        received: Any = json.loads(
            connection.scalars(sa.select(x.submission).where(x.id == id_)).one()
        )
        text = "\n".join((run, outcome, *parts(received["log"])))
        hashed = hashlib.sha256(text.encode()).hexdigest()
        connection.execute(sa.update(reports).where(x.id == id_).values(log_hash=hashed))
