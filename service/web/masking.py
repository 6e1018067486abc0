"""Addresses as they are logged, traced and shown: without the API keys that somebody has put into
them."""

from __future__ import annotations

import re

_KEY = re.compile(r"(sw_[0-9A-Za-z]{1,64})_[\w-]+")
_PARAMETER = re.compile(r"=[^&]*")


def without_keys(text: str) -> str:
    """Returns the text with the secret of each key in it replaced. The id stays, which is no
    secret, and by which the key can be revoked."""
    return _KEY.sub(r"\1_REDACTED", text)


def names_of_query(query: str) -> str:
    """Returns a query string with its names alone: values may be anything, as a prompt or a
    secret."""
    return without_keys(_PARAMETER.sub("=REDACTED", query))
