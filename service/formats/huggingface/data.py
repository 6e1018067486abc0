"""The files of JSON in this folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def data(name: str) -> Mapping[str, Any]:
    """Returns the content of a JSON file of this folder. Callers share one object and must not
    change it."""
    content: Mapping[str, Any] = json.loads((files(__package__) / f"{name}.json").read_text())
    return content
