"""Files of JSON that lie in packages."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def read_json(package: str, path: str) -> Any:
    """Returns the content of a file of a package, such as "data/chips.json" of "models"."""
    return json.loads(files(package).joinpath(path).read_text("utf-8"))
