"""The place of a value in a request. Pydantic gives it as a location, a sequence of names and
indices; errors show it as a dotted field and as a JSON Pointer (RFC 6901)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from models.errors import Invalid

TAG_PREFIX = "@"
"""First character of the tags of unions in service.schemas. Pydantic puts these tags into
locations, although no caller wrote them."""

_STEP = re.compile(r"[^.\[\]]+")


def field_of(location: Sequence[str | int]) -> str:
    """Returns the dotted field: `model.layers[3]` for `("model", "@shape", "layers", 3)`."""
    field = ""
    for step in without_tags(location):
        if isinstance(step, int):
            field += f"[{step}]"
        else:
            field += f".{step}" if field else step
    return field


def name_of(location: Sequence[str | int]) -> str:
    """Returns the name of the field at a location, without the names of what contains it."""
    return field_of(location[-1:])


def pointer_of(location: Sequence[str | int]) -> str:
    """Returns the JSON Pointer: "/model/layers/3" for ("model", "@shape", "layers", 3)."""
    steps = map(str, without_tags(location))
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def location_of(field: str) -> list[str | int]:
    """Returns the location of a dotted field: ("layers", 3) for "layers[3]"."""
    return [int(step) if step.isdecimal() else step for step in _STEP.findall(field)]


def without_tags(location: Sequence[str | int]) -> list[str | int]:
    """Returns the location without the steps that pydantic adds: tags of unions, and "[key]" for
    the name of a member."""
    return [
        step
        for step in location
        if isinstance(step, int) or not step.startswith((TAG_PREFIX, "[key]"))
    ]


@contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Puts a prefix before the field of any Invalid raised in the block. The block reads the part
    of the request at that prefix. With "encoder", "layers[0]" becomes "encoder.layers[0]"."""
    try:
        yield
    except Invalid as error:
        raise error.prefixed(prefix) from None


@contextmanager
def relocate_errors(root: str, prefix: str) -> Iterator[None]:
    """Replaces `root` by `prefix` at the start of the field of an Invalid raised in the block. With
    ("model", "models[2]"), "model.layers" becomes "models[2].layers". Other fields stay."""
    try:
        yield
    except Invalid as error:
        if error.field == root or error.field.startswith((f"{root}.", f"{root}[")):
            error.field = error.field[len(root) :].lstrip(".")
            raise error.prefixed(prefix) from None
        raise
