"""Sources of the rules of legality."""

from __future__ import annotations

import json
import re

import pytest

from models.layouts.rule import Rule
from models.layouts.rule_sources import rule_source
from models.layouts.rules import RULES, RULES_BY_NAME
from models.spec import catalogue
from tests.paths import ROOT

SOURCES = json.loads((ROOT / "models/data/rule_sources.json").read_text())
FRAMEWORKS = ("megatron", "torchtitan", "maxtext", "deepspeed", "fsdp")
"""Stacks whose launches are read, but for those that are like one of them."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_has_a_source_on_every_stack(rule: Rule) -> None:
    for stack in catalogue.stacks().values():
        source = rule_source(rule, stack)
        assert re.search(r"\w", source.rpartition(": ")[2]), (rule.name, stack.id)
        assert (rule.kind == "search") == ("no framework refuses it" in source)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_that_is_no_arithmetic_names_a_release_and_a_file(rule: Rule) -> None:
    if rule.kind == "search" or rule.name in SOURCES[""]:
        return
    for name in FRAMEWORKS:
        source = rule_source(rule, catalogue.stack(name))
        assert re.match(r"[a-z-]+ \d+\.\d+\.\d+: \w[\w/]*", source), (rule.name, name, source)


def test_a_stack_has_the_sources_of_the_one_that_it_is_like() -> None:
    rule = RULES_BY_NAME["tensor_divides_heads"]
    own, like = catalogue.stack("megatron"), catalogue.stack("megatron-bridge")
    assert rule_source(rule, like) == rule_source(rule, own) == SOURCES["megatron"][rule.name]


def test_sources_are_of_rules_and_stacks_that_there_are() -> None:
    assert SOURCES.keys() - {""} <= catalogue.stacks().keys()
    for rules in SOURCES.values():
        assert rules.keys() - {"*"} <= RULES_BY_NAME.keys()
