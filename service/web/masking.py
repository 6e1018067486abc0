"""Addresses as they are logged, traced and shown: without the API keys that somebody has put into
them."""

from __future__ import annotations

import re

_KEY = re.compile(r"(sw_[0-9A-Za-z]{1,64})_[\w-]+")
_PARAMETER = re.compile(r"=[^&]*")


def without_keys(text: str) -> str:
    """Returns the text with the secret of each API key replaced. The id stays: it is not secret,
    and an operator needs it to revoke the key."""
    return _KEY.sub(r"\1_REDACTED", text)


def names_of_query(query: str) -> str:
    """Returns a query string with every value replaced, such as "model=REDACTED". Values may be
    anything, as a prompt or a secret."""
    return without_keys(_PARAMETER.sub("=REDACTED", query))
