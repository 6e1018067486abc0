"""sweeps, and the questions that each consists of

Revision 0017, after 0016.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_WAITING = sa.text("outcome IS NULL")


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("tenant", sa.String(length=200), nullable=True),
        sa.Column("sees_all", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("profile_id", sa.String(length=200), nullable=False),
        sa.Column("profile_version", sa.Integer(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("names", sa.JSON(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("cancelled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["profile_id", "profile_version"],
            ["profile_versions.profile_id", "profile_versions.version"],
            name=op.f("fk_sweeps_profile_id"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sweeps")),
    )
    op.create_index(op.f("ix_sweeps_tenant"), "sweeps", ["tenant", "id"], unique=False)
    op.create_table(
        "sweep_items",
        sa.Column("sweep_id", sa.String(length=200), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease", sa.String(length=64), nullable=True),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("event", sa.Integer(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["sweep_id"], ["sweeps.id"], name=op.f("fk_sweep_items_sweep_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("sweep_id", "position", name=op.f("pk_sweep_items")),
    )
    op.create_index(
        "ix_sweep_items_waiting",
        "sweep_items",
        ["position", "sweep_id"],
        unique=False,
        sqlite_where=_WAITING,
        postgresql_where=_WAITING,
    )
    op.create_index(
        op.f("ix_sweep_items_event"), "sweep_items", ["sweep_id", "event"], unique=False
    )


def downgrade() -> None:
    op.drop_table("sweep_items")
    op.drop_table("sweeps")
