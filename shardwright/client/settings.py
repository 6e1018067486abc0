"""The address of the service, and the key and the patience with which it is asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Self

DEFAULT_URL = "http://127.0.0.1:8000"  # where `make serve` and `shardwright serve` listen
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The address, the key and the patience of a client."""

    url: str = DEFAULT_URL
    key: str | None = None
    timeout_s: float = _TIMEOUT_S
    """The time that one call may take in all, with its retries. Searches take up to 20 s unless a
    request says otherwise, and may wait for others as long."""
    retries: int = 4
    """The number of times that a call is made again. With pauses of a second and more between
    them, four outlast a service that is started again."""

    @classmethod
    def of(cls, given: ClientSettings | str | None) -> ClientSettings:
        """Returns the settings that are given, or else those of the environment, with the URL that
        is given. Raises ValueError where a value is wrong."""
        if isinstance(given, ClientSettings):
            return given
        settings = cls.from_environment()
        return settings if given is None else replace(settings, url=_url("the URL", given))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Returns the settings that SHARDWRIGHT_URL, SHARDWRIGHT_KEY or SHARDWRIGHT_KEY_FILE, and
        SHARDWRIGHT_TIMEOUT_S give. Raises ValueError where one of them is wrong."""
        given = os.environ if environment is None else environment
        key = given.get("SHARDWRIGHT_KEY") or None
        file = given.get("SHARDWRIGHT_KEY_FILE")
        if key is None and file:
            key = _key_in(file)
        return cls(
            url=_url("SHARDWRIGHT_URL", given.get("SHARDWRIGHT_URL") or DEFAULT_URL),
            key=key,
            timeout_s=_seconds(given.get("SHARDWRIGHT_TIMEOUT_S") or _TIMEOUT_S),
        )


def _key_in(file: str) -> str | None:
    """Returns the key in a file; None where the file is empty. Raises ValueError where it cannot be
    read."""
    try:
        return Path(file).read_text(encoding="utf-8").strip() or None
    except OSError as error:
        raise ValueError(
            f"SHARDWRIGHT_KEY_FILE names {file}, which cannot be read: {error.strerror}"
        ) from None


def _url(name: str, url: str) -> str:
    """Returns the URL unchanged. Raises ValueError, which calls it by `name`, where it is not an
    HTTP address."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{name} is {url!r}, which is no address: give it as {DEFAULT_URL}")
    return url


def _seconds(given: str | float) -> float:
    """Returns the seconds that are given. Raises ValueError where they are not a positive
    number."""
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise ValueError(f"SHARDWRIGHT_TIMEOUT_S is {given!r}: give seconds, such as 60")
    return seconds
