"""Base classes of all wire schemas, which refuse unknown fields and never guess numbers from
text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from models.errors import Invalid
from service.json_pointers import TAG_PREFIX


class Wire(BaseModel):
    """A request or a part of one."""

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )


def reject_boolean(value: object) -> object:
    """Returns the value unchanged. Raises ValueError for true and false, which pydantic would
    accept where 1 and 0 are literals."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


class Document(BaseModel):
    """An answer or a part of one."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def from_attributes(cls, source: object, /, **others: Any) -> Self:
        """Returns a document with the fields in `others`, and for all other fields the attributes
        of `source` that have their names."""
        shared = {
            name: getattr(source, name)
            for name in cls.model_fields.keys() - others.keys()
            if hasattr(source, name)
        }
        return cls.model_validate({**shared, **others}, from_attributes=True)


class Page(Document):
    items: list[Any]
    next: str | None
    """The cursor of the next page."""


UNNAMED = "custom"
"""The name of a model or a chip that is given without one."""

Name = Annotated[
    str, StringConstraints(min_length=1, max_length=120, pattern=r"^[!-~]([ -~]*[!-~])?$")
]
"""The name of something to look up; `name@3` is version 3 of an entry that was registered here."""

Label = Annotated[str, StringConstraints(max_length=500)]

Degree = Annotated[int, Field(ge=1, le=10**6)]
Size = Annotated[int, Field(ge=1, le=2**24)]


def _require_date_text(value: object) -> object:
    """Returns the value unchanged. Raises ValueError for a number, of which pydantic would guess
    whether it counts seconds or milliseconds."""
    if isinstance(value, datetime) or (isinstance(value, str) and _DATE.match(value.strip())):
        return value
    raise ValueError("must be a date and a time of day with a zone, such as 2026-01-31T12:00:00Z")


_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
Instant = Annotated[
    AwareDatetime,
    Field(strict=False, ge=datetime(2000, 1, 1, tzinfo=UTC), lt=datetime(9000, 1, 1, tzinfo=UTC)),
    BeforeValidator(_require_date_text),
]
"""A time with its zone."""


class TimeSpan(Wire):
    """`since` is inclusive, `until` exclusive."""

    since: Instant | None = None
    until: Instant | None = None

    @model_validator(mode="after")
    def _require_order(self) -> Self:
        """Raises Invalid where the span ends before it begins."""
        if self.since is not None and self.until is not None and self.since >= self.until:
            rule = f"must be after since = {self.since.isoformat()}"
            raise Invalid("until", self.until.isoformat(), rule)
        return self


Member = TypeVar("Member")
Several = Annotated[list[Member], Field(max_length=32)]
"""Values of a filter, of which any will do; none lets everything through."""

BandwidthGbS = Annotated[float, Field(ge=1e-3, le=1e6)]
"""GB/s = 1e9 bytes a second, one way."""


def _list_union_tag(value: object) -> str:
    return f"{TAG_PREFIX}list" if isinstance(value, list) else f"{TAG_PREFIX}one"


def _name_union_tag(value: object) -> str:
    has_fields = isinstance(value, (Mapping, BaseModel))
    return f"{TAG_PREFIX}fields" if has_fields else f"{TAG_PREFIX}name"


Fields = TypeVar("Fields")
NameOrFields = Annotated[
    Annotated[Name, Tag(f"{TAG_PREFIX}name")] | Annotated[Fields, Tag(f"{TAG_PREFIX}fields")],
    Discriminator(_name_union_tag),
]
"""The name of an entry of the catalogue, or an object that describes one."""

Value = TypeVar("Value")
OneOrMany = Annotated[
    Annotated[Value, Tag(f"{TAG_PREFIX}one")]
    | Annotated[list[Value], Field(min_length=1, max_length=64), Tag(f"{TAG_PREFIX}list")],
    Discriminator(_list_union_tag),
]
"""A value, or a list of the values that are allowed."""
