"""Keeps what one tenant reported from the others.

All tenants share the versions of a profile, which are learnt from everybody's reports. What a
tenant is shown of a version leaves out the reports of others, the chips and fabrics that only
others have described, and when others measured. A *kind* of runs is those of one chip or fabric.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from models.calibration.influences import joined
from models.spec import catalogue
from models.spec.influences import Influence, Influences
from models.spec.profile import FLEET
from service.store import Rows

Document = dict[str, Any]


def shared_influences(influences: Influences) -> Influences:
    """Returns the influences of a version (how far each group of reports moved it) as any tenant
    may see them: without ids of reports, and with only those names that the shipped catalogue has.
    Groups that then have the same names are joined."""
    groups = defaultdict[tuple[object, ...], list[Influence]](list)
    for group in map(_without_private_names, influences.groups):
        groups[group.chip, group.stack, group.model, group.parameters].append(group)
    return replace(influences, groups=tuple(map(joined, groups.values())))


def _without_private_names(group: Influence) -> Influence:
    """Returns the influence of a group of reports without their ids, and without names that the
    shipped catalogue does not have, because tenants chose those."""
    has_known_chip = group.chip in {chip.id for chip in catalogue.chips().values()}
    has_known_stack = group.stack in {stack.id for stack in catalogue.stacks().values()}
    models = {architecture.name for architecture in catalogue.architectures().values()}
    has_known_model = group.model in models
    return replace(
        group,
        chip=group.chip if has_known_chip else None,
        stack=group.stack if has_known_stack else None,
        model=group.model if has_known_model else None,
        parameters=group.parameters if has_known_model else None,
        latest=(),  # the ids of the newest reports
    )


class Disclosure:
    """Removes from documents all that would tell a tenant of the rows of others."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._known_chips = {
            *(chip.id for chip in catalogue.chips().values()),
            *rows.reports.names("chip"),  # of the tenant's own reports
        }
        fabrics = {fabric.id for fabric in catalogue.fabrics().values()}
        self._known_fabrics = fabrics | self._known_chips  # a chip's own links are named after it

    def terms(self, terms: Sequence[Document]) -> list[Document]:
        """Returns the terms of a profile whose scope the tenant may see."""
        return [term for term in terms if self._may_name(term["scope"])]

    def calibration(self, document: Document) -> Document:
        """Returns a calibration's document without the ids, chips, fabrics and dates of other
        tenants' reports."""
        reports = [*document["outliers"], *(report["report"] for report in document["unusable"])]
        visible = self._rows.reports.existing_ids(reports)
        return {
            **document,
            **self._errors_by_kind(document),
            "window": {**document["window"], "first": None, "last": None},
            # The sentence may name a chip of others.
            "promotion": {**document["promotion"], "reason": self._promotion_reason(document)},
            "changes": [
                change
                for change in document.get("changes", [])
                if change["chip"] in self._known_chips
            ],
            "moved": self.terms(document["moved"]),
            "unidentified": self.terms(document["unidentified"]),
            "outliers": [id_ for id_ in document["outliers"] if id_ in visible],
            "unusable": [report for report in document["unusable"] if report["report"] in visible],
        }

    def _errors_by_kind(self, document: Document) -> Document:
        """Returns the errors on unseen and published runs, with only those kinds of run whose chip
        or fabric the tenant knows."""
        errors = dict[str, Any]()
        for name in ("unseen", "unseen_memory", "published"):
            run_errors = document.get(name)
            if run_errors:
                kinds = [kind for kind in run_errors["kinds"] if self._may_name(kind["kind"])]
                run_errors = {**run_errors, "kinds": kinds}
            errors[name] = run_errors
        return errors

    def _promotion_reason(self, document: Document) -> str:
        """Returns the reason of a promotion, or one in general words if it names a chip that only
        others have."""
        reason: str = document["promotion"]["reason"]
        errors = (document.get("unseen"), document.get("unseen_memory"))
        kinds = [kind["kind"] for held_out in errors if held_out for kind in held_out["kinds"]]
        # The reason has the kind, such as a chip, whose error grows: service.learning.promotion
        if any(f" of {kind} " in reason for kind in kinds if not self._may_name(kind)):
            return "the error on runs of a chip of others grows by more than the margin"
        return reason

    def _may_name(self, scope: str) -> bool:
        """Returns whether the tenant may see a scope of the profile: it knows the chip or fabric in
        it, or the scope has neither. A scope is "chip:NAME", "fabric:NAME", or a pair "CHIP/STACK",
        with "fleet:" before it for coefficients of one deployment's machines. "fleet:model:SIZE"
        and "fleet:sequence:LENGTH" are never shown, since they would tell what others train."""
        kind, _, name = scope.removeprefix(f"{FLEET}:").partition(":")
        chip, pair, _ = kind.partition("/")
        if kind in ("model", "sequence"):
            return False
        if kind == "chip":
            return name in self._known_chips
        if kind == "fabric":
            return name in self._known_fabrics
        return not pair or chip in self._known_chips  # without a pair, such as "stack:NAME"
