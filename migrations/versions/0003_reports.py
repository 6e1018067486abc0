"""when a report was measured, by whom and on which fabric

Revision 0003, after 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("reports", schema=None) as batch_op:
        batch_op.add_column(sa.Column("measured_at", sa.DateTime(timezone=True), nullable=True))
        batch_op.add_column(sa.Column("source", sa.String(length=500), nullable=True))
        batch_op.add_column(sa.Column("fabric", sa.String(length=200), nullable=True))
        batch_op.add_column(sa.Column("within_interval", sa.Boolean(), nullable=True))
    _fill()
    with op.batch_alter_table("reports", schema=None) as batch_op:
        batch_op.alter_column(
            "measured_at", existing_type=sa.DateTime(timezone=True), nullable=False
        )
        batch_op.alter_column("fabric", existing_type=sa.String(length=200), nullable=False)
        batch_op.create_index(batch_op.f("ix_reports_measured_at"), ["measured_at"], unique=False)


def _fill() -> None:
    """Earlier reports were measured when they came; their documents say the rest."""
    reports = sa.table(
        "reports",
        sa.column("id", sa.String),
        sa.column("created_at", sa.DateTime(timezone=True)),
        sa.column("measured_at", sa.DateTime(timezone=True)),
        sa.column("fabric", sa.String),
        sa.column("within_interval", sa.Boolean),
        sa.column("document", sa.JSON),
    )
    connection = op.get_bind()
    connection.execute(sa.update(reports).values(measured_at=reports.c.created_at))
    for id_, document in connection.execute(sa.select(reports.c.id, reports.c.document)).all():
        told = {
            "fabric": document["catalogue"]["fabric"]["name"],
            "within_interval": document["within_interval"],
        }
        connection.execute(sa.update(reports).where(reports.c.id == id_).values(**told))


def downgrade() -> None:
    with op.batch_alter_table("reports", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_reports_measured_at"))
        batch_op.drop_column("within_interval")
        batch_op.drop_column("fabric")
        batch_op.drop_column("source")
        batch_op.drop_column("measured_at")
