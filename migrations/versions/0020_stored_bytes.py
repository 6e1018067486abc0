"""how many bytes each row counts for, and each tenant has stored

Revision 0020, after 0019.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_ROW_BYTES, _SWEEP_ITEM_BYTES = 512, 2048  # as in service.store.quota
_DOCUMENTS = {
    "predictions": ("document", "brief"),
    "recommendations": ("document", "brief"),
    "reports": ("submission", "document"),
    "benchmarks": ("submission", "question", "document"),
    "sweeps": ("request", "names"),
    "profile_versions": ("content", "calibration", "learnt", "posterior"),
}
_ANSWERS = ("predictions", "recommendations")


def upgrade() -> None:
    op.create_table(
        "tenant_storage",
        sa.Column("tenant", sa.String(length=200), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", name="pk_tenant_storage"),
    )
    for table in _DOCUMENTS:
        size = sa.Column("stored_bytes", sa.BigInteger(), server_default="0", nullable=False)
        op.add_column(table, size)
        _measure(table)
    _add_up()


def _measure(name: str) -> None:
    columns = "stored_bytes", "tenant", "text_key", "total", *_DOCUMENTS[name]
    table = sa.table(name, *map(sa.column, columns))
    size: Any = _ROW_BYTES + sum(_length(table.c[column]) for column in _DOCUMENTS[name])
    if name in _ANSWERS:
        texts = sa.table("answer_texts", *map(sa.column, ("key", "brief", "gzip")))
        text = sa.func.length(texts.c.gzip) + _length(texts.c.brief)
        of_row = sa.select(text).where(texts.c.key == table.c.text_key).scalar_subquery()
        size += sa.func.coalesce(of_row, 0)
    if name == "sweeps":
        size += table.c.total * _SWEEP_ITEM_BYTES
    measured = sa.update(table).values(stored_bytes=size)
    if name == "profile_versions":  # those that all share count for nobody
        measured = measured.where(table.c.tenant.is_not(None))
    op.execute(measured)


def _length(column: Any) -> Any:
    return sa.func.coalesce(sa.func.length(sa.cast(column, sa.Text)), 0)


def _add_up() -> None:
    storage = sa.table("tenant_storage", sa.column("tenant"), sa.column("bytes"))
    rows = []
    for name in _DOCUMENTS:
        table = sa.table(name, sa.column("tenant"), sa.column("stored_bytes"))
        rows.append(sa.select(table.c.tenant, table.c.stored_bytes))
    counted = sa.union_all(*rows).subquery()
    tenant = sa.func.coalesce(counted.c.tenant, "")
    total = sa.cast(sa.func.sum(counted.c.stored_bytes), sa.BigInteger)
    sums = sa.select(tenant, total).group_by(tenant)
    op.execute(sa.insert(storage).from_select(["tenant", "bytes"], sums))


def downgrade() -> None:
    for table in reversed(_DOCUMENTS):
        op.drop_column(table, "stored_bytes")
    op.drop_table("tenant_storage")
