"""the choice that a report names, and indexes of what a tenant has and of answers by time

Revision 0008, after 0007.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

OWNED = ("predictions", "recommendations", "reports", "benchmarks")
REPLAYED = ("predictions", "recommendations")


def upgrade() -> None:
    op.add_column("reports", sa.Column("choice", sa.String(length=200), nullable=True))
    _fill()
    for table in OWNED:
        op.drop_index(op.f(f"ix_{table}_tenant"), table_name=table)
        op.create_index(op.f(f"ix_{table}_tenant"), table, ["tenant", "id"], unique=False)
    for table in REPLAYED:
        op.create_index(op.f(f"ix_{table}_created_at"), table, ["created_at"], unique=False)


def _fill() -> None:
    """Earlier reports named it where they were submitted."""
    reports = sa.table(
        "reports",
        sa.column("id", sa.String),
        sa.column("recommendation_id", sa.String),
        sa.column("choice", sa.String),
        sa.column("submission", sa.Text),
        sa.column("document", sa.JSON),
    )
    connection, x = op.get_bind(), reports.c
    named = sa.select(x.id).where(
        x.recommendation_id.is_not(None), x.submission.contains('"choice"')
    )
    for id_ in connection.scalars(named).all():
        mine = x.id == id_
        submission, document = connection.execute(
            sa.select(x.submission, x.document).where(mine)
        ).one()
        choice = json.loads(submission).get("choice")
        told = {"choice": choice, "document": {**document, "choice": choice}}
        connection.execute(sa.update(reports).where(mine).values(**told))


def downgrade() -> None:
    for table in REPLAYED:
        op.drop_index(op.f(f"ix_{table}_created_at"), table_name=table)
    for table in OWNED:
        op.drop_index(op.f(f"ix_{table}_tenant"), table_name=table)
        op.create_index(op.f(f"ix_{table}_tenant"), table, ["tenant"], unique=False)
    op.drop_column("reports", "choice")
