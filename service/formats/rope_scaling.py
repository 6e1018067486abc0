"""Rotary positions, stretched beyond the length that a model was first trained at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """The `rope_scaling` of a config.json, by the names that transformers has for it."""

    kind: str
    """`rope_type`: llama3, yarn, linear, dynamic, longrope and others."""
    numbers: Mapping[str, float]
    """The numbers beside it, such as `factor` and `original_max_position_embeddings`."""

    @classmethod
    def of(cls, document: Mapping[str, object]) -> Self | None:
        """Returns the scaling that a document describes; None where positions are not scaled."""
        kind = document.get("rope_type", document.get("type"))
        if not isinstance(kind, str) or kind == "default":
            return None
        numbers = {
            name: float(value)
            for name, value in document.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        return cls(kind=kind, numbers=numbers)

    def number(self, name: str, default: float) -> float:
        return self.numbers.get(name, default)

    @property
    def shown(self) -> str:
        """Returns the scaling in words: "yarn, factor 40"."""
        return f"{self.kind}, factor {self.number('factor', 1.0):g}"

    def has_numbers(self, **numbers: float) -> bool:
        """Returns True where the scaling has these numbers. Pass the defaults of a framework: a
        number that the scaling leaves out counts as equal."""
        return all(self.number(name, value) == value for name, value in numbers.items())
