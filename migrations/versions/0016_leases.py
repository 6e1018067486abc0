"""until when a claimed key is held, and what checks of readiness write

Revision 0016, after 0015.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Claims of an earlier release hold nothing: their processes end with the upgrade."""
    op.add_column(
        "idempotency_keys", sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True)
    )
    op.create_table(
        "write_checks",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("filler", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_write_checks"),
    )


def downgrade() -> None:
    op.drop_table("write_checks")
    op.drop_column("idempotency_keys", "leased_until")
