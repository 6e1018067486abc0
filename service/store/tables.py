"""The tables. A row's `document` is JSON as it was answered; the columns beside it are those that
queries need."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
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
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column


class UtcDateTime(TypeDecorator[datetime]):
    """An instant in UTC. SQLite does not store the zone, so it is set again on the way out."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Returns the instant in UTC, as it is stored."""
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Returns the stored instant with the zone UTC, which SQLite has dropped."""
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


TENANT = "tenant"
SEEN = "seen"
KEY_ID = "key_id"
MAX_STORED, STORED = "max_stored", "stored"
"""Keys of a session's `info`: the tenant whose rows the session makes, the tenant whose rows it
sees (None: it sees all), the API key for which it works, how many bytes a tenant may store, and how
many more each tenant has stored in the transaction (service.store.quota)."""


class Owned:
    """Rows that belong to a tenant (service.api_keys), or to nobody where the service asks for no
    keys. A store of a tenant (service.store) sees and makes only that tenant's rows."""

    tenant: Mapped[str | None] = mapped_column()


class Counted:
    """Rows whose bytes count toward what their tenant may store (service.store.quota). Rows that an
    earlier release stored without counting have 0."""

    stored_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")


class OwnedOrShared:
    """Rows that belong to a tenant, or to all tenants where `tenant` is null. A store of a tenant
    sees its own and the shared ones."""

    tenant: Mapped[str | None] = mapped_column()


def _profile_version_key() -> ForeignKeyConstraint:
    """Returns the foreign key to the version of the profile that an answer was made with."""
    return ForeignKeyConstraint(
        ["profile_id", "profile_version"],
        ["profile_versions.profile_id", "profile_versions.version"],
    )


def _tenant_index(table: str) -> Index:
    """Returns an index for lists of what a tenant has, newest first."""
    return Index(f"ix_{table}_tenant", "tenant", "id")


class ProfileRow(OwnedOrShared, Table):
    """A profile. `revision` grows with every change and is shown in the ETag. `policy` says who
    activates the versions that calibrations make. A tenant's own profile (service.own_profile)
    stands in for the shared one unless `active_version` is null."""

    __tablename__ = "profiles"

    id: Mapped[str] = mapped_column(primary_key=True)
    active_version: Mapped[int | None]
    revision: Mapped[int]
    policy: Mapped[dict[str, Any]]


class ProfileVersionRow(OwnedOrShared, Counted, Table):
    """A version of a profile, which is never changed. `origin` is "shipped" or "calibrated".
    `content_hash` shows whether a release ships another content. `learnt` says which reports the
    version rests on. `posterior` (models.calibration.posterior) is loaded by calibrations only; a
    tenant's own version has none, since nothing is learnt on top of it."""

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


class AnswerTextRow(Table):
    """The text of an answer, kept once for all who are answered with it.

    `key` is the digest of the question with everything else that decides the answer
    (service.ask.answer_keys), or the answer's own id where nobody else may be given it. `first_id`
    and `first_created_at` are the id and the time in the text. `brief` is what lists show of the
    answer (service.ask.answer_pages).
    """

    __tablename__ = "answer_texts"

    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    first_id: Mapped[str] = mapped_column(String(64))
    first_created_at: Mapped[datetime]
    brief: Mapped[dict[str, Any]]
    gzip: Mapped[bytes]


class GivenAnswer(Owned, Counted):
    """The columns of an answer as a caller was given it. `text_key` names its text. Predictions and
    recommendations of an earlier release have no text, but their `document` and `brief` here. In
    all other rows these two are empty."""

    id: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime] = mapped_column(index=True)
    profile_id: Mapped[str]
    profile_version: Mapped[int]
    text_key: Mapped[str | None] = mapped_column(String(64))
    brief: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    document: Mapped[dict[str, Any]] = mapped_column(default=dict)

    @declared_attr.directive
    @classmethod
    def __table_args__(cls) -> tuple[Any, ...]:
        """Returns the foreign key and the indexes of the table."""
        name = cls.__tablename__  # type: ignore[attr-defined]  # every subclass has one
        # By it a tenant's first answer with a text is found.
        by_text = Index(f"ix_{name}_text", "text_key", "tenant", "id")
        return _profile_version_key(), _tenant_index(name), by_text


class PredictionRow(GivenAnswer, Table):
    __tablename__ = "predictions"


class RecommendationRow(GivenAnswer, Table):
    __tablename__ = "recommendations"


class CheckRow(GivenAnswer, Table):
    """A check of a job that was to be stored."""

    __tablename__ = "checks"


class ReportRow(Owned, Counted, Table):
    """A report. `submission` is the text as it was received, loaded only on request; of a withdrawn
    report it is empty where it was long. `residual` is the log of measured over predicted step
    time. A report with a `withdrawn_at` is kept but counts nowhere. `run_hash` is the hash of
    question and layout, which all reports of the same run share; `log_hash` that of a training log
    with its run; `words_hash` that of the run with its submission."""

    __tablename__ = "reports"
    __table_args__ = (
        _profile_version_key(),
        _tenant_index(__tablename__),
        Index("ix_reports_profile", "profile_id", "profile_version"),
        Index("ix_reports_words_hash", "words_hash", "tenant", "id"),
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
    prediction_id: Mapped[str | None] = mapped_column(ForeignKey("predictions.id"), index=True)
    recommendation_id: Mapped[str | None] = mapped_column(
        ForeignKey("recommendations.id"), index=True
    )
    check_id: Mapped[str | None] = mapped_column(ForeignKey("checks.id"), index=True)
    choice: Mapped[str | None]
    step_time_s: Mapped[float | None]
    predicted_step_time_s: Mapped[float]
    residual: Mapped[float | None]
    within_interval: Mapped[bool | None]
    withdrawn_at: Mapped[datetime | None]
    log_hash: Mapped[str | None] = mapped_column(index=True)
    run_hash: Mapped[str] = mapped_column(server_default="")
    words_hash: Mapped[str | None] = mapped_column(String(64))
    submission: Mapped[str] = mapped_column(Text, deferred=True)
    document: Mapped[dict[str, Any]]


class ReportLabelRow(Table):
    """A label of a report, which the report's document has as well: lists are filtered by it."""

    __tablename__ = "report_labels"
    __table_args__ = (Index("ix_report_labels_value", "name", "value", "report_id"),)

    report_id: Mapped[str] = mapped_column(ForeignKey("reports.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]


class BenchmarkRow(Owned, Counted, Table):
    """A micro-benchmark. `submission` is the text as it was received, loaded only on request. One
    with a `withdrawn_at` is kept but counts nowhere."""

    __tablename__ = "benchmarks"
    __table_args__ = (_tenant_index(__tablename__),)

    id: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime] = mapped_column(index=True)
    chip: Mapped[str]
    stack: Mapped[str]
    submission: Mapped[str] = mapped_column(Text, deferred=True)
    question: Mapped[dict[str, Any]]
    document: Mapped[dict[str, Any]]
    withdrawn_at: Mapped[datetime | None]


class SweepRow(Owned, Counted, Table):
    """A sweep: the answers to every combination of what its `request` lists. `names` has a name to
    show for each listed model, cluster and stack. `sees_all` is whether its caller sees what
    belongs to other tenants. `total` is the number of its items, of which `waiting` have no result.
    `events` is the number of times that one of its items was finished."""

    __tablename__ = "sweeps"
    __table_args__ = (_profile_version_key(), _tenant_index(__tablename__))

    id: Mapped[str] = mapped_column(primary_key=True)
    sees_all: Mapped[bool]
    created_at: Mapped[datetime]
    profile_id: Mapped[str]
    profile_version: Mapped[int]
    request: Mapped[dict[str, Any]]
    names: Mapped[dict[str, Any]]
    total: Mapped[int]
    waiting: Mapped[int]
    events: Mapped[int]
    cancelled_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class SweepItemRow(Table):
    """One combination of a sweep, by its position among all. `outcome` is null while it waits or is
    computed. The worker that computes it holds a `lease` on it; after `leased_until` another may
    take it. `event` is the number of the sweep's event that told its result."""

    __tablename__ = "sweep_items"
    __table_args__ = (
        Index(
            "ix_sweep_items_waiting",
            "position",
            "sweep_id",
            sqlite_where=text("outcome IS NULL"),
            postgresql_where=text("outcome IS NULL"),
        ),
        Index("ix_sweep_items_event", "sweep_id", "event"),
    )

    sweep_id: Mapped[str] = mapped_column(
        ForeignKey("sweeps.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempts: Mapped[int]
    lease: Mapped[str | None] = mapped_column(String(64))
    leased_until: Mapped[datetime | None]
    outcome: Mapped[str | None] = mapped_column(String(16))
    event: Mapped[int | None]
    result: Mapped[dict[str, Any] | None]


class EvidenceRow(Table):
    """A published run. `release` is the hash of the file that it came with, the same in all
    rows."""

    __tablename__ = "evidence"

    id: Mapped[str] = mapped_column(primary_key=True)
    release: Mapped[str]
    document: Mapped[dict[str, Any]]


class RegisteredEntryRow(Table):
    """A version of an entry that a user registered; `kind` is "chips", "clusters" or
    "architectures"."""

    __tablename__ = "catalog_entries"

    kind: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    created_at: Mapped[datetime]
    entry: Mapped[dict[str, Any]]


class IdempotencyRow(Table):
    """A claimed Idempotency-Key. `status`, `location` and `document` are set once it is answered.

    `token` belongs to the request that claimed it. The process of that request renews the claim
    again and again, so that `leased_until`, by the clock of the database, passes soon after the
    process has ended. A request that was taken for dead cannot finish a claim that another has
    taken over, because the token has changed.
    """

    __tablename__ = "idempotency_keys"

    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str]
    token: Mapped[str]
    claimed_at: Mapped[datetime] = mapped_column(index=True)
    leased_until: Mapped[datetime | None]
    status: Mapped[int | None]
    location: Mapped[str | None]
    document: Mapped[dict[str, Any] | None]


class TenantStorageRow(Table):
    """The bytes that a tenant has stored. The empty name counts the rows that no tenant owns."""

    __tablename__ = "tenant_storage"

    tenant: Mapped[str] = mapped_column(primary_key=True)
    bytes: Mapped[int] = mapped_column(BigInteger)


class WriteCheckRow(Table):
    """A row that a check of readiness has written (service.store.write_checks)."""

    __tablename__ = "write_checks"

    id: Mapped[str] = mapped_column(primary_key=True)
    filler: Mapped[bytes]


class ApiKeyRow(Table):
    """An API key. `secret_hash` is the SHA-256 of its secret, which is random enough to need no
    salt. `last_used_at` is exact to the hour."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(JSON)
    secret_hash: Mapped[str]
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class AuditRow(Table):
    """A change of keys, profiles, reports or benchmarks, or a drop of answers, and who made it.
    `key_id` and `tenant` are those of the key that the request carried. They are null for commands,
    for what the service does by itself, and where it asks for no keys. `subject` names what was
    changed. `details` hold no secret."""

    __tablename__ = "audit_entries"

    id: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime]
    key_id: Mapped[str | None]
    tenant: Mapped[str | None]
    action: Mapped[str]
    subject: Mapped[str]
    details: Mapped[dict[str, Any]]
