"""The fields that a form and a value of the models have by one name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import BaseModel


def common_fields(source: object, form: type[BaseModel], kind: type) -> dict[str, Any]:
    """Returns what `source`, a form or a value, holds in the fields that both the form and the
    dataclass `kind` have. What differs between the two, in name or in meaning, is left to the
    caller."""
    shared = {field.name for field in fields(kind)} & form.model_fields.keys()
    return {name: getattr(source, name) for name in form.model_fields if name in shared}
