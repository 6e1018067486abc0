"""Profiles: what the data sheets do not say, as coefficients with a mean and a spread.

A coefficient lives on an unbounded scale (the log of a positive number, the log-odds of a fraction)
and is the sum of the *terms* that apply: one for everything ("all") and offsets for narrower scopes
("generation:hopper", "chip:h200-sxm-141gb", "stack:megatron", …). A scope without runs has no term
or a term at its prior, and so inherits from the wider one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import numpy as np

from models.columns import Array
from models.errors import Invalid, UnknownName

Number = float | Array
TermKey = tuple[str, str]
"""Coefficient and scope of a term."""
FLEET = "fleet"
"""Begins the scopes of one deployment's machines (models.calibration.fleet_effects)."""
# half of a central 80% interval of a normal distribution, in standard deviations
Z80 = 1.2815515655446004


def is_of_fleet(scope: str) -> bool:
    return scope.startswith(f"{FLEET}:")


def _coefficient(kind: str, unit: str, doc: str, scopes: str) -> Any:
    return field(metadata={"kind": kind, "unit": unit, "doc": doc, "scopes": tuple(scopes.split())})


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The coefficients of one (chip, fabric, stack), or arrays of them (draws from the posterior).

    `kernel_age`: years between the newest software of all and the newest that ran on the chip's
    generation; of kernels younger than that nothing is known.
    """

    gemm_16: Number = _coefficient(
        "fraction",
        "of dense peak",
        "large 16-bit matrix multiplications",
        "generation chip stack fleet",
    )
    gemm_8: Number = _coefficient(
        "fraction",
        "of dense peak",
        "large 8-bit matrix multiplications",
        "generation chip stack fleet",
    )
    gemm_4: Number = _coefficient(
        "fraction",
        "of dense peak",
        "large 4-bit matrix multiplications",
        "generation chip stack fleet",
    )
    gemm_tail_waves: Number = _coefficient(
        "positive", "waves", "tiles lost at the end of a matrix multiplication", "generation"
    )
    grouped_gemm: Number = _coefficient(
        "fraction", "of a plain GEMM's rate", "grouped GEMM of experts", "generation stack"
    )
    expert_serialisation: Number = _coefficient(
        "fraction",
        "of the experts of a device",
        "that run one after the other, each with a tail of its own",
        "stack",
    )
    attention: Number = _coefficient(
        "fraction",
        "of dense 16-bit peak",
        "attention kernel, long sequence, head dim 128",
        "kernel generation chip",
    )
    narrow_heads: Number = _coefficient(
        "positive", "exponent", "of a head's dim over 128, in the rate of attention", "kernel"
    )
    memory: Number = _coefficient(
        "fraction", "of memory bandwidth", "memory-bound kernels", "generation chip"
    )
    elementwise_traffic: Number = _coefficient(
        "positive",
        "of the counted bytes",
        "traffic of norms, activations, residuals",
        "fusion stack",
    )
    routing_traffic: Number = _coefficient(
        "positive",
        "of the counted bytes",
        "traffic of permuting tokens for their experts and back",
        "stack",
    )
    bias_traffic: Number = _coefficient(
        "positive",
        "reads and writes",
        "of what experts put out, to add their biases",
        "generation stack",
    )
    launch_s: Number = _coefficient("positive", "s", "host time of a kernel launch", "launch stack")
    expert_launch_s: Number = _coefficient(
        "positive", "s", "host time of a launch for one expert", "launch stack"
    )
    routing_launches: Number = _coefficient(
        "positive",
        "launches",
        "of routing, dispatch and combination in a sparse layer's forward",
        "routing generation stack",
    )
    ageing: Number = _coefficient(
        "positive", "a year", "kernels are slower in older software", "stack"
    )
    routing_ageing: Number = _coefficient(
        "positive", "a year", "permuting tokens is slower in older software", "stack"
    )
    launch_ageing: Number = _coefficient(
        "positive", "a year", "launches are dearer in older software", "stack"
    )
    compute_overhead: Number = _coefficient(
        "positive",
        "of counted compute",
        "sustained clock, gaps, all that kernels do not explain",
        "steps stack chip fleet",
    )
    scaleup: Number = _coefficient(
        "fraction", "of link rate", "collectives in the scale-up domain", "generation fleet"
    )
    scaleout: Number = _coefficient(
        "fraction", "of NIC rate", "collectives beyond it", "generation stack fleet"
    )
    alltoall: Number = _coefficient(
        "fraction", "of the ring rate", "all-to-all", "generation stack fleet"
    )
    collective_s: Number = _coefficient(
        "positive", "s", "fixed cost of a collective call", "generation stack fleet"
    )
    scaleup_hop_s: Number = _coefficient(
        "positive", "s", "latency of a hop of a ring in the domain", "generation"
    )
    scaleout_hop_s: Number = _coefficient(
        "positive", "s", "latency of a hop between domains", "generation stack fabric"
    )
    ring_step_s: Number = _coefficient(
        "positive", "s", "that a step of a ring takes at least where it leaves the domain", "fabric"
    )
    stall_s: Number = _coefficient(
        "positive",
        "s",
        "host time of a hop of a tensor-parallel collective beside pipeline sends",
        "stack fabric",
    )
    send_s: Number = _coefficient(
        "positive", "s", "handshake of a send between pipeline stages", "stack"
    )
    tensor_overlap: Number = _coefficient(
        "fraction", "of TP traffic", "hidden where the stack overlaps it", "stack"
    )
    data_overlap: Number = _coefficient(
        "fraction", "of the compute window", "that can hide DP traffic", "stack"
    )
    expert_prefetch: Number = _coefficient(
        "fraction",
        "of the gather of expert weights",
        "that can hide: kernels of their own wait for all of them",
        "stack",
    )
    expert_overlap: Number = _coefficient(
        "fraction", "of EP traffic", "hidden where the stack overlaps it", "stack"
    )
    context_overlap: Number = _coefficient(
        "fraction", "of attention time", "that can hide CP traffic", "stack"
    )
    pipeline_overlap: Number = _coefficient(
        "fraction", "of PP sends", "hidden where the stack overlaps them", "stack"
    )
    interference: Number = _coefficient(
        "fraction",
        "of hidden traffic",
        "by which it slows the compute it hides behind",
        "generation",
    )
    imbalance: Number = _coefficient(
        "positive",
        "of the mean",
        "standard deviation of experts' shares of tokens, natural routing",
        "stack",
    )
    step_fixed_s: Number = _coefficient("positive", "s", "host work once a step", "stack")
    jitter: Number = _coefficient(
        "positive", "of step time", "per doubling of devices beyond a node", "stack"
    )
    slow_node_s: Number = _coefficient(
        "positive",
        "s",
        "a node in trouble delays every send and receipt of jobs that leave out no node",
        "fabric",
    )
    host_gb_s: Number = _coefficient(
        "positive", "GB/s", "device to host memory, for offload", "generation chip"
    )
    activation_memory: Number = _coefficient(
        "positive", "of counted bytes", "activations as allocated", "stack fleet"
    )
    logit_memory: Number = _coefficient(
        "positive", "of counted bytes", "logits and their gradient", "stack"
    )
    fragmentation: Number = _coefficient(
        "positive", "of allocated bytes", "reserved beyond them", "stack fleet"
    )
    context_gib: Number = _coefficient(
        "positive", "GiB", "runtime, libraries, communication buffers", "generation stack fleet"
    )
    kernel_age: Number = 0.0


_FITTED = [f for f in fields(Coefficients) if f.metadata]
KINDS: dict[str, str] = {f.name: f.metadata["kind"] for f in _FITTED}
MEMORY_COEFFICIENTS = frozenset(
    {"activation_memory", "logit_memory", "fragmentation", "context_gib"}
)
SCOPES: dict[str, tuple[str, ...]] = {f.name: f.metadata["scopes"] for f in _FITTED}


def to_unbounded(name: str, value: float) -> float:
    """Log of a positive coefficient, log-odds of a fraction."""
    if KINDS[name] == "fraction":
        return math.log(value / (1 - value))
    return math.log(value)


def to_natural(name: str, value: Any) -> Any:
    if KINDS[name] == "fraction":
        return 1 / (1 + np.exp(-value))
    return np.exp(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """`mean` and `spread` (standard deviation) on the unbounded scale; `runs`: how many runs
    informed it."""

    coefficient: str
    scope: str
    mean: float
    spread: float
    runs: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        if self.coefficient not in KINDS:
            raise UnknownName("coefficient", self.coefficient, KINDS)
        kind = self.scope.partition(":")[0]
        if kind != "all" and kind not in SCOPES[self.coefficient]:
            rule = f"{self.coefficient} varies with {', '.join(SCOPES[self.coefficient])}"
            raise Invalid("scope", self.scope, rule)

    @property
    def key(self) -> TermKey:
        return self.coefficient, self.scope

    @property
    def is_unknown(self) -> bool:
        """Whether no run says anything of it. What tells one fleet from others is part of how far
        runs scatter."""
        return not self.runs and not is_of_fleet(self.scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """How far runs of one kind lay from what a fit without their model, chip and stack had
    predicted.

    `spread`: standard deviation, with the same central 80%, of log step time or of the log of
    memory reserved; `unidentified`: the part of it that the terms make of which no run says
    anything; `runs`: how many it rests on.
    """

    scope: str
    spread: float
    unidentified: float
    runs: int

    def with_variance(self, unidentified: float) -> float:
        """The spread of a prediction on which terms without runs have this variance."""
        return math.sqrt(self.spread**2 + max(unidentified - self.unidentified**2, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TermCoverage:
    """How many of the runs behind a profile exercised a term of the breakdown in a scope
    (models.prediction.coverage)."""

    term: str
    scope: str
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityRange:
    """Between which values of a quantity the runs of a scope lie."""

    quantity: str
    scope: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestSoftware:
    """The date, in years, of the newest software among the published runs of a scope."""

    scope: str
    year: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """An immutable set of terms. `residual_spread`: what the model leaves unexplained, of log step
    time.

    `beyond`: how many times wider predictions are where no run on the chip's generation has been
    (models.prediction.coverage). `software_year`: date of the newest software the terms describe;
    Stack.age_years counts back from it. `newest`: of the software that ran on each generation of
    chips.
    """

    id: str
    terms: tuple[Term, ...]
    residual_spread: float
    made_by: str
    software_year: float
    unseen_widening: float = 1.0
    neighbourhoods: tuple[Neighbourhood, ...] = ()
    memory_neighbourhoods: tuple[Neighbourhood, ...] = ()
    seen: tuple[TermCoverage, ...] = ()
    spans: tuple[QuantityRange, ...] = ()
    newest: tuple[NewestSoftware, ...] = ()
    version: int = 1

    @cached_property
    def by_key(self) -> dict[TermKey, Term]:
        return {term.key: term for term in self.terms}

    @cached_property
    def runs_by_term(self) -> dict[tuple[str, str], int]:
        """By term and scope."""
        return {(one.term, one.scope): one.runs for one in self.seen}

    @cached_property
    def range_of(self) -> dict[tuple[str, str], QuantityRange]:
        """By quantity and scope."""
        return {(one.quantity, one.scope): one for one in self.spans}

    def kernel_age(self, scopes: Iterable[str]) -> float:
        """Years from the newest software of all back to the newest that ran in one of these
        scopes."""
        wanted = set(scopes)
        return max(
            (self.software_year - one.year for one in self.newest if one.scope in wanted),
            default=0.0,
        )

    def neighbourhood(self, scopes: Sequence[str]) -> Neighbourhood:
        """Of step time: the narrowest known of these, widest first; of a profile without any, its
        residual spread."""
        return self._narrowest(self.neighbourhoods, scopes)

    def memory_neighbourhood(self, scopes: Sequence[str]) -> Neighbourhood:
        """Of memory."""
        return self._narrowest(self.memory_neighbourhoods, scopes)

    def _narrowest(
        self, neighbourhoods: Sequence[Neighbourhood], scopes: Sequence[str]
    ) -> Neighbourhood:
        known = {one.scope: one for one in neighbourhoods}
        none = Neighbourhood(scope="none", spread=self.residual_spread, unidentified=0.0, runs=0)
        return next((known[scope] for scope in reversed(scopes) if scope in known), none)

    def terms_in(self, scopes: Iterable[str]) -> list[Term]:
        """The terms of the scopes of a problem ("all" always applies)."""
        wanted = {"all", *scopes}
        return [term for term in self.terms if term.scope in wanted]

    def with_unmet_scopes(self, scopes: Iterable[str]) -> Profile:
        """With offsets of unknown size for a chip, generation or stack that it has never met, as
        wide as those of known ones without runs."""
        known = {term.scope for term in self.terms}
        added = {}
        for scope in set(scopes) - known:
            kind = scope.partition(":")[0]
            if kind not in ("chip", "generation", "stack"):
                continue
            alike = [term for term in self.terms if term.scope.startswith(f"{kind}:")]
            for name in {term.coefficient for term in alike}:
                of_kind = [term for term in alike if term.coefficient == name]
                spread = max(
                    term.spread for term in ([t for t in of_kind if not t.runs] or of_kind)
                )
                term = Term(
                    coefficient=name, scope=scope, mean=0.0, spread=spread, source="never met"
                )
                added[term.key] = term
        return self.with_terms(dict(sorted(added.items()))) if added else self

    def coefficients(
        self, scopes: Sequence[str], offsets: Mapping[TermKey, Array] | None = None
    ) -> Coefficients:
        """Resolved for a problem's scopes; `offsets` adds to single terms (finite differences,
        draws)."""
        sums: dict[str, Any] = dict.fromkeys(KINDS, 0.0)
        for term in self.terms_in(scopes):
            sums[term.coefficient] = sums[term.coefficient] + term.mean
            if offsets and term.key in offsets:
                sums[term.coefficient] = sums[term.coefficient] + offsets[term.key]
        natural = {name: to_natural(name, value) for name, value in sums.items()}
        return Coefficients(**natural, kernel_age=self.kernel_age(scopes))

    def with_terms(self, changed: Mapping[TermKey, Term], **fields_: Any) -> Profile:
        """A copy with these terms replaced or added."""
        merged = {**self.by_key, **changed}
        return replace(self, terms=tuple(merged.values()), **fields_)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "version": self.version,
            "made_by": self.made_by,
            "software_year": self.software_year,
            "residual_spread": self.residual_spread,
            "beyond": self.unseen_widening,
            "neighbourhoods": [asdict(one) for one in self.neighbourhoods],
            "memory_neighbourhoods": [asdict(one) for one in self.memory_neighbourhoods],
            "seen": [asdict(one) for one in self.seen],
            "spans": [asdict(one) for one in self.spans],
            "newest": [asdict(one) for one in self.newest],
            "terms": [asdict(term) for term in self.terms],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """Coefficients that there were not when it was written are as measurements of parts have
        them."""
        terms = tuple(Term(**term) for term in data["terms"])
        missing = KINDS.keys() - {term.coefficient for term in terms if term.scope == "all"}
        terms += tuple(term for term in _measured() if term.coefficient in missing)
        if unknown := missing - {term.coefficient for term in terms}:
            raise Invalid(
                "profile.terms", sorted(unknown), "every coefficient needs a term of scope 'all'"
            )
        return cls(
            id=data["id"],
            version=data.get("version", 1),
            made_by=data["made_by"],
            software_year=data["software_year"],
            residual_spread=data["residual_spread"],
            unseen_widening=data.get("beyond", 1.0),
            neighbourhoods=tuple(Neighbourhood(**one) for one in data.get("neighbourhoods", ())),
            memory_neighbourhoods=tuple(
                Neighbourhood(**one) for one in data.get("memory_neighbourhoods", ())
            ),
            seen=tuple(TermCoverage(**one) for one in data.get("seen", ())),
            spans=tuple(QuantityRange(**one) for one in data.get("spans", ())),
            newest=tuple(NewestSoftware(**one) for one in data.get("newest", ())),
            terms=terms,
        )


@cache
def _measured() -> tuple[Term, ...]:
    terms = json.loads((files("models") / "data/priors.json").read_text())["terms"]
    return tuple(Term(**term) for term in terms)


@cache
def shipped_profile() -> Profile:
    """The profile fitted from published measurements that comes with the code
    (data/profile.json)."""
    return Profile.from_json(json.loads((files("models") / "data/profile.json").read_text()))
