"""Example requests that the OpenAPI document shows. A test sends every one of them."""

from __future__ import annotations

import json
from pathlib import Path

from fastapi.openapi.models import Example

EXAMPLES: dict[str, dict[str, Example]] = json.loads(
    Path(__file__).with_name("examples.json").read_text(encoding="utf-8")
)
"""Examples by the collection that they are sent to, such as "predictions", and by name."""
