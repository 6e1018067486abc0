"""indexes that find the first row of a tenant with a text or with words, in order

Revision 0018, after 0017. Without the id at their end, databases preferred to read all rows of the
tenant, which have an index in the order of ids.
"""

from __future__ import annotations

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_INDEXES = {
    "ix_predictions_text": ("predictions", ["text_key", "tenant"], ["text_key", "tenant", "id"]),
    "ix_recommendations_text": (
        "recommendations",
        ["text_key", "tenant"],
        ["text_key", "tenant", "id"],
    ),
    "ix_reports_words_hash": ("reports", ["words_hash"], ["words_hash", "tenant", "id"]),
}
"""The table of each, its columns before and after."""


def upgrade() -> None:
    for name, (table, _, after) in _INDEXES.items():
        op.drop_index(name, table)
        op.create_index(name, table, after)


def downgrade() -> None:
    for name, (table, before, _) in _INDEXES.items():
        op.drop_index(name, table)
        op.create_index(name, table, before)
