"""evidence

Revision 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "evidence",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("release", sa.String(length=200), nullable=False),
        sa.Column("document", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evidence")),
    )


def downgrade() -> None:
    op.drop_table("evidence")
