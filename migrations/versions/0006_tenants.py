"""tenants and their keys

Revision 0006, after 0005.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

OWNED = ("predictions", "recommendations", "reports", "benchmarks")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("tenant", sa.String(length=200), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("secret_hash", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    for table in OWNED:
        op.add_column(table, sa.Column("tenant", sa.String(length=200), nullable=True))
        op.create_index(op.f(f"ix_{table}_tenant"), table, ["tenant"], unique=False)


def downgrade() -> None:
    for table in OWNED:
        op.drop_index(op.f(f"ix_{table}_tenant"), table_name=table)
        op.drop_column(table, "tenant")
    op.drop_table("api_keys")
