"""checks that are stored, the check that a report names, and the labels of reports

Revision 0021, after 0020.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "checks",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("profile_id", sa.String(length=200), nullable=False),
        sa.Column("profile_version", sa.Integer(), nullable=False),
        sa.Column("text_key", sa.String(length=64), nullable=True),
        sa.Column("brief", sa.JSON(none_as_null=True), server_default="{}", nullable=False),
        sa.Column("document", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("tenant", sa.String(length=200), nullable=True),
        sa.Column("stored_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(
            ["profile_id", "profile_version"],
            ["profile_versions.profile_id", "profile_versions.version"],
            name=op.f("fk_checks_profile_id"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checks")),
    )
    op.create_index(op.f("ix_checks_created_at"), "checks", ["created_at"], unique=False)
    op.create_index(op.f("ix_checks_tenant"), "checks", ["tenant", "id"], unique=False)
    op.create_index(op.f("ix_checks_text"), "checks", ["text_key", "tenant", "id"], unique=False)
    with op.batch_alter_table("reports") as reports:
        reports.add_column(sa.Column("check_id", sa.String(length=200), nullable=True))
        reports.create_foreign_key(op.f("fk_reports_check_id"), "checks", ["check_id"], ["id"])
    op.create_index(op.f("ix_reports_check_id"), "reports", ["check_id"], unique=False)
    op.create_table(
        "report_labels",
        sa.Column("report_id", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("value", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(
            ["report_id"], ["reports.id"], name=op.f("fk_report_labels_report_id")
        ),
        sa.PrimaryKeyConstraint("report_id", "name", name=op.f("pk_report_labels")),
    )
    op.create_index(op.f("ix_report_labels_value"), "report_labels", ["name", "value", "report_id"])


def downgrade() -> None:
    op.drop_table("report_labels")
    op.drop_index(op.f("ix_reports_check_id"), table_name="reports")
    with op.batch_alter_table("reports") as reports:
        reports.drop_constraint(op.f("fk_reports_check_id"), type_="foreignkey")
        reports.drop_column("check_id")
    op.drop_table("checks")
