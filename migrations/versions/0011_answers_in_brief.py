"""answers in brief, for lists: what is read off whole documents takes PostgreSQL ten times as long

Revision 0011, after 0010.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_QUESTION = ("model", "cluster", "workload", "stack")
_OF_THE_FASTEST = ("layout", "step_time_s", "mfu", "fit_probability")


def upgrade() -> None:
    for table in ("predictions", "recommendations"):
        op.add_column(
            table,
            sa.Column("brief", sa.JSON(none_as_null=True), nullable=False, server_default="{}"),
        )
        _fill(table)


def _fill(table: str) -> None:
    """One by one: they are large."""
    answers = sa.table(
        table,
        sa.column("id", sa.String),
        sa.column("document", sa.JSON),
        sa.column("brief", sa.JSON(none_as_null=True)),
    )
    connection, x = op.get_bind(), answers.c
    for id_ in connection.scalars(sa.select(x.id)).all():
        document = connection.scalars(sa.select(x.document).where(x.id == id_)).one()
        connection.execute(sa.update(answers).where(x.id == id_).values(brief=_brief(document)))


def _brief(document: dict[str, Any]) -> dict[str, Any]:
    brief: dict[str, Any] = {"request": {name: document["request"][name] for name in _QUESTION}}
    if "fastest" in document:
        shown = document["fastest"]
        if isinstance(shown, int):  # a position, in answers of later releases
            shown = document["layouts"][document["recommended"]]
        best = shown["prediction"]
        brief["result"] = {
            "chips_used": document["chips_used"],
            **{name: best.get(name) for name in _OF_THE_FASTEST},
            "exact": document["certificate"]["exact"],
        }
    return brief


def downgrade() -> None:
    for table in ("recommendations", "predictions"):
        op.drop_column(table, "brief")
