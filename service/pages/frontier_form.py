"""The form for a frontier: a question, the two axes of its picture, and their values. A *frontier*
says for which clusters and models around the question a pipeline is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.errors import Invalid
from service.pages.glossary import FIELDS
from service.pages.question_form import DEFAULTS, QuestionForm, number


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    """The name of the axis in the grid of a request."""
    label: str
    """The label of the axis in the picture, with its unit."""
    values: tuple[float, ...]
    """The values that are drawn unless the form has others. They are few, since every one is a
    column of searches."""

    @property
    def words(self) -> str:
        return FIELDS[f"grid.{self.name}"]


AXES = {
    axis.name: axis
    for axis in (
        Axis("domain", "Chips in a scale-up domain (chips)", (8, 16, 32, 64, 128, 256)),
        Axis("scale_up", "Bandwidth within a domain (1 = as in the question)", (0.5, 1, 2, 4, 8)),
        Axis(
            "scale_out", "Bandwidth between domains (1 = as in the question)", (0.25, 0.5, 1, 2, 4)
        ),
        Axis("num_chips", "Chips at the same batch (chips)", (0.25, 0.5, 1, 2, 4)),
        Axis("layers", "Layers (times those of the model)", (0.5, 1, 1.5, 2, 3)),
    )
}
_RELATIVE_AXIS = "num_chips"
"""The axis whose own values are multiples of what the question has."""


@dataclass(frozen=True, slots=True)
class FrontierForm:
    question: QuestionForm
    axes: tuple[str, str]
    """Across and up."""
    typed: tuple[str, str]
    """Their values as somebody typed them."""

    @classmethod
    def of(cls, sent: Mapping[str, str]) -> FrontierForm:
        """Returns the form with the fields that a URL has: the question, the axes and the values
        typed for them."""
        across, up = sent.get("x", "domain"), sent.get("y", "scale_up")
        typed = sent.get("x_values", "").strip(), sent.get("y_values", "").strip()
        return cls(QuestionForm.of(sent), (across, up), typed)

    @property
    def shown(self) -> dict[str, str]:
        """Returns the text of every field as the form shows it. Fields of the URL replace
        defaults."""
        across, up = self.axes
        return {
            **self.question.values,
            **DEFAULTS,
            **self.question.query,
            "x": across,
            "y": up,
            "x_values": self.typed[0],
            "y_values": self.typed[1],
        }

    def body(self) -> dict[str, Any]:
        """Returns the body of a request for a frontier. Raises Invalid for an unknown axis, or
        where both axes are the same."""
        across, up = self.axes
        for place, name in (("x", across), ("y", up)):
            if name not in AXES:
                raise Invalid(place, name, f"must be one of {', '.join(AXES)}")
        if across == up:
            raise Invalid("y", up, "must be another axis than x")
        grid = {
            name: self._values(name, text) for name, text in zip(self.axes, self.typed, strict=True)
        }
        return {**self.question.question(), "grid": grid}

    def _values(self, name: str, text: str) -> list[Any]:
        """Returns the values of an axis: those typed, such as "8, 16, 72", or else its defaults.
        Defaults for the number of chips are multiples of the question's, and none without one."""
        if text:
            return [number(part.strip()) for part in text.split(",") if part.strip()]
        defaults = AXES[name].values
        if name != _RELATIVE_AXIS:
            # `Axis.values` are floats, and a domain is a whole number of chips.
            return [int(value) if name == "domain" else value for value in defaults]
        num_chips = self.question.question().get("cluster", {}).get("num_chips")
        if not isinstance(num_chips, int):
            return []
        return [max(round(num_chips * value), 1) for value in defaults]
