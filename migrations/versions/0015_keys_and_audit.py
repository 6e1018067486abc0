"""when keys end and were last used, who changed what, and which answers reports refer to

Revision 0015, after 0014.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TIMES = ("expires_at", "last_used_at")
_REFERENCES = ("prediction_id", "recommendation_id")


def upgrade() -> None:
    for name in _TIMES:
        op.add_column("api_keys", sa.Column(name, sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("key_id", sa.String(200), nullable=True),
        sa.Column("tenant", sa.String(200), nullable=True),
        sa.Column("action", sa.String(200), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("details", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_entries"),
    )
    for name in _REFERENCES:
        op.create_index(f"ix_reports_{name}", "reports", [name])


def downgrade() -> None:
    for name in reversed(_REFERENCES):
        op.drop_index(f"ix_reports_{name}", "reports")
    op.drop_table("audit_entries")
    for name in reversed(_TIMES):
        op.drop_column("api_keys", name)
