"""profiles that belong to a tenant, which may have no active version

Revision 0019, after 0018.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_TABLES = ("profiles", "profile_versions")
_MADE_UNDER = ("predictions", "recommendations", "reports", "sweeps")
_SHARED = "default"


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("tenant", sa.String(length=200), nullable=True))
    with op.batch_alter_table("profiles") as profiles:
        profiles.alter_column("active_version", existing_type=sa.Integer(), nullable=True)


def downgrade() -> None:
    _drop_own()
    with op.batch_alter_table("profiles") as profiles:
        profiles.alter_column("active_version", existing_type=sa.Integer(), nullable=False)
    for table in reversed(_TABLES):
        op.drop_column(table, "tenant")


def _drop_own() -> None:
    """What was answered with a version of a tenant's own is said to be of the shared version below
    it. Otherwise everybody would see, and could use, what one tenant had measured."""
    versions = sa.table(
        "profile_versions",
        sa.column("profile_id", sa.String),
        sa.column("version", sa.Integer),
        sa.column("calibration", sa.JSON),
        sa.column("tenant", sa.String),
    )
    profiles = sa.table("profiles", sa.column("tenant", sa.String))
    connection, x = op.get_bind(), versions.c
    own = sa.select(x.profile_id, x.version, x.calibration).where(x.tenant.is_not(None))
    for id_, version, calibration in connection.execute(own).all():
        for name in _MADE_UNDER:
            table = sa.table(
                name, sa.column("profile_id", sa.String), sa.column("profile_version", sa.Integer)
            )
            connection.execute(
                sa.update(table)
                .where(table.c.profile_id == id_, table.c.profile_version == version)
                .values(profile_id=_SHARED, profile_version=calibration["based_on"])
            )
    connection.execute(sa.delete(versions).where(x.tenant.is_not(None)))
    connection.execute(sa.delete(profiles).where(profiles.c.tenant.is_not(None)))
