"""Reads which layers are of a kind, from Megatron's expressions of lists such as ([0]*3+[1]*58) or
([1]+[0])*12.

Nothing is evaluated, since the expression comes from outside. It is rewritten until one list is
left. First the switches 0 and 1 become the letters a and b, so that the digits left are counts of
repeats. Each pass then unfolds the innermost repeats, joins lists that are added and drops the
brackets around a single one: ([a]*1+[b]*2), ([a]+[bb]), ([abb]), [abb].
"""

from __future__ import annotations

import re

_MAX_CHARACTERS = 8000  # lists of as many layers as a model may have, with room for brackets
_SWITCH = re.compile(r"(?<=[\[,])[01](?=[,\]])")
_COMMA = re.compile(r"(?<=[ab]),(?=[ab])")
_REPEATED = re.compile(r"\[([ab]+)\]\*(\d{1,4})(?!\d)", re.ASCII)
_ADDED = re.compile(r"\]\+\[(?=[ab]+\](?!\*))")
_BRACKETED = re.compile(r"\((\[[ab]+\])\)")
_LIST = re.compile(r"\[([ab]+)\]")


def layer_switches(text: str, max_layers: int) -> list[bool]:
    """Returns a switch for each layer: [False, True, True] for "([0]*1+[1]*2)". Empty where the
    text is no such expression, or has more than `max_layers` items."""
    if len(text) > _MAX_CHARACTERS or "a" in text or "b" in text:  # a and b will stand for 0 and 1
        return []
    text = _COMMA.sub("", _SWITCH.sub(lambda match: "ab"[int(match.group())], text))

    def repeated(match: re.Match[str]) -> str:
        return _repeat(match.group(1), int(match.group(2)), max_layers)

    before = ""  # a pass that changes nothing is the last
    while text != before and len(text) <= _MAX_CHARACTERS:
        before = text
        text = _REPEATED.sub(repeated, text)
        text = _BRACKETED.sub(r"\1", _ADDED.sub("", text))
    result = _LIST.fullmatch(text)
    if result is None or len(result.group(1)) > max_layers:
        return []
    return [switch == "b" for switch in result.group(1)]


def _repeat(switches: str, times: int, max_layers: int) -> str:
    """Returns a bracketed list repeated; "", which is no list, where it would be too long."""
    return f"[{switches * times}]" if len(switches) * times <= max_layers else ""
