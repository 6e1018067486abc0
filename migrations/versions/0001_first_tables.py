"""first tables

Revision 0001, after .
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "catalog_entries",
        sa.Column("kind", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("entry", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", "version", name=op.f("pk_catalog_entries")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=200), nullable=False),
        sa.Column("token", sa.String(length=200), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("location", sa.String(length=200), nullable=True),
        sa.Column("document", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_idempotency_keys")),
    )
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_idempotency_keys_claimed_at"), ["claimed_at"], unique=False
        )

    op.create_table(
        "profiles",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("active_version", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profiles")),
    )
    op.create_table(
        "profile_versions",
        sa.Column("profile_id", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("origin", sa.String(length=200), nullable=False),
        sa.Column("content_hash", sa.String(length=200), nullable=False),
        sa.Column("content", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("calibration", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["profile_id"], ["profiles.id"], name=op.f("fk_profile_versions_profile_id")
        ),
        sa.PrimaryKeyConstraint("profile_id", "version", name=op.f("pk_profile_versions")),
    )
    op.create_table(
        "predictions",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("profile_id", sa.String(length=200), nullable=False),
        sa.Column("profile_version", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["profile_id", "profile_version"],
            ["profile_versions.profile_id", "profile_versions.version"],
            name=op.f("fk_predictions_profile_id"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_predictions")),
    )
    op.create_table(
        "recommendations",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("profile_id", sa.String(length=200), nullable=False),
        sa.Column("profile_version", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["profile_id", "profile_version"],
            ["profile_versions.profile_id", "profile_versions.version"],
            name=op.f("fk_recommendations_profile_id"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recommendations")),
    )
    op.create_table(
        "reports",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("outcome", sa.String(length=200), nullable=False),
        sa.Column("chip", sa.String(length=200), nullable=False),
        sa.Column("stack", sa.String(length=200), nullable=False),
        sa.Column("architecture", sa.String(length=200), nullable=False),
        sa.Column("profile_id", sa.String(length=200), nullable=False),
        sa.Column("profile_version", sa.Integer(), nullable=False),
        sa.Column("prediction_id", sa.String(length=200), nullable=True),
        sa.Column("recommendation_id", sa.String(length=200), nullable=True),
        sa.Column("step_time_s", sa.Double(), nullable=True),
        sa.Column("predicted_step_time_s", sa.Double(), nullable=False),
        sa.Column("residual", sa.Double(), nullable=True),
        sa.Column("submission", sa.Text(), nullable=False),
        sa.Column("document", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["prediction_id"], ["predictions.id"], name=op.f("fk_reports_prediction_id")
        ),
        sa.ForeignKeyConstraint(
            ["profile_id", "profile_version"],
            ["profile_versions.profile_id", "profile_versions.version"],
            name=op.f("fk_reports_profile_id"),
        ),
        sa.ForeignKeyConstraint(
            ["recommendation_id"], ["recommendations.id"], name=op.f("fk_reports_recommendation_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reports")),
    )
    with op.batch_alter_table("reports", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_reports_architecture"), ["architecture"], unique=False)
        batch_op.create_index(batch_op.f("ix_reports_chip"), ["chip"], unique=False)
        batch_op.create_index(batch_op.f("ix_reports_created_at"), ["created_at"], unique=False)
        batch_op.create_index("ix_reports_profile", ["profile_id", "profile_version"], unique=False)
        batch_op.create_index(batch_op.f("ix_reports_stack"), ["stack"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("reports", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_reports_stack"))
        batch_op.drop_index("ix_reports_profile")
        batch_op.drop_index(batch_op.f("ix_reports_created_at"))
        batch_op.drop_index(batch_op.f("ix_reports_chip"))
        batch_op.drop_index(batch_op.f("ix_reports_architecture"))

    op.drop_table("reports")
    op.drop_table("recommendations")
    op.drop_table("predictions")
    op.drop_table("profile_versions")
    op.drop_table("profiles")
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_idempotency_keys_claimed_at"))

    op.drop_table("idempotency_keys")
    op.drop_table("catalog_entries")
