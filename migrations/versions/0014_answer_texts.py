"""the texts of answers, compressed, each once for all who ask; the hash of a report's words

Revision 0014, after 0013.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from datetime import UTC
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TABLES = ("predictions", "recommendations")
_JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    """Answers that are stored already keep their document in their own row."""
    op.create_table(
        "answer_texts",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("first_id", sa.String(64), nullable=False),
        sa.Column("first_created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("brief", _JSON, nullable=False),
        sa.Column("gzip", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_answer_texts"),
    )
    for table in _TABLES:
        op.add_column(table, sa.Column("text_key", sa.String(64), nullable=True))
        op.create_index(f"ix_{table}_text", table, ["text_key", "tenant"])
    op.add_column("reports", sa.Column("words_hash", sa.String(64), nullable=True))
    op.create_index("ix_reports_words_hash", "reports", ["words_hash"])
    _hash_words()


def _hash_words() -> None:
    """One by one: they are large."""
    names = ("outcome", "run_hash", "submission")
    reports = sa.table("reports", *map(sa.column, ("id", *names, "words_hash")))
    connection, x = op.get_bind(), reports.c
    for id_ in connection.scalars(sa.select(x.id)).all():
        said = connection.execute(sa.select(*(x[name] for name in names)).where(x.id == id_)).one()
        hashed = hashlib.sha256("\n".join(said).encode()).hexdigest()
        connection.execute(sa.update(reports).where(x.id == id_).values(words_hash=hashed))


def downgrade() -> None:
    op.drop_index("ix_reports_words_hash", "reports")
    op.drop_column("reports", "words_hash")
    for table in _TABLES:
        _restore_documents(table)
        op.drop_index(f"ix_{table}_text", table)
        op.drop_column(table, "text_key")
    op.drop_table("answer_texts")


def _restore_documents(table: str) -> None:
    """One by one: they are large."""
    answers = sa.table(
        table,
        sa.column("id", sa.String),
        sa.column("created_at", sa.DateTime(timezone=True)),
        sa.column("text_key", sa.String),
        sa.column("brief", _JSON),
        sa.column("document", _JSON),
    )
    texts = sa.table(
        "answer_texts",
        sa.column("key", sa.String),
        sa.column("first_id", sa.String),
        sa.column("brief", _JSON),
        sa.column("gzip", sa.LargeBinary),
    )
    connection = op.get_bind()
    x = answers.c
    kept = sa.select(x.id, x.created_at, x.text_key).where(x.text_key.is_not(None))
    for id_, created_at, key in connection.execute(kept).all():
        text = connection.execute(sa.select(texts).where(texts.c.key == key)).one()
        document = _document(text, id_, created_at)
        restored = sa.update(answers).where(answers.c.id == id_)
        connection.execute(restored.values(document=document, brief=text.brief))


def _document(text: Any, id_: str, created_at: Any) -> dict[str, Any]:
    """The text as the answer of this id, which it names in several places."""
    shared = gzip.decompress(text.gzip).decode()
    document: dict[str, Any] = json.loads(shared.replace(text.first_id, id_))
    if id_ != text.first_id:
        utc = created_at.astimezone(UTC) if created_at.tzinfo else created_at
        document["created_at"] = f"{utc.replace(tzinfo=None).isoformat()}Z"
    return document
