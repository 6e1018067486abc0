"""Which fields there are where an unknown one was given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, Tag

from service.json_pointers import TAG


def known_fields(form: Any, location: Sequence[str | int]) -> list[str]:
    """Of what lies around `location` in a body of this form (a type), in the words of the
    schemas."""
    forms, tag = [form], None
    for step in location[:-1]:
        if isinstance(step, str) and step.startswith(TAG):
            tag = step
        elif isinstance(step, str):
            kinds = [kind for form in forms for kind in _models(form, tag)]
            forms = [
                kind.model_fields[step].annotation for kind in kinds if step in kind.model_fields
            ]
            tag = None
    kinds = [kind for form in forms for kind in _models(form, tag)]
    return list(
        dict.fromkeys(
            field.alias or name for kind in kinds for name, field in kind.model_fields.items()
        )
    )


def _models(form: Any, tag: str | None) -> Iterator[type[BaseModel]]:
    """The models that a type is made of; of a union with tags, those under this one."""
    if isinstance(form, type) and issubclass(form, BaseModel):
        yield form
        return
    tags = [item.tag for item in getattr(form, "__metadata__", ()) if isinstance(item, Tag)]
    if tag is None or not tags or tag in tags:
        for part in get_args(form):
            yield from _models(part, tag)
