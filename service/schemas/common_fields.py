"""Copies fields between a wire schema and the dataclass of the models that it describes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import BaseModel


def common_fields(source: object, form: type[BaseModel], kind: type) -> dict[str, Any]:
    """Returns the values of those fields that both the schema `form` and the dataclass `kind` have.
    `source` is an instance of either."""
    shared = {field.name for field in fields(kind)} & form.model_fields.keys()
    return {name: getattr(source, name) for name in form.model_fields if name in shared}
