"""The reports of a batch as they were written: each is kept so, and what is wrong with one is no
other's fault."""

from __future__ import annotations

import json
import re
from typing import Any

from models.errors import Invalid
from service.errors import Refused
from service.schemas.report import MAX_BATCH_REPORTS
from service.web.json_text import TOKENS, parse, require_few_containers

_NAME = "reports"
_SPACE = re.compile(r"[ \t\n\r]*+")
_LIST = re.compile(r"[ \t\n\r]*+:[ \t\n\r]*+\[")
_spans = json.JSONDecoder(parse_int=str, parse_float=str)
"""Tells where a value ends; what it is, is read later."""


def parse_batch(text: str) -> Any:
    """The value of a JSON text (service.web.json_text), in which the items of `reports` are texts
    of their own."""
    start = _opening(text)
    if start is None:
        return parse(text)
    require_few_containers(text)
    try:
        texts, end = _items(text, start)
    except json.JSONDecodeError:
        return parse(text)  # which says what is wrong
    around = parse(text[:start] + " " * (end - start) + text[end:])
    return {**around, _NAME: texts}


def _opening(text: str) -> int | None:
    """Where the list of reports begins, behind its bracket."""
    depth = 0
    for token in TOKENS.finditer(text):
        if token[0] in "{[":
            depth += 1
        elif token[0] in "}]":
            depth -= 1
        elif depth == 1 and (opened := _LIST.match(text, token.end())) and _is_name(token[0]):
            return opened.end()
    return None


def _is_name(written: str) -> bool:
    try:
        return bool(json.loads(written) == _NAME)
    except json.JSONDecodeError:
        return False


def _items(text: str, at: int) -> tuple[list[str], int]:
    """Each, and where the bracket behind the last is."""
    texts: list[str] = []
    at = _past_space(text, at)
    if text[at : at + 1] == "]":
        return texts, at
    while True:
        end = _end(text, at)
        texts.append(text[at:end])
        if len(texts) > MAX_BATCH_REPORTS:
            raise Refused([Invalid(_NAME, None, f"must be at most {MAX_BATCH_REPORTS} at once")])
        at = _past_space(text, end)
        if text[at : at + 1] == "]":
            return texts, at
        if text[at : at + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _past_space(text, at + 1)


def _past_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _end(text: str, at: int) -> int:
    """Of the value that begins here; of one that nests too deep to be read, by its brackets."""
    try:
        return _spans.raw_decode(text, at)[1]
    except RecursionError:
        depth = 0
        for token in TOKENS.finditer(text, at):
            depth += (token[0] in "{[") - (token[0] in "}]")
            if not depth:
                return token.end()
        raise json.JSONDecodeError("Expecting a closing bracket", text, len(text)) from None
