"""Versions of a profile as rows of a table and marks of a picture, out of the API's documents.
*Unseen* runs are those that a calibration held out, to test what it learnt from the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_KINDS = {"chip": "chip", "stack": "framework"}


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version, and the errors of the calibration that made it, as medians of
    |predicted / measured - 1|."""

    version: int
    created_at: str
    made_by: str
    is_active: bool
    calibration: Mapping[str, Any] | None
    """The calibration in the form of the API; None for a shipped version."""

    @classmethod
    def of(cls, version: Mapping[str, Any], active: int | None) -> VersionRow:
        """Returns the row of a version. `active` is the number of the profile's active version."""
        return cls(
            version=version["version"],
            created_at=version["created_at"],
            made_by=version["made_by"],
            is_active=version["version"] == active,
            calibration=version["calibration"],
        )

    @property
    def unseen(self) -> Mapping[str, Any] | None:
        """Returns the errors of step times on runs that the calibration did not see; None where
        there are none."""
        return self.calibration and self.calibration["unseen"]

    @property
    def mark(self) -> dict[str, Any] | None:
        """Returns the fields that the picture draws; None where no error on unseen runs is
        known."""
        if self.unseen is None:
            return None
        return {
            "version": self.version,
            "is_active": self.is_active,
            "before": self.unseen["error_before"],
            "after": self.unseen["error_after"],
        }


def kind_rows(unseen: Mapping[str, Any] | None) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Returns the errors on unseen runs as (grouping, name, errors), such as by chip and by
    framework."""
    rows = []
    for errors in unseen["kinds"] if unseen else ():
        grouping, _, name = errors["kind"].partition(":")  # such as "chip:h100"
        rows.append((_KINDS.get(grouping, grouping), name, errors))
    return rows
