"""Questions that pages offer as examples."""

from __future__ import annotations

from models.package_data import read_json

EXAMPLES: dict[str, list[tuple[str, dict[str, str]]]] = read_json(__package__, "examples.json")
"""Each example's name and its fields as a URL has them, by the page that offers it."""
