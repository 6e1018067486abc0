"""The choice of a layout of an earlier answer."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.errors import Invalid
from service.schemas.run_subject import Choice


class LayoutQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    rank: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Position of the layout in a prediction, from 1, which is required where there are several; or
    its rank in a recommendation, without which it is the recommended one."""


class RecommendedLayoutQuery(LayoutQuery):
    choice: Choice | None = None
    """Instead of `rank`: the name that the layout has in the recommendation."""

    @model_validator(mode="after")
    def _refuse_both(self) -> Self:
        """Raises Invalid where both a choice and a rank are given."""
        if self.choice is not None and self.rank is not None:
            raise Invalid("choice", self.choice, "goes without rank")
        return self
