"""The rows. Documents are JSON as they were answered; columns beside them are what queries ask
about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    MetaData,
    String,
    Text,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class UtcDateTime(TypeDecorator[datetime]):
    """An instant; SQLite forgets the zone, so it is put back."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value and (
            value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        )


class Table(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {
        str: String(200),
        float: Double,
        datetime: UtcDateTime,
        dict[str, Any]: JSON(none_as_null=True),
    }


TENANT, SEEN = "tenant", "seen"
"""What a session's `info` calls whose rows it makes, and whose it sees (None: all)."""


class Owned:
    """Rows of a tenant (service.api_keys), or of nobody where keys are not asked for. A store of a
    tenant (service.store) sees no others and makes no others."""

    tenant: Mapped[str | None] = mapped_column()


def _made_under() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["profile_id", "profile_version"],
        ["profile_versions.profile_id", "profile_versions.version"],
    )


def _listed(table: str) -> Index:
    """For what a tenant has, newest first."""
    return Index(f"ix_{table}_tenant", "tenant", "id")


class ProfileRow(Table):
    """`revision` grows with every change and is what an ETag shows. `policy`: who activates what
    calibrations make."""

    __tablename__ = "profiles"

    id: Mapped[str] = mapped_column(primary_key=True)
    active_version: Mapped[int]
    revision: Mapped[int]
    policy: Mapped[dict[str, Any]]


class ProfileVersionRow(Table):
    """Never changed. `origin` is "shipped" or "calibrated"; `content_hash` tells whether a release
    shipped another. `learnt` says which reports it rests on; `posterior`
    (models.calibration.posterior) is loaded by calibrations only."""

    __tablename__ = "profile_versions"

    profile_id: Mapped[str] = mapped_column(ForeignKey("profiles.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    created_at: Mapped[datetime]
    origin: Mapped[str]
    content_hash: Mapped[str]
    content: Mapped[dict[str, Any]]
    calibration: Mapped[dict[str, Any] | None]
    learnt: Mapped[dict[str, Any] | None]
    posterior: Mapped[dict[str, Any] | None] = mapped_column(deferred=True)


class PredictionRow(Owned, Table):
    """`brief` is what lists show of the document (service.ask.answer_pages)."""

    __tablename__ = "predictions"
    __table_args__ = (_made_under(), _listed(__tablename__))

    id: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime] = mapped_column(index=True)
    profile_id: Mapped[str]
    profile_version: Mapped[int]
    brief: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    document: Mapped[dict[str, Any]]


class RecommendationRow(Owned, Table):
    """`brief` is what lists show of the document (service.ask.answer_pages)."""

    __tablename__ = "recommendations"
    __table_args__ = (_made_under(), _listed(__tablename__))

    id: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime] = mapped_column(index=True)
    profile_id: Mapped[str]
    profile_version: Mapped[int]
    brief: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    document: Mapped[dict[str, Any]]


class ReportRow(Owned, Table):
    """`submission` is what came, as it came, and loaded where it is asked for only; `residual` the
    log of measured over predicted step time. What has a `withdrawn_at` is kept and counts nowhere.
    `run_hash`: of the question and the layout, which all reports of the same run have in common;
    `log_hash`: of a training log with its run."""

    __tablename__ = "reports"
    __table_args__ = (
        _made_under(),
        _listed(__tablename__),
        Index("ix_reports_profile", "profile_id", "profile_version"),
        Index(
            "ix_reports_alike",
            "chip",
            "stack",
            "architecture",
            "outcome",
            "run_hash",
            "measured_at",
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime] = mapped_column(index=True)
    measured_at: Mapped[datetime] = mapped_column(index=True)
    source: Mapped[str | None] = mapped_column(String(500))
    outcome: Mapped[str]
    chip: Mapped[str]
    fabric: Mapped[str]
    stack: Mapped[str] = mapped_column(index=True)
    architecture: Mapped[str] = mapped_column(index=True)
    profile_id: Mapped[str]
    profile_version: Mapped[int]
    prediction_id: Mapped[str | None] = mapped_column(ForeignKey("predictions.id"))
    recommendation_id: Mapped[str | None] = mapped_column(ForeignKey("recommendations.id"))
    choice: Mapped[str | None]
    step_time_s: Mapped[float | None]
    predicted_step_time_s: Mapped[float]
    residual: Mapped[float | None]
    within_interval: Mapped[bool | None]
    withdrawn_at: Mapped[datetime | None]
    log_hash: Mapped[str | None] = mapped_column(index=True)
    run_hash: Mapped[str] = mapped_column(server_default="")
    submission: Mapped[str] = mapped_column(Text, deferred=True)
    document: Mapped[dict[str, Any]]


class BenchmarkRow(Owned, Table):
    """`submission` is what came, as it came, and loaded where it is asked for only; `chip` and
    `stack` are whom it informs."""

    __tablename__ = "benchmarks"
    __table_args__ = (_listed(__tablename__),)

    id: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime] = mapped_column(index=True)
    chip: Mapped[str]
    stack: Mapped[str]
    submission: Mapped[str] = mapped_column(Text, deferred=True)
    question: Mapped[dict[str, Any]]
    document: Mapped[dict[str, Any]]


class EvidenceRow(Table):
    """A published run. `release`: hash of the file that it came with; all rows have the same."""

    __tablename__ = "evidence"

    id: Mapped[str] = mapped_column(primary_key=True)
    release: Mapped[str]
    document: Mapped[dict[str, Any]]


class CatalogRow(Table):
    """A version of an entry that a user registered; `kind` is "chips", "clusters" or
    "architectures"."""

    __tablename__ = "catalog_entries"

    kind: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    created_at: Mapped[datetime]
    entry: Mapped[dict[str, Any]]


class IdempotencyRow(Table):
    """A key from its claim on; `status` and what follows are filled when the answer is there.

    `token` is the claim: a process that was taken for dead cannot finish what another took over.
    """

    __tablename__ = "idempotency_keys"

    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str]
    token: Mapped[str]
    claimed_at: Mapped[datetime] = mapped_column(index=True)
    status: Mapped[int | None]
    location: Mapped[str | None]
    document: Mapped[dict[str, Any] | None]


class ApiKeyRow(Table):
    """`secret_hash`: SHA-256 of the secret, which is random enough to need no salt."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(JSON)
    secret_hash: Mapped[str]
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
