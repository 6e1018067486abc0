"""Which fields a schema has at a place where a request has an unknown one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, Tag

from service.json_pointers import TAG_PREFIX


def known_fields(form: Any, location: Sequence[str | int]) -> list[str]:
    """The names of the fields beside the one at `location`, in a body that should have the type
    `form`."""
    forms: list[Any] = [form]
    tag: str | None = None
    for step in location[:-1]:
        if isinstance(step, str) and step.startswith(TAG_PREFIX):
            tag = step
        elif isinstance(step, str):
            models = [model for form in forms for model in _models(form, tag)]
            forms = [
                model.model_fields[step].annotation
                for model in models
                if step in model.model_fields
            ]
            tag = None
    names: list[str] = []
    for form in forms:
        for model in _models(form, tag):
            names += [field.alias or name for name, field in model.model_fields.items()]
    return list(dict.fromkeys(names))


def _models(form: Any, tag: str | None) -> Iterator[type[BaseModel]]:
    """The models that a type is made of. Of a union with tags only those with this tag count, if a
    tag is given."""
    if isinstance(form, type) and issubclass(form, BaseModel):
        yield form
        return
    tags = [item.tag for item in getattr(form, "__metadata__", ()) if isinstance(item, Tag)]
    if tag is None or not tags or tag in tags:
        for part in get_args(form):
            yield from _models(part, tag)
