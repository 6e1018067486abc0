"""Releases of frameworks whose defaults are known."""

from __future__ import annotations

import re

from models.errors import Invalid
from models.spec.switches import releases

_RELEASE = re.compile(r"(?:core_)?[rv]?(\d{1,4}(?:\.\d{1,4}){0,3})", re.ASCII)


def known_release(stack_id: str, version: str | None) -> str | None:
    """Returns the release whose defaults apply to a version: the last known one up to it, or
    else the first known one. Returns None, which stands for the newest release, where `version`
    is None or the framework has no known releases. Raises Invalid for a text that is no version."""
    if version is None:
        return None
    known = releases(stack_id)
    numbers = _version_numbers(version)
    if not numbers:
        rule = f"must be a release such as {', '.join([*known][-3:])}"
        raise Invalid("launch.version", version, rule)
    earlier = [release for release in known if _version_numbers(release) <= numbers]
    return earlier[-1] if earlier else next(iter(known), None)


def _version_numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version, (0, 19, 2); none for a text that is no version."""
    match = _RELEASE.match(version)
    return tuple(map(int, match.group(1).split("."))) if match else ()
