"""The switches of the training stacks: what each framework calls them, what it does when nobody
sets them, and what tuned recipes set them to, by release.

A switch is a choice of the software that no layout makes: which dispatcher sends tokens to experts,
whether gradients are reduced beside compute, which kernel computes the loss. Each is one field of
:class:`models.spec.stack.Stack`. The tables are data, one file a stack (data/switches).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.stack import Stack

Condition = Literal["always", "dp", "tp", "pp", "cp", "ep", "moe", "zero_3", "low_precision"]
"""Where a switch means something: everywhere, with an axis longer than 1, in a sparse model, with
parameters sharded, or with GEMMs in fewer than 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value of a switch, and the arguments that set it in the framework's own words."""

    value: Any
    """Of the field of the stack."""
    arguments: Mapping[str, Any]
    """Argument by name, as `launch_arguments` returns them: True for a flag without a value. Empty
    where the value is what the framework does when it is told nothing."""
    words: str
    """The arguments as somebody would write them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dated:
    """A value from a release on."""

    value: Any
    release: str | None
    """None where it has been so for as long as the table reaches back."""
    since: float
    """The year of that release, with a fraction; 0 where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One switch of one stack."""

    field: str
    """The field of the stack that it sets."""
    name: str
    """What the framework calls it: a flag or a key."""
    condition: Condition
    settings: tuple[Setting, ...]
    defaults: tuple[Dated, ...]
    """What the framework does when it is told nothing, oldest first."""
    taken: tuple[Dated, ...]
    """What tuned recipes set, oldest first: what predictions and recommendations take unless the
    request says otherwise."""
    source: str
