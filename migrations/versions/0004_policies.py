"""policies of profiles, and what a version has learnt

Revision 0004, after 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("profiles", schema=None) as batch_op:
        batch_op.add_column(sa.Column("policy", sa.JSON(none_as_null=True), nullable=True))
    profiles = sa.table("profiles", sa.column("policy", sa.JSON))
    op.get_bind().execute(sa.update(profiles).values(policy={"mode": "manual", "margin": 0.01}))
    with op.batch_alter_table("profiles", schema=None) as batch_op:
        batch_op.alter_column("policy", existing_type=sa.JSON(none_as_null=True), nullable=False)
    with op.batch_alter_table("profile_versions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("learnt", sa.JSON(none_as_null=True), nullable=True))
        batch_op.add_column(sa.Column("posterior", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("profile_versions", schema=None) as batch_op:
        batch_op.drop_column("posterior")
        batch_op.drop_column("learnt")
    with op.batch_alter_table("profiles", schema=None) as batch_op:
        batch_op.drop_column("policy")
