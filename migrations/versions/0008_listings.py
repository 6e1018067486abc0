"""indexes for what a tenant has, newest first, and for answers of a time span

Revision 0008, after 0007.
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

OWNED = ("predictions", "recommendations", "reports", "benchmarks")
REPLAYED = ("predictions", "recommendations")


def upgrade() -> None:
    for table in OWNED:
        op.drop_index(op.f(f"ix_{table}_tenant"), table_name=table)
        op.create_index(op.f(f"ix_{table}_tenant"), table, ["tenant", "id"], unique=False)
    for table in REPLAYED:
        op.create_index(op.f(f"ix_{table}_created_at"), table, ["created_at"], unique=False)


def downgrade() -> None:
    for table in REPLAYED:
        op.drop_index(op.f(f"ix_{table}_created_at"), table_name=table)
    for table in OWNED:
        op.drop_index(op.f(f"ix_{table}_tenant"), table_name=table)
        op.create_index(op.f(f"ix_{table}_tenant"), table, ["tenant"], unique=False)
