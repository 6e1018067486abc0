"""What is known of hardware before any training run: measurements of parts, with their sources
(data/priors.json)."""

from __future__ import annotations

import json
from importlib.resources import files

from models.spec import catalogue
from models.spec.profile import SCOPES, Profile, Term

OFFSET_SPREAD = {
    "stack": 1.0,
    "generation": 1.0,
    "chip": 0.5,
}  # of the spread of the coefficient's own term
_UNNAMED = "generic"
_OF_LIBRARIES = (
    "gemm_16",
    "gemm_8",
    "gemm_4",
)  # all stacks call the same ones, which differ by chip


def priors() -> Profile:
    """The hardware priors with an offset for every scope there is in the catalogue. The generic
    stack has none: what runs of several in-house stacks have in common is what all stacks have."""
    base = Profile.from_json(json.loads((files("models") / "data/priors.json").read_text()))
    chips = {chip.id: chip for chip in catalogue.chips().values()}
    scopes = {
        "stack": sorted(
            {stack.calibrated_as for stack in catalogue.stacks().values()} - {_UNNAMED}
        ),
        "generation": sorted({chip.generation for chip in chips.values()}),
        "chip": sorted(chips),
    }
    offsets = {}
    for term in (t for t in base.terms if t.scope == "all"):
        for kind in SCOPES[term.coefficient]:
            if kind == "stack" and term.coefficient in _OF_LIBRARIES:
                continue
            for name in scopes.get(kind, ()):
                scope, spread = f"{kind}:{name}", OFFSET_SPREAD[kind] * term.spread
                new = Term(
                    coefficient=term.coefficient,
                    scope=scope,
                    mean=0.0,
                    spread=spread,
                    source="no own figure",
                )
                if new.key not in base.by_key:
                    offsets[new.key] = new
    return base.with_terms(offsets)
