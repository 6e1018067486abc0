"""What a caller asks of a layout: allowed values of its knobs, and memory to leave free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.errors import Invalid, UnknownName
from models.spec.layout import SCHEDULES, TORUS_BLOCKS
from models.spec.recompute import MODULES, RECOMPUTE

WHOLE_NUMBER_KNOBS = (
    "pp",
    "dp_replicate",
    "dp_shard",
    "dp",
    "cp",
    "tp",
    "ep",
    "etp",
    "micro_batch",
    "virtual_stages",
)
BOOLEAN_KNOBS = (
    "reshard",
    "sequence_parallel",
    "balanced",
    "offload_activations",
    "offload_optimizer",
)
KNOB_CHOICES: dict[str, tuple[Any, ...]] = {"schedule": SCHEDULES, "recompute": RECOMPUTE,
                                      "zero_stage": (0, 1, 2, 3),
                                      "torus_block": TORUS_BLOCKS}  # fmt: skip
EVEN_CHANCE, MAX_FIT_PROBABILITY = 0.5, 0.99
KNOBS = (
    *WHOLE_NUMBER_KNOBS,
    *BOOLEAN_KNOBS,
    *KNOB_CHOICES,
    "recompute_modules",
    "recompute_layers",
)


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """`allowed[knob]` lists the values a knob may take; knobs not named are free. "dp" is
    dp_replicate·dp_shard. "recompute_modules" lists the modules that selective recompute takes, all
    of them together.

    `min_fit_probability`: that a layout fits, of which even chances are what the memory predicted
    for it has.
    """

    allowed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    memory_reserve_gib: float = 0.0
    min_fit_probability: float = EVEN_CHANCE

    def __post_init__(self) -> None:
        for knob, values in self.allowed.items():
            where = f"constraints.{knob}"
            if knob not in KNOBS:
                raise UnknownName("constraints", knob, KNOBS)
            if not values:
                raise Invalid(where, values, "must allow at least one value")
            if knob in WHOLE_NUMBER_KNOBS and not all(
                isinstance(v, int) and v >= 1 for v in values
            ):
                raise Invalid(where, values, "must be whole numbers from 1")
            if knob in BOOLEAN_KNOBS and not all(isinstance(v, bool) for v in values):
                raise Invalid(where, values, "must be true or false")
            if knob in KNOB_CHOICES and not set(values) <= set(KNOB_CHOICES[knob]):
                raise Invalid(
                    where, values, f"must be among {', '.join(map(str, KNOB_CHOICES[knob]))}"
                )
            if knob == "recompute_modules" and not set(values) <= set(MODULES):
                raise Invalid(where, values, f"must be among {', '.join(MODULES)}")
            if knob == "recompute_layers" and not all(
                isinstance(v, int) and v >= 0 for v in values
            ):
                raise Invalid(where, values, "must be whole numbers from 1, or 0 for all")
        self._check_recompute()
        if not 0 <= self.memory_reserve_gib < float("inf"):
            raise Invalid(
                "constraints.memory_reserve_gib", self.memory_reserve_gib, "must be at least 0"
            )
        if not EVEN_CHANCE <= self.min_fit_probability <= MAX_FIT_PROBABILITY:
            rule = f"must be between {EVEN_CHANCE} and {MAX_FIT_PROBABILITY}"
            raise Invalid("constraints.min_fit_probability", self.min_fit_probability, rule)

    def _check_recompute(self) -> None:
        """Modules are for selective recompute and a number of layers for full: not where those are
        ruled out."""
        recompute = self.allowed.get("recompute", RECOMPUTE)
        layers, modules = (
            self.allowed.get("recompute_layers", (0,)),
            self.allowed.get("recompute_modules"),
        )
        if 0 not in layers and "full" not in recompute:
            rule = f'go with recompute "full"; constraints.recompute allows {", ".join(recompute)}'
            raise Invalid("constraints.recompute_layers", layers, rule)
        if modules and ("selective" not in recompute or 0 not in layers):
            rule = (
                'go with recompute "selective", which the other constraints on recompute rule out'
            )
            raise Invalid("constraints.recompute_modules", modules, rule)
