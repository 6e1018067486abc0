"""an index for reports of the same chip, stack and model that ended alike

Revision 0007, after 0006.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        op.f("ix_reports_alike"),
        "reports",
        ["chip", "stack", "architecture", "outcome", "id"],
        unique=False,
    )
    op.drop_index(op.f("ix_reports_chip"), table_name="reports")


def downgrade() -> None:
    op.create_index(op.f("ix_reports_chip"), "reports", ["chip"], unique=False)
    op.drop_index(op.f("ix_reports_alike"), table_name="reports")
