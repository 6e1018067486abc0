"""Example requests that the OpenAPI document shows. A test sends every one of them."""

from __future__ import annotations

from fastapi.openapi.models import Example

from models.package_data import read_json

EXAMPLES: dict[str, dict[str, Example]] = read_json(__package__, "examples.json")
"""Examples by the collection that they are sent to, such as "predictions", and by name."""
