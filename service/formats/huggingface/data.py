"""The files of JSON in this folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def data(name: str) -> Mapping[str, Any]:
    """What the file of this name holds. It is shared by all who ask: nobody changes it."""
    found: Mapping[str, Any] = json.loads((files(__package__) / f"{name}.json").read_text())
    return found
