"""Where in a request something is: the dotted field of an error and its JSON Pointer (RFC 6901)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from models.errors import Invalid

TAG = "@"
"""Begins the tags of unions in service.schemas, which pydantic puts into locations and callers
never wrote."""

_STEP = re.compile(r"[^.\[\]]+")


def field_of(location: Sequence[str | int]) -> str:
    """`("model", "@shape", "layers", 3)` as `model.layers[3]`."""
    field = ""
    for step in written(location):
        if isinstance(step, int):
            field += f"[{step}]"
        else:
            field += f".{step}" if field else step
    return field


def pointer_of(location: Sequence[str | int]) -> str:
    steps = map(str, written(location))
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def location_of(field: str) -> list[str | int]:
    """The reverse of `field_of`, for the dotted fields of models.errors."""
    return [int(step) if step.isdecimal() else step for step in _STEP.findall(field)]


def written(location: Sequence[str | int]) -> list[str | int]:
    """Without what pydantic adds: the tags of unions, and "[key]" where the name of a member is
    wrong."""
    return [
        step for step in location if isinstance(step, int) or not step.startswith((TAG, "[key]"))
    ]


@contextmanager
def under(prefix: str) -> Iterator[None]:
    """Errors about a part name the part of the request they came from."""
    try:
        yield
    except Invalid as error:
        raise error.prefixed(prefix) from None


@contextmanager
def instead_of(root: str, prefix: str) -> Iterator[None]:
    """Errors about `root` or `root.x` are seen as about `prefix` or `prefix.x`."""
    try:
        yield
    except Invalid as error:
        if error.field == root or error.field.startswith((f"{root}.", f"{root}[")):
            moved = error.field[len(root) :].lstrip(".")
            error.field = moved
            raise (error.prefixed(prefix)) from None
        raise
