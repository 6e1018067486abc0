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
    candidates = [_sources().get(name, {}).get(rule.name) for name in (*_names(stack), _OF_ALL)]
    return next(filter(None, candidates), None) or options_source(stack)


def options_source(stack: Stack) -> str:
    """Return the file with the options of a stack's framework in words, or else what the stack's
    features were read from."""
    candidates = [_sources().get(name, {}).get(_OTHERWISE) for name in _names(stack)]
    return next(filter(None, candidates), f"the features of stack {stack.id}: {stack.source}")


def _names(stack: Stack) -> tuple[str, str]:
    """Return the id of the stack and that of the stack that it is like, or its own again."""
    return stack.id, stack.like or stack.id


@cache
def _sources() -> Mapping[str, Mapping[str, str]]:
    """Return the source of each rule in words, by the id of the stack and the rule's name. The id
    _OF_ALL stands for reasons in every framework, the name _OTHERWISE for all other rules of a
    stack."""
    sources: Mapping[str, Mapping[str, str]] = read_json("models", "data/rule_sources.json")
    return sources
