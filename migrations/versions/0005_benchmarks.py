"""benchmarks

Revision 0005, after 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "benchmarks",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("chip", sa.String(length=200), nullable=False),
        sa.Column("stack", sa.String(length=200), nullable=False),
        sa.Column("submission", sa.Text(), nullable=False),
        sa.Column("question", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("document", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_benchmarks")),
    )
    with op.batch_alter_table("benchmarks", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_benchmarks_created_at"), ["created_at"], unique=False)


def downgrade() -> None:
    op.drop_table("benchmarks")
