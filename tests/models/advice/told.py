"""The sentences of an answer, by kind."""

from __future__ import annotations

from collections.abc import Iterable

from models.advice.reason import Kind, Reason


def told(reasons: Iterable[Reason], kind: Kind) -> list[str]:
    return [reason.sentence for reason in reasons if reason.kind == kind]
