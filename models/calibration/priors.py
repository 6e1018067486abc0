"""What is known of hardware before any training run: measurements of its parts, with their sources
(data/priors.json)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files

from models.spec import catalogue
from models.spec.profile import SCOPES, Profile, Term

# The prior spread of an offset, as a share of that of the coefficient's own term.
OFFSET_SPREAD = {"stack": 1.0, "generation": 1.0, "chip": 0.5}
_GENERIC_STACK = "generic"
# All stacks call the same matrix libraries, whose rates differ by chip and not by stack.
_LIBRARY_COEFFICIENTS = ("gemm_16", "gemm_8", "gemm_4")


def priors() -> Profile:
    """The hardware priors, with an offset of mean zero for every stack, generation and chip of the
    catalogue that a coefficient may vary with. The generic stack has none: what runs of several
    in-house stacks have in common is what all stacks have."""
    base = Profile.from_json(json.loads((files("models") / "data/priors.json").read_text()))
    scopes = _catalogue_scopes()
    offsets = {}
    for term in base.terms:
        if term.scope == "all":
            for offset in _offsets(term, scopes):
                if offset.key not in base.by_key:
                    offsets[offset.key] = offset
    return base.with_terms(offsets)


def _catalogue_scopes() -> dict[str, list[str]]:
    """The names in each kind of scope."""
    chips = {chip.id: chip for chip in catalogue.chips().values()}
    stacks = {stack.calibrated_as for stack in catalogue.stacks().values()}
    return {
        "stack": sorted(stacks - {_GENERIC_STACK}),
        "generation": sorted({chip.generation for chip in chips.values()}),
        "chip": sorted(chips),
    }


def _offsets(term: Term, scopes: dict[str, list[str]]) -> Iterator[Term]:
    for kind in SCOPES[term.coefficient]:
        if kind == "stack" and term.coefficient in _LIBRARY_COEFFICIENTS:
            continue
        for name in scopes.get(kind, ()):
            yield Term(
                coefficient=term.coefficient,
                scope=f"{kind}:{name}",
                mean=0.0,
                spread=OFFSET_SPREAD[kind] * term.spread,
                source="no own figure",
            )
