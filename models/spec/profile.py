"""Profiles: what data sheets leave out, as coefficients with a mean and a spread.

A coefficient lives on an unbounded scale (the log of a positive number, the log-odds of a fraction)
and is the sum of the *terms* that apply to a problem: one for everything ("all") and offsets for
narrower *scopes* ("generation:hopper", "chip:h200-sxm-141gb", "stack:megatron", …). A scope without
runs has no term, or a term at its prior, and so inherits from the wider scope. A *spread* is a
standard deviation.

A *run* is a measured training run. A *neighbourhood* says how far runs of one kind scatter around
their predictions. A *fleet* is the machines of one deployment, whose reported runs give it scopes
of its own. *Terms of the breakdown*, by contrast, are the parts of a step time or of memory, such
as compute or data-parallel traffic.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from models.columns import Array
from models.errors import Invalid, UnknownName
from models.package_data import read_json
from models.spec.catalogue import from_json
from models.spec.identity import cached_by_identity
from models.spec.influences import Influences

Value = TypeVar("Value")

Number = float | Array
TermKey = tuple[str, str]
"""The key of a term: its coefficient and its scope."""
FLEET = "fleet"
"""The kind of the scopes of one deployment's machines (models.calibration.fleet_effects)."""
Z80 = 1.2815515655446004
"""Half of the central 80% interval of a normal distribution, in standard deviations."""
_CACHED_SCOPES = 64
"""The number of pairs of a profile and scopes for which results are kept."""


def is_of_fleet(scope: str) -> bool:
    return scope.startswith(f"{FLEET}:")


def _fraction(scopes: str) -> Any:
    """Return the dataclass field of a coefficient between 0 and 1. `scopes` are the kinds of scopes
    between which it may differ, such as "generation stack"."""
    return field(metadata={"kind": "fraction", "scopes": tuple(scopes.split())})


def _positive(scopes: str) -> Any:
    """Return the dataclass field of a coefficient above 0. `scopes` are the kinds of scopes between
    which it may differ, such as "generation stack"."""
    return field(metadata={"kind": "positive", "scopes": tuple(scopes.split())})


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The coefficients of one (chip, fabric, stack), as numbers or as arrays of draws from the
    posterior.

    The docstring of each field says what it measures and in which unit.
    """

    gemm_16: Number = _fraction("generation chip stack fleet")
    """Rate of large 16-bit matrix multiplications, as a fraction of the dense peak."""
    gemm_8: Number = _fraction("generation chip stack fleet")
    """Rate of large 8-bit matrix multiplications, as a fraction of the dense peak."""
    gemm_4: Number = _fraction("generation chip stack fleet")
    """Rate of large 4-bit matrix multiplications, as a fraction of the dense peak."""
    row_scaled_gemm: Number = _fraction("generation")
    """Rate of an 8-bit product whose operands have a scale for every row, as a fraction of the rate
    with one scale for each operand."""
    ragged_rows: Number = _fraction("generation")
    """Rate of a product on tensor cores whose matrices have rows that are no whole number of
    vectors, as a fraction of the rate with whole vectors."""
    gemm_tail_waves: Number = _positive("generation")
    """Time lost at the end of a matrix multiplication, in waves of tiles over the whole chip."""
    grouped_gemm: Number = _fraction("generation stack")
    """Rate of the grouped GEMM of experts, as a fraction of the rate of a plain GEMM."""
    expert_serialisation: Number = _fraction("stack")
    """Fraction of the experts of a device that run one after the other, each with a tail of its
    own."""
    attention: Number = _fraction("kernel generation chip")
    """Rate of the attention kernel on long sequences with a head dim of 128, as a fraction of the
    dense 16-bit peak."""
    narrow_heads: Number = _positive("kernel")
    """Exponent of (head dim / 128) in the rate of attention with narrower heads."""
    chosen_keys: Number = _fraction("stack")
    """Rate of attention over keys that are chosen for each query, and of the choice itself, as a
    fraction of the rate of attention over all keys."""
    recurrence_traffic: Number = _positive("generation stack")
    """Memory traffic of the kernels of linear attention and state-space models, as a multiple of
    the counted bytes."""
    memory: Number = _fraction("generation chip")
    """Rate of memory-bound kernels, as a fraction of the memory bandwidth."""
    elementwise_traffic: Number = _positive("fusion stack")
    """Memory traffic of norms, activations and residuals, as a multiple of the counted bytes."""
    routing_traffic: Number = _positive("stack")
    """Memory traffic of permuting tokens for their experts and back, as a multiple of the counted
    bytes."""
    bias_traffic: Number = _positive("generation stack")
    """Number of times that the outputs of experts are read or written to add their biases."""
    launch_s: Number = _positive("launch stack fleet")
    """Host time of a kernel launch, in seconds."""
    expert_launch_s: Number = _positive("launch stack")
    """Host time of a launch for one expert, in seconds."""
    hook_s: Number = _positive("stack")
    """Host time in forward of ZeRO 3 for each matrix of an expert that it gathers by itself, in
    seconds. Backward takes twice that."""
    routing_launches: Number = _positive("routing generation stack")
    """Launches for routing, dispatch and combination in the forward of a sparse layer."""
    ageing: Number = _positive("stack")
    """Growth of the log of kernel time with the age of the software, per year."""
    routing_ageing: Number = _positive("stack")
    """Growth of the log of the time to permute tokens with the age of the software, per year."""
    launch_ageing: Number = _positive("stack")
    """Growth of the log of launch time with the age of the software, per year."""
    compute_overhead: Number = _positive("steps stack chip fleet")
    """Compute time as a multiple of the counted time. It stands for sustained clock, gaps, and all
    else that kernels do not explain."""
    scaleup: Number = _fraction("generation fleet")
    """Bandwidth of collectives within the scale-up domain, as a fraction of the link rate."""
    scaleout: Number = _fraction("generation stack fleet")
    """Bandwidth of collectives beyond the domain, as a fraction of the NIC rate."""
    alltoall: Number = _fraction("generation stack fleet")
    """Bandwidth of all-to-alls, as a fraction of the bandwidth of a ring."""
    collective_s: Number = _positive("generation stack fleet")
    """Fixed cost of a collective call, in seconds."""
    scaleup_hop_s: Number = _positive("generation")
    """Latency of a hop of a ring within the domain, in seconds."""
    scaleout_hop_s: Number = _positive("generation stack fabric")
    """Latency of a hop between domains, in seconds."""
    ring_step_s: Number = _positive("fabric")
    """Time that a network adds to every step of a ring that leaves the domain, in seconds."""
    stall_s: Number = _positive("stack fabric")
    """Host time of a hop of a tensor-parallel collective beside pipeline sends, in seconds."""
    send_s: Number = _positive("stack")
    """Handshake of a send between pipeline stages, in seconds."""
    tensor_overlap: Number = _fraction("stack")
    """Fraction of tensor-parallel traffic that is hidden where the stack overlaps it."""
    data_overlap: Number = _fraction("stack chip")
    """Fraction of the compute window that can hide data-parallel traffic."""
    expert_prefetch: Number = _fraction("stack chip")
    """Fraction of the gather of expert weights that can be hidden. Kernels that need the weights of
    all experts wait for the rest."""
    expert_overlap: Number = _fraction("stack")
    """Fraction of expert-parallel traffic that is hidden where the stack overlaps it."""
    context_overlap: Number = _fraction("stack")
    """Fraction of attention time that can hide context-parallel traffic."""
    pipeline_overlap: Number = _fraction("stack")
    """Fraction of pipeline sends that is hidden where the stack overlaps them."""
    interference: Number = _fraction("generation chip")
    """Slowdown of compute by the traffic that hides behind it, as a fraction of that traffic's
    time."""
    imbalance: Number = _positive("stack")
    """Standard deviation of the experts' shares of tokens under natural routing, as a fraction of
    their mean."""
    step_fixed_s: Number = _positive("stack")
    """Host work once a step, in seconds."""
    jitter: Number = _positive("stack")
    """Time lost to stragglers, as a fraction of the step time for every doubling of the devices
    beyond one node."""
    slow_node_s: Number = _positive("fabric")
    """Delay of every send and receipt, in seconds, in jobs that use every node of their cluster,
    and so cannot leave out a node that is in trouble."""
    host_gb_s: Number = _positive("generation chip")
    """Bandwidth between a device and host memory, for offload, in GB/s."""
    activation_memory: Number = _positive("steps stack fleet")
    """Memory of activations as allocated, as a multiple of the counted bytes."""
    logit_memory: Number = _positive("stack")
    """Memory of logits and their gradient, as a multiple of the counted bytes."""
    fragmentation: Number = _positive("stack fleet")
    """Memory reserved beyond what is allocated, as a fraction of the allocated bytes."""
    context_gib: Number = _positive("generation stack fleet")
    """Memory of runtime, libraries and communication buffers, in GiB."""
    kernel_age: Number = 0.0
    """Years between the newest software of all and the newest that ran on the chip's generation. It
    is counted and not fitted. Nothing is known of kernels younger than that."""


_FITTED = [f for f in fields(Coefficients) if f.metadata]
KINDS: dict[str, str] = {f.name: f.metadata["kind"] for f in _FITTED}
MEMORY_COEFFICIENTS = frozenset(
    {"activation_memory", "logit_memory", "fragmentation", "context_gib"}
)
SCOPES: dict[str, tuple[str, ...]] = {f.name: f.metadata["scopes"] for f in _FITTED}
"""The kinds of scopes that each coefficient may differ between, besides "all"."""


def _instances_listed(cls: type[Value], data: Mapping[str, Any], name: str) -> tuple[Value, ...]:
    """Return the instances of a dataclass that a JSON object lists under a name; none where the
    name is missing, as in objects that an earlier release wrote."""
    return tuple(from_json(cls, entry) for entry in data.get(name, ()))


def _is_known(term: Mapping[str, Any]) -> bool:
    """Say whether this release knows a stored term: its coefficient exists, and may differ between
    scopes of the term's kind."""
    kinds = "all", *SCOPES.get(term["coefficient"], ())
    return term["coefficient"] in KINDS and term["scope"].partition(":")[0] in kinds


def to_unbounded(name: str, value: float) -> float:
    """Return the log of a positive coefficient, or the log-odds of a fraction."""
    if KINDS[name] == "fraction":
        return math.log(value / (1 - value))
    return math.log(value)


def to_natural(name: str, value: Any) -> Any:
    """Return the coefficient, as a number or an array, whose unbounded value is `value`. It inverts
    :func:`to_unbounded`."""
    if KINDS[name] == "fraction":
        return 1 / (1 + np.exp(-value))
    return np.exp(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A term is what a scope adds to a coefficient, on the unbounded scale: `mean`, with `spread`
    as its standard deviation. `runs` is the number of runs that informed it."""

    coefficient: str
    scope: str
    mean: float
    spread: float
    runs: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        if self.coefficient not in KINDS:
            raise UnknownName("coefficient", self.coefficient, KINDS)
        kind = self.scope.partition(":")[0]  # "chip:h100" -> "chip"
        if kind != "all" and kind not in SCOPES[self.coefficient]:
            rule = f"{self.coefficient} varies with {', '.join(SCOPES[self.coefficient])}"
            raise Invalid("scope", self.scope, rule)

    @property
    def key(self) -> TermKey:
        return self.coefficient, self.scope

    @property
    def is_unknown(self) -> bool:
        """True where no run says anything of the term, so that its spread widens intervals. Terms
        of a fleet never do: the spread of residuals already has the difference between fleets."""
        return not self.runs and not is_of_fleet(self.scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """The scatter of runs of one kind around what a fit without runs of their model, chip and stack
    predicted.

    `spread` is a standard deviation of log step time, or of the log of peak memory: that of the
    normal distribution with the same central 80%. Other runs of the same source were in the fit, so
    it is the spread within a source. `unidentified` is the part of `spread` that comes from terms
    that no run informed. `runs` is the number of runs behind it. `between` is the standard
    deviation between sources of what all runs of a source have in common.
    """

    scope: str
    spread: float
    unidentified: float
    runs: int
    between: float = 0.0

    @property
    def total(self) -> float:
        """The spread of runs from a source that nobody has seen."""
        return math.hypot(self.spread, self.between)

    def spread_for_unseen_source(self, unidentified_variance: float) -> float:
        """Return the spread of log measured over predicted values for a source (an organisation's
        machines) that no run came from. `unidentified_variance` is the part of the prediction's
        variance that comes from terms without runs."""
        return math.hypot(self.spread_within_source(unidentified_variance), self.between)

    def spread_within_source(self, unidentified_variance: float) -> float:
        """Return the spread of log measured over predicted values within one source.
        `unidentified_variance` is the part of the prediction's variance that comes from terms
        without runs."""
        # The runs behind `spread` had such a part too, on average `unidentified`, and `spread`
        # contains it. So only what a prediction has beyond that is added.
        return math.sqrt(self.spread**2 + max(unidentified_variance - self.unidentified**2, 0.0))

    def with_between_sources(self, between: float) -> Neighbourhood:
        """Return this neighbourhood with `between` as the standard deviation between sources. That
        of a fleet is lower, because the fleet's own runs tell where it lies: after n runs of
        variance σ², the variance of a mean with prior variance τ² is 1 / (1/τ² + n/σ²)."""
        if is_of_fleet(self.scope) and between:
            between = 1 / math.sqrt(between**-2 + self.runs * self.spread**-2)
        return replace(self, between=between)


@dataclass(frozen=True, slots=True, kw_only=True)
class TermCoverage:
    """The number of runs behind a profile that exercised a term of the breakdown in a scope
    (models.prediction.coverage). `sources` are codes that tell the sources of these runs apart, in
    order; it is empty where they are not known."""

    term: str
    scope: str
    runs: int
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityRange:
    """The range of the values of a quantity that the runs of a scope have."""

    quantity: str
    scope: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestSoftware:
    """The date of the newest software among the published runs of a scope, as a year with a
    fraction."""

    scope: str
    year: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A profile is an immutable set of terms, with what the runs behind them say of its reach."""

    id: str
    terms: tuple[Term, ...]
    residual_spread: float
    """The standard deviation of log step time that the model leaves unexplained."""
    made_by: str
    software_year: float
    """The date of the newest software that the terms describe, as a year with a fraction.
    Stack.age_years counts back from it."""
    unseen_widening: float = 1.0
    """The factor by which intervals are wider where a question lies outside the runs behind the
    profile: in a size or degree, or on another generation of chips (models.prediction.coverage)."""
    neighbourhoods: tuple[Neighbourhood, ...] = ()
    """The neighbourhoods of step time, by the scope that names the kind of run."""
    memory_neighbourhoods: tuple[Neighbourhood, ...] = ()
    between_sources: float = 0.0
    """The standard deviation of log step time between a source of runs and one that the fit has not
    seen."""
    memory_between_sources: float = 0.0
    """The standard deviation of log peak memory between a source of runs and one that the fit has
    not seen."""
    seen: tuple[TermCoverage, ...] = ()
    """The terms of the breakdown that the runs behind the profile exercised."""
    spans: tuple[QuantityRange, ...] = ()
    """The ranges of quantities that the runs behind the profile cover."""
    newest: tuple[NewestSoftware, ...] = ()
    """The newest software that ran on each generation of chips."""
    influences: Influences | None = None
    """The measurements that the fit moved its terms by; None where it was of published runs, or by
    an earlier release."""
    version: int = 1

    @cached_property
    def by_key(self) -> dict[TermKey, Term]:
        return {term.key: term for term in self.terms}

    @cached_property
    def _places_by_scope(self) -> dict[str, list[int]]:
        """The positions in `terms` of the terms of each scope, so that `_terms_in` need not search
        all terms."""
        places: dict[str, list[int]] = {}
        for place, term in enumerate(self.terms):
            places.setdefault(term.scope, []).append(place)
        return places

    @cached_property
    def coverage_of(self) -> dict[tuple[str, str], TermCoverage]:
        """The runs that exercised a term of the breakdown, by term and scope."""
        return {(coverage.term, coverage.scope): coverage for coverage in self.seen}

    @cached_property
    def range_of(self) -> dict[tuple[str, str], QuantityRange]:
        """The range that the runs of a scope cover, by quantity and scope."""
        return {(span.quantity, span.scope): span for span in self.spans}

    @cached_property
    def scopes_of_ranges(self) -> frozenset[str]:
        return frozenset(span.scope for span in self.spans)

    def kernel_age(self, scopes: Iterable[str]) -> float:
        """Return by how many years the newest software that ran in these scopes, such as a
        generation of chips, is older than the newest of all. Kernels there are priced as at least
        so old, since no run shows what newer ones do. It is the largest age where several scopes
        have one, and 0 where none has."""
        scope_set = set(scopes)
        years = (software.year for software in self.newest if software.scope in scope_set)
        return max((self.software_year - year for year in years), default=0.0)

    def neighbourhood(self, scopes: Sequence[str]) -> Neighbourhood:
        """Return how far step times of runs in these `scopes` (widest first) lie from predictions,
        on machines that no run behind the profile came from. It is the neighbourhood of the
        narrowest scope that has one, or else the residual spread."""
        narrowest = self._of_narrowest_scope(self.neighbourhoods, scopes)
        return narrowest.with_between_sources(self.between_sources)

    def memory_neighbourhood(self, scopes: Sequence[str]) -> Neighbourhood:
        """Return how far peaks of memory of runs in these `scopes` (widest first) lie from
        predictions: the neighbourhood of the narrowest scope that has one, or else the residual
        spread."""
        narrowest = self._of_narrowest_scope(self.memory_neighbourhoods, scopes)
        return narrowest.with_between_sources(self.memory_between_sources)

    def _of_narrowest_scope(
        self, neighbourhoods: Sequence[Neighbourhood], scopes: Sequence[str]
    ) -> Neighbourhood:
        """Return the neighbourhood of the last of `scopes` that has one; they come widest first. If
        none has one, return the residual spread as a neighbourhood."""
        by_scope = {neighbourhood.scope: neighbourhood for neighbourhood in neighbourhoods}
        for scope in reversed(scopes):
            if scope in by_scope:
                return by_scope[scope]
        return Neighbourhood(scope="none", spread=self.residual_spread, unidentified=0.0, runs=0)

    def terms_in(self, scopes: Iterable[str]) -> tuple[Term, ...]:
        """Return the terms that apply to a problem with these scopes. Terms of "all" always do."""
        return self._terms_in(frozenset(scopes))

    @cached_by_identity(_CACHED_SCOPES)
    def _terms_in(self, scopes: frozenset[str]) -> tuple[Term, ...]:
        """Return the terms of scope "all" and of these scopes, in the order of the profile, so that
        sums of them do not depend on the order of a set."""
        places = [self._places_by_scope.get(scope, []) for scope in scopes | {"all"}]
        return tuple(self.terms[place] for place in sorted(chain.from_iterable(places)))

    def with_offsets(self, scopes: Iterable[str]) -> Profile:
        """Return the profile with an offset of mean zero added for every coefficient that may
        differ between such scopes though no run has told by how much. The spreads of these offsets
        (data/priors.json) widen intervals; means do not change."""
        return self._with_offsets(frozenset(scopes))

    @cached_by_identity(_CACHED_SCOPES)
    def _with_offsets(self, scopes: frozenset[str]) -> Profile:
        """Return the profile that `with_offsets` describes. Terms that the profile has already are
        kept as they are."""
        offsets = (term for scope in sorted(scopes) for term in _unknown_offsets(scope))
        added = {term.key: term for term in offsets if term.key not in self.by_key}
        return self.with_terms(added) if added else self

    def coefficients(
        self, scopes: Sequence[str], deviations: Mapping[TermKey, Array] | None = None
    ) -> Coefficients:
        """Return the coefficients of a problem with these scopes. `deviations` (arrays of equal
        length, by the term's key) are added to the means of terms on the unbounded scale."""
        if deviations:
            return self._coefficients_with_deviations(scopes, deviations)
        return self._mean_coefficients(frozenset(scopes))

    @cached_by_identity(_CACHED_SCOPES)
    def _mean_coefficients(self, scopes: frozenset[str]) -> Coefficients:
        return self._coefficients_with_deviations(scopes, {})

    def _coefficients_with_deviations(
        self, scopes: Collection[str], deviations: Mapping[TermKey, Array]
    ) -> Coefficients:
        """Return the coefficients that sum the terms of these scopes on the unbounded scale, with
        `deviations` added to some terms. Coefficients of these terms are arrays."""
        sums: dict[str, Any] = dict.fromkeys(KINDS, 0.0)
        for term in self.terms_in(scopes):
            sums[term.coefficient] = sums[term.coefficient] + term.mean
            if term.key in deviations:  # an array, which makes the sum one too
                sums[term.coefficient] = sums[term.coefficient] + deviations[term.key]
        natural = {name: to_natural(name, value) for name, value in sums.items()}
        return Coefficients(**natural, kernel_age=self.kernel_age(scopes))

    def with_terms(self, changed: Mapping[TermKey, Term], **fields_: Any) -> Profile:
        """Return a copy of the profile with these terms, by key, replaced or added. Further keyword
        arguments replace other fields."""
        merged = {**self.by_key, **changed}
        return replace(self, terms=tuple(merged.values()), **fields_)

    def to_json(self) -> dict[str, Any]:
        """Return the profile as a document of JSON, which `from_json` reads."""
        return {
            "id": self.id,
            "version": self.version,
            "made_by": self.made_by,
            "software_year": self.software_year,
            "residual_spread": self.residual_spread,
            "beyond": self.unseen_widening,  # the name in stored profiles, which cannot change
            "between_sources": self.between_sources,
            "memory_between_sources": self.memory_between_sources,
            # Each without `between`, which is stored once, as between_sources.
            "neighbourhoods": list(map(_without_between, self.neighbourhoods)),
            "memory_neighbourhoods": list(map(_without_between, self.memory_neighbourhoods)),
            "seen": list(map(asdict, self.seen)),
            "spans": list(map(asdict, self.spans)),
            "newest": list(map(asdict, self.newest)),
            "terms": list(map(asdict, self.terms)),
            # Left out where there are none, so that profiles stored before the field existed keep
            # their hash.
            **({} if self.influences is None else {"influences": self.influences.to_json()}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """Read what `to_json` wrote, here or in another release. Coefficients that did not exist
        when the profile was written get the terms of the shipped priors. Coefficients, scopes and
        fields that a later release has added are ignored. Raise Invalid where neither `data` nor
        the priors have a term for a coefficient."""
        terms = tuple(from_json(Term, term) for term in data["terms"] if _is_known(term))
        missing = KINDS.keys() - {term.coefficient for term in terms if term.scope == "all"}
        terms += tuple(term for term in _prior_terms() if term.coefficient in missing)
        if without_term := missing - {term.coefficient for term in terms}:
            rule = "every coefficient needs a term of scope 'all'"
            raise Invalid("profile.terms", sorted(without_term), rule)
        influences = data.get("influences")
        # Fields that are read with a default are missing in profiles of earlier releases.
        return cls(
            id=data["id"],
            version=data.get("version", 1),
            made_by=data["made_by"],
            software_year=data["software_year"],
            residual_spread=data["residual_spread"],
            unseen_widening=data.get("beyond", 1.0),  # its name in stored profiles
            between_sources=data.get("between_sources", 0.0),
            memory_between_sources=data.get("memory_between_sources", 0.0),
            neighbourhoods=_instances_listed(Neighbourhood, data, "neighbourhoods"),
            memory_neighbourhoods=_instances_listed(Neighbourhood, data, "memory_neighbourhoods"),
            seen=_instances_listed(TermCoverage, data, "seen"),
            spans=_instances_listed(QuantityRange, data, "spans"),
            newest=_instances_listed(NewestSoftware, data, "newest"),
            influences=influences and Influences.from_json(influences),
            terms=terms,
        )


def _without_between(neighbourhood: Neighbourhood) -> dict[str, Any]:
    """Return a neighbourhood as a document of JSON without `between`, which is stored once, with
    the profile."""
    fields_ = asdict(neighbourhood)
    del fields_["between"]
    return fields_


@cache
def _prior_data() -> dict[str, Any]:
    """Return the document of priors (data/priors.json): "terms" that measurements of single kernels
    and links suggest, and "offsets", the scopes in which coefficients may differ from these."""
    data: dict[str, Any] = read_json("models", "data/priors.json")
    return data


@cache
def _prior_terms() -> tuple[Term, ...]:
    return tuple(Term(**term) for term in _prior_data()["terms"])


def _unknown_offsets(scope: str) -> Iterator[Term]:
    """Yield a term of mean zero for each coefficient that the priors let differ in scopes of this
    kind. Its spread is a share of the spread of the coefficient's term of scope "all"."""
    kind = scope.partition(":")[0]  # "stack:megatron" -> "stack"
    shares = _prior_data()["offsets"].get(kind, {})
    spreads = {term.coefficient: term.spread for term in _prior_terms() if term.scope == "all"}
    for coefficient, share in shares.items():
        yield Term(
            coefficient=coefficient,
            scope=scope,
            mean=0.0,
            spread=share * spreads[coefficient],
            source="no own figure",
        )


@cache
def priors() -> Profile:
    """Return what is known of hardware before any training run: measurements of its parts, with
    their sources (data/priors.json)."""
    return Profile.from_json(_prior_data())


@cache
def shipped_profile() -> Profile:
    """Return the profile fitted from published measurements that comes with the code
    (data/profile.json)."""
    return Profile.from_json(read_json("models", "data/profile.json"))
