"""What a version of a profile, which is for all, shows a tenant of what others reported: no report,
no chip that only they have described, and not when they measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models.spec import catalogue
from models.spec.profile import FLEET
from service.store import Rows

Document = dict[str, Any]


class Disclosure:
    """To the one whose rows these are."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._chips = {
            *(chip.id for chip in catalogue.chips().values()),
            *rows.reports.names("chip"),
        }

    def terms(self, terms: Sequence[Document]) -> list[Document]:
        return [term for term in terms if self._may_name(term["scope"])]

    def calibration(self, document: Document) -> Document:
        named = [*document["outliers"], *(one["report"] for one in document["unusable"])]
        mine, judged = self._rows.reports.existing_ids(named), {}
        for name in ("unseen", "unseen_memory", "published"):
            found = document.get(name)
            judged[name] = found and {
                **found,
                "kinds": [kind for kind in found["kinds"] if self._may_name(kind["kind"])],
            }
        return {
            **document,
            **judged,
            "window": {**document["window"], "first": None, "last": None},
            "promotion": {**document["promotion"], "reason": self._reason(document)},
            "moved": self.terms(document["moved"]),
            "unidentified": self.terms(document["unidentified"]),
            "outliers": [id_ for id_ in document["outliers"] if id_ in mine],
            "unusable": [one for one in document["unusable"] if one["report"] in mine],
        }

    def _reason(self, document: Document) -> str:
        reason: str = document["promotion"]["reason"]
        judged = [found for name in ("unseen", "unseen_memory") if (found := document.get(name))]
        kinds = [kind["kind"] for found in judged for kind in found["kinds"]]
        if any(f" of {kind} " in reason for kind in kinds if not self._may_name(kind)):
            return "the error on runs of a chip of others grows by more than the margin"
        return reason

    def _may_name(self, scope: str) -> bool:
        kind, _, name = scope.removeprefix(f"{FLEET}:").partition(":")
        chip, pair, _ = kind.partition("/")
        if kind == "chip":
            return name in self._chips
        return not pair or chip in self._chips
