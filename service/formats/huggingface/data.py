"""The files of JSON in this folder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from models.package_data import read_json


@cache
def data(name: str) -> Mapping[str, Any]:
    """Returns the content of a JSON file of this folder. Callers share one object and must not
    change it."""
    content: Mapping[str, Any] = read_json(__package__, f"{name}.json")
    return content
