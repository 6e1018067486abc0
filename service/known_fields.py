"""The fields that a schema has where a request has an unknown one, and other places that have a
field of that name. A *form* is a type of pydantic that a part of the body should have. A *location*
is the sequence of names and indices that leads to a value (service.json_pointers)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, get_args, get_origin

from pydantic import BaseModel, Tag

from service.json_pointers import TAG_PREFIX, field_of, name_of

_MAX_PLACES = 3  # a hint of more places is a list to search again
_MAX_DEPTH = 4
"""Most levels at which a field is looked for. Models contain each other, and a field that lies
deeper was not meant."""


def known_fields(form: Any, location: Sequence[str | int]) -> list[str]:
    """Returns the names of the fields that may stand where the one at `location` does, in a body
    that should have the type `form`."""
    forms: list[Any] = [form]
    tag: str | None = None
    for step in location[:-1]:
        if isinstance(step, str) and step.startswith(TAG_PREFIX):
            tag = step  # such as "@shape": the model of a union in which the next step lies
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


def places_of(form: Any, location: Sequence[str | int]) -> list[str]:
    """Returns other places where a body of the type `form` may have a field with the name of the
    one at `location`, as dotted fields, the least deep first. Items of a list have no number:
    "layers[].moe"."""
    here = field_of(location)
    elsewhere = (place for place in _fields_named(form, name_of(location)) if place != here)
    return list(islice(dict.fromkeys(elsewhere), _MAX_PLACES))


def _fields_named(form: Any, name: str) -> Iterator[str]:
    """Yields the dotted places of all fields with this name in a body of the type `form`, the least
    deep first."""
    level = [*_models_at(form, "")]
    for _ in range(_MAX_DEPTH):
        deeper: list[tuple[type[BaseModel], str]] = []
        for model, place in level:
            prefix = f"{place}." if place else ""
            for attribute, field in model.model_fields.items():
                wire_name = field.alias or attribute
                if wire_name == name:
                    yield f"{prefix}{wire_name}"
                deeper += _models_at(field.annotation, f"{prefix}{wire_name}")
        level = deeper


def _models_at(form: Any, place: str) -> Iterator[tuple[type[BaseModel], str]]:
    """Yields the models that a type consists of, each with its dotted place in a body. `place` is
    where the body has a value of the type; items of a list there are at "place[]"."""
    if isinstance(form, type) and issubclass(form, BaseModel):
        yield form, place
        return
    inside = f"{place}[]" if get_origin(form) is list else place
    for part in get_args(form):
        yield from _models_at(part, inside)


def _models(form: Any, tag: str | None) -> Iterator[type[BaseModel]]:
    """Yields the models that a type consists of. In a union with tags, only the models with this
    tag, if one is given."""
    if isinstance(form, type) and issubclass(form, BaseModel):
        yield form
        return
    tags = [item.tag for item in getattr(form, "__metadata__", ()) if isinstance(item, Tag)]
    if tag is None or not tags or tag in tags:
        for part in get_args(form):
            yield from _models(part, tag)
