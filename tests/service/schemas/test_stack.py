"""Stacks as requests describe them."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from models.spec import catalogue
from service.schemas.layout import LayoutFields, Module
from service.schemas.stack import StackFields


def test_a_loop_over_experts_implies_that_they_are_not_multiplied_at_once() -> None:
    base = catalogue.stack("deepspeed")
    looped = StackFields.model_validate({"name": "deepspeed", "expert_loop": "gathered_modules"})
    assert base.experts_at_once
    assert looped.build(base).gathers_experts_apart
    both = {"name": "deepspeed", "expert_loop": "modules", "experts_at_once": True}
    assert StackFields.model_validate(both).build(base).experts_at_once


def test_all_modules_may_be_recomputed_and_none_twice_as_many() -> None:
    modules = [*get_args(Module)]
    assert LayoutFields(recompute="selective", recompute_modules=modules)
    with pytest.raises(ValidationError, match="recompute_modules"):
        LayoutFields(recompute="selective", recompute_modules=[*modules, *modules])
