"""The constraints that a caller puts on layouts: allowed values of knobs, and memory to leave free.
A *knob* is a field of a layout, such as tp or the schedule."""

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
KNOB_CHOICES: dict[str, tuple[Any, ...]] = {
    "schedule": SCHEDULES,
    "recompute": RECOMPUTE,
    "zero_stage": (0, 1, 2, 3),
    "torus_block": TORUS_BLOCKS,
}
KNOBS = (
    *WHOLE_NUMBER_KNOBS,
    *BOOLEAN_KNOBS,
    *KNOB_CHOICES,
    "recompute_modules",
    "recompute_layers",
)
EVEN_CHANCE = 0.5  # the probability of fitting where predicted memory equals usable memory
SAFE_FIT_PROBABILITY = 0.9
"""The probability with which a layout has to fit unless the caller says otherwise. The upper end of
the 80% interval of its memory is then within what is usable."""
MAX_FIT_PROBABILITY = 0.99  # the surest that a request may ask for


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """The constraints of one request. Raise Invalid where they contradict each other."""

    allowed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values that a knob may take, by knob; a knob that is not named is free. "dp" stands for
    dp_replicate·dp_shard. "recompute_modules" lists the modules that selective recompute takes, all
    of them together."""
    memory_reserve_gib: float = 0.0
    """Memory of every device to leave free, in GiB."""
    min_fit_probability: float = SAFE_FIT_PROBABILITY
    """The least probability with which a layout must fit into memory, given the uncertainty of its
    predicted memory."""
    use_all_chips: bool = False
    """Refuses layouts on fewer chips, whether those would be faster or no layout uses all chips."""

    def __post_init__(self) -> None:
        for knob, values in self.allowed.items():
            if knob not in KNOBS:
                raise UnknownName("constraints", knob, KNOBS)
            if rule := _broken_rule(knob, values):
                raise Invalid(f"constraints.{knob}", values, rule)
        self._check_recompute()
        if not 0 <= self.memory_reserve_gib < float("inf"):
            rule = "must be at least 0"
            raise Invalid("constraints.memory_reserve_gib", self.memory_reserve_gib, rule)
        if not EVEN_CHANCE <= self.min_fit_probability <= MAX_FIT_PROBABILITY:
            rule = f"must be between {EVEN_CHANCE} and {MAX_FIT_PROBABILITY}"
            raise Invalid("constraints.min_fit_probability", self.min_fit_probability, rule)

    def _check_recompute(self) -> None:
        """Raise Invalid where constraints on recompute contradict each other: they ask for modules
        but rule out selective recompute, or for a number of layers but rule out full recompute."""
        recompute = self.allowed.get("recompute", RECOMPUTE)
        layers = self.allowed.get("recompute_layers", (0,))
        modules = self.allowed.get("recompute_modules")
        # 0 asks for no number of layers, so it goes with every policy.
        if 0 not in layers and "full" not in recompute:
            rule = f'go with recompute "full"; constraints.recompute allows {", ".join(recompute)}'
            raise Invalid("constraints.recompute_layers", layers, rule)
        # A number of layers goes with full recompute only, so modules need 0 to be allowed.
        if modules and ("selective" not in recompute or 0 not in layers):
            rule = (
                'go with recompute "selective", which the other constraints on recompute rule out'
            )
            raise Invalid("constraints.recompute_modules", modules, rule)


def _broken_rule(knob: str, values: tuple[Any, ...]) -> str | None:
    """Return the rule that the allowed values of a knob break, such as "must be true or false";
    None where they break none."""
    if not values:
        return "must allow at least one value"
    if knob in WHOLE_NUMBER_KNOBS:
        positive = all(isinstance(value, int) and value >= 1 for value in values)
        return None if positive else "must be whole numbers from 1"
    if knob in BOOLEAN_KNOBS:
        boolean = all(isinstance(value, bool) for value in values)
        return None if boolean else "must be true or false"
    if knob == "recompute_layers":
        whole = all(isinstance(value, int) and value >= 0 for value in values)
        return None if whole else "must be whole numbers from 1, or 0 for all"
    choices: tuple[Any, ...] = MODULES if knob == "recompute_modules" else KNOB_CHOICES[knob]
    return None if set(values) <= set(choices) else f"must be among {', '.join(map(str, choices))}"
