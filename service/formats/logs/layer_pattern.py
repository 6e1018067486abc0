"""Which layers are of a kind, from Megatron's expressions of lists such as ([0]*3+[1]*58) or
([1]+[0])*12.

The expression is rewritten until one list is left; nothing is evaluated.
"""

from __future__ import annotations

import re

_LONGEST = 8000
_SWITCH = re.compile(r"(?<=[\[,])[01](?=[,\]])")
_COMMA = re.compile(r"(?<=[ab]),(?=[ab])")
_REPEATED = re.compile(r"\[([ab]+)\]\*(\d{1,4})(?!\d)", re.ASCII)
_ADDED = re.compile(r"\]\+\[(?=[ab]+\](?!\*))")
_BRACKETED = re.compile(r"\((\[[ab]+\])\)")
_LIST = re.compile(r"\[([ab]+)\]")


def layer_switches(text: str, most: int) -> list[bool]:
    """Empty where the text is no such expression, or where a list of it has more than `most`."""
    if len(text) > _LONGEST or "a" in text or "b" in text:
        return []
    text = _COMMA.sub("", _SWITCH.sub(lambda match: "ab"[int(match.group())], text))
    before = ""
    while text != before and len(text) <= _LONGEST:
        before = text
        text = _REPEATED.sub(lambda match: _repeat(match.group(1), int(match.group(2)), most), text)
        text = _BRACKETED.sub(r"\1", _ADDED.sub("", text))
    result = _LIST.fullmatch(text)
    return (
        [switch == "b" for switch in result.group(1)]
        if result and len(result.group(1)) <= most
        else []
    )


def _repeat(switches: str, times: int, most: int) -> str:
    return f"[{switches * times}]" if len(switches) * times <= most else ""
