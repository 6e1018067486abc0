"""Where the rules of legality are from: the file of a framework, or the arithmetic behind it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from models.layouts.rule import Rule
from models.package_data import read_json
from models.spec.stack import Stack

_OF_ALL = ""
_OTHERWISE = "*"
_OF_SEARCH = "the limits of the search in stack {stack}: no framework refuses it"


def rule_source(rule: Rule, stack: Stack) -> str:
    """Return the source of a rule for a stack, in words. It is the first of these that is known:
    the file of the stack's framework that refuses what breaks the rule; such a file of the stack
    that this one is like (`stack.like`); the reason that holds in every framework; the file with
    the framework's options; what the stack's features were read from. For a limit of the search the
    words say that there is no source."""
    if rule.kind == "search":
        return _OF_SEARCH.format(stack=stack.id)
    stack_sources = [_sources().get(name, {}) for name in (stack.id, stack.like or stack.id)]
    candidates = [sources.get(rule.name) for sources in (*stack_sources, _sources()[_OF_ALL])]
    candidates += [sources.get(_OTHERWISE) for sources in stack_sources]
    candidates.append(f"the features of stack {stack.id}: {stack.source}")
    return next(filter(None, candidates))


@cache
def _sources() -> Mapping[str, Mapping[str, str]]:
    """Return the source of each rule in words, by the id of the stack and the rule's name. The id
    _OF_ALL stands for reasons in every framework, the name _OTHERWISE for all other rules of a
    stack."""
    sources: Mapping[str, Mapping[str, str]] = read_json("models", "data/rule_sources.json")
    return sources
