"""what ran, to tell runs that many reports are of; the hash of a log with its run

Revision 0012, after 0011.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_ALIKE = "ix_reports_alike"


def upgrade() -> None:
    op.add_column(
        "reports", sa.Column("run_hash", sa.String(length=200), nullable=False, server_default="")
    )
    _fill()
    op.drop_index(op.f(_ALIKE), table_name="reports")
    columns = ["chip", "stack", "architecture", "outcome", "run_hash", "measured_at"]
    op.create_index(op.f(_ALIKE), "reports", columns, unique=False)


def _fill() -> None:
    """One by one: they are large."""
    reports = sa.table(
        "reports",
        sa.column("id", sa.String),
        sa.column("outcome", sa.String),
        sa.column("document", sa.JSON),
        sa.column("submission", sa.Text),
        sa.column("log_hash", sa.String),
        sa.column("run_hash", sa.String),
    )
    connection, x = op.get_bind(), reports.c
    for id_, outcome, hashed in connection.execute(sa.select(x.id, x.outcome, x.log_hash)).all():
        document = connection.scalars(sa.select(x.document).where(x.id == id_)).one()
        run = _hash(json.dumps(document.get("request"), sort_keys=True))
        values: dict[str, str | None] = {"run_hash": run}
        if hashed is not None:
            log = _log(connection.scalars(sa.select(x.submission).where(x.id == id_)).one())
            values["log_hash"] = log and _hash("\n".join((run, outcome, log)))
        connection.execute(sa.update(reports).where(x.id == id_).values(**values))


def _log(submission: str) -> str | None:
    """Other submissions that hold the word have none."""
    received: Any = json.loads(submission)
    log = received.get("log") if isinstance(received, dict) else None
    return log if isinstance(log, str) else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def downgrade() -> None:
    op.drop_index(op.f(_ALIKE), table_name="reports")
    columns = ["chip", "stack", "architecture", "outcome", "id"]
    op.create_index(op.f(_ALIKE), "reports", columns, unique=False)
    op.drop_column("reports", "run_hash")
