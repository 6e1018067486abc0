"""the hash of a training log's submission, by which it is known when it comes again

Revision 0010, after 0009.
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("reports", sa.Column("log_hash", sa.String(length=200), nullable=True))
    _fill()
    op.create_index(op.f("ix_reports_log_hash"), "reports", ["log_hash"], unique=False)


def _fill() -> None:
    """Other submissions that hold the word get a hash too: no log's."""
    reports = sa.table(
        "reports",
        sa.column("id", sa.String),
        sa.column("submission", sa.Text),
        sa.column("log_hash", sa.String),
    )
    connection, x = op.get_bind(), reports.c
    for id_ in connection.scalars(sa.select(x.id).where(x.submission.contains('"log"'))).all():
        submission = connection.scalars(sa.select(x.submission).where(x.id == id_)).one()
        known = hashlib.sha256(submission.encode()).hexdigest()
        connection.execute(sa.update(reports).where(x.id == id_).values(log_hash=known))


def downgrade() -> None:
    op.drop_index(op.f("ix_reports_log_hash"), table_name="reports")
    op.drop_column("reports", "log_hash")
