"""Requests for the best layout, and the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.advice.candidate import Candidate
from models.advice.pipelining import Need, Pipelining
from models.advice.thresholds import Threshold
from models.errors import Invalid
from models.spec.hardware import Cluster
from models.spec.layout import Layout
from service.schemas.allocation import AllocationAnswer, AllocationFields
from service.schemas.evidence import EvidenceShown
from service.schemas.launch import LaunchAnswer, LaunchUnsaid
from service.schemas.layout import ConstraintFields
from service.schemas.micro_batch import ConstraintForm
from service.schemas.objective import AlternativeFields, ChoiceAnswer, ObjectiveFields
from service.schemas.patience import Patience
from service.schemas.prediction import Basis, OutOfMemoryRun, PredictedLayout
from service.schemas.question import PinnedQuestion
from service.schemas.reason import ReasonFacts
from service.schemas.wire import Document


class RecommendationRequest(PinnedQuestion, Patience):
    constraints: ConstraintForm = ConstraintFields()
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.03
    """A simpler layout may be slower than the fastest by this share: 0.03 is 3%."""
    top: Annotated[int, Field(ge=1, le=100)] = 5
    """The number of layouts to rank, the fastest within the tolerance first. Each mesh counts once,
    and of meshes that take equally long the simplest counts."""
    alternatives: AlternativeFields = AlternativeFields()
    """Other places where the job could run. The answer is for the best of all by the objective, and
    lists every one."""
    objective: ObjectiveFields = ObjectiveFields()
    allocation: AllocationFields | None = None
    """Nodes that a scheduler already holds, of the question's cluster: the answer runs on exactly
    those, or some of them. `cluster.num_chips` is then the most to use, and may be left out."""
    include: Annotated[list[Literal["thresholds"]], Field(max_length=1)] = []
    """"thresholds": how much bandwidth, or how large a domain, would change whether a pipeline is
    needed; for 3 s at most, unless `time_limit_s` is given, which then holds for these too."""
    time_limit_s: Annotated[float, Field(gt=0, le=60)] = 20.0
    """The longest time to search. Then the answer is the best so far: see `certificate.exact` and
    `certificate.gap`. Where none fits yet, the search goes on until one does, which for the largest
    questions takes some seconds."""

    @model_validator(mode="after")
    def _require_consistent_places(self) -> Self:
        """Raises Invalid where alternatives contradict the allocation, or lack the limit or the
        number that they depend on."""
        alternatives = self.alternatives
        if self.allocation is not None and (
            alternatives.num_chips or alternatives.up_to_chips is not None
        ):
            name = "num_chips" if alternatives.num_chips else "up_to_chips"
            rule = (
                "says nothing of which nodes to take beside an allocation: send the nodes of each"
                " smaller choice in alternatives.allocations"
            )
            raise Invalid(f"alternatives.{name}", getattr(alternatives, name), rule)
        if alternatives.allocations and self.allocation is None:
            rule = "needs allocation, the nodes of the first choice"
            raise Invalid("alternatives.allocations", None, rule)
        most = self.alternatives.up_to_chips
        limits = (self.objective.deadline_hours, self.objective.budget_usd)
        if alternatives.multiple_of is not None and most is None:
            rule = "needs alternatives.up_to_chips"
            raise Invalid("alternatives.multiple_of", alternatives.multiple_of, rule)
        if most is not None and limits == (None, None):
            rule = "needs objective.deadline_hours or objective.budget_usd"
            raise Invalid("alternatives.up_to_chips", most, rule)
        return self


class CandidateAnswer(Document):
    prediction: PredictedLayout
    complexity: int
    """Points of the one documented order of simplicity: fewer is simpler."""
    complexity_terms: dict[str, int]
    usd_per_million_tokens: float | None
    """At the price of the chip, where one is known; of steps alone, without what failures lose
    (`choices` count it)."""

    @classmethod
    def of(cls, candidate: Candidate, cluster: Cluster) -> Self:
        """Returns a layout with its prediction, and its price where the chip has one."""
        prediction = candidate.prediction
        usd_per_hour = cluster.usd_per_hour
        return cls.from_attributes(
            candidate,
            prediction=PredictedLayout.of(prediction, cluster),
            usd_per_million_tokens=None
            if usd_per_hour is None
            else usd_per_hour / 3600 / prediction.tokens_per_s * 1e6,
        )


Position = Annotated[int, Field(ge=0)]
"""An index into the answer's `layouts`, from 0."""


class BolderAnswer(Document):
    layout: Position
    """The index of the layout in `layouts`. Its prediction's `fit_probability` says what it
    risks."""
    gain: float
    """The share by which a step of `fastest` takes longer than a step of this layout."""


class CertificateAnswer(Document):
    """Every layout of the space is in exactly one of the counts."""

    space: int
    cardinality: dict[str, int]
    """The number of values that each knob may take."""
    rejected: dict[str, int]
    """By the rule that refused them."""
    over_memory: int
    """Looked at one by one and too large."""
    pruned_by_memory: int
    pruned_by_bound: int
    evaluated: int
    """Whose step time was worked out: they fit."""
    closing_bound_s: float | None
    """The least lower bound of what was not evaluated."""
    exact: bool
    """The search came to its end: that bound is no better than the answer."""
    gap: float
    """Otherwise, by how much at most the fastest is slower than the best layout, relative to that:
    at 0 it is proven, and what is open is the rest of the answer, such as the best on the other
    side of pp = 1."""


class FewerChipsAnswer(Document):
    """Why the answer uses fewer chips than there are: no legal layout uses all, or a step takes
    less on fewer. `constraints.use_all_chips` asks for all."""

    rule: str | None
    """The rule that every layout on all chips breaks; null where layouts on all chips are legal and
    only slower."""
    message: str
    num_chips: int
    """The number of chips that the answer uses: of the numbers that were tried, the one with the
    shortest step. Where no layout uses all chips, up to twelve numbers are tried that can be
    divided in more ways than all larger ones (six for at most 512 devices where there are so many,
    any for at most 64). Where some layout uses all, a few numbers from half as many on are tried:
    those that can be divided in more ways, whole domains, and powers of two of domains that experts
    divide badly."""
    all_chips_s: float | None
    """The step time on all chips; null where no layout uses all."""


class RooflineAnswer(Document):
    """Without a pipeline, data-parallel traffic can hide where tokens * flops_per_token / flops_s
    >= bytes / bytes_s; all of a step and a device, for the best layout without a pipeline. Of data
    parallelism only: what tensor, context and expert parallelism exchange is in that layout's
    `time`."""

    tokens: float
    flops_per_token: float
    flops_s: float
    """At which its kernels compute, as predicted."""
    bytes: float
    """The bytes of the parameters gathered and the gradients reduced."""
    bytes_s: float
    tokens_needed: float
    """The tokens of a step, over all micro-batches, that would make both sides equal while `bytes`
    stay as they are."""


class ThresholdAnswer(Document):
    """The threshold is the value at which the gap crosses the tolerance.

    Values are GB/s per chip, GB/s per link of a torus, or chips in a domain. A larger domain may
    change the answer either way: 144 chips divide otherwise than 72.
    """

    axis: str
    is_above: bool
    """With things as they are, the gap is above the tolerance."""
    value: float
    holds_at: float
    """The last value tried before that changes; as things are, where nothing changes it."""
    changes_at: float | None
    """The first at which it has; null where no doubling changes it, up to 16 times as much and as
    little."""
    exact: bool
    """False where time ran out: then a null says nothing, and another value may lie farther off
    than need be."""


class LiftAnswer(Document):
    field: Literal["cluster.num_chips", "workload.global_batch"]
    value: int


class PipeliningAnswer(Document):
    """Is pipelining needed here? The best layouts without it and with it, as positions in
    `layouts`."""

    without: Position | None
    with_pp: Position | None
    gap: float | None
    """The share by which a step takes longer without pipelining than with it."""
    gap_low: float | None
    """With `gap_high` a central 80% interval. About half of what is uncertain is the same for both
    layouts and cancels, so that the gap is known as well as one step time is."""
    gap_high: float | None
    needed: Need
    """"yes": the gap is above the tolerance with its whole interval, or there is no layout without
    a pipeline; "no": it is within the tolerance with its whole interval, or there is no layout with
    one. "undecided": the tolerance lies in the interval, or only the divisibility of chips and
    batch asks for a pipeline (`lifted_by`). "unknown": the search was stopped, or there is no
    layout on one side and the constraints may be why. Frontiers mean the same."""
    needed_probability: float | None
    """The probability that the gap is above the tolerance; null where `needed` is "unknown"."""
    lifted_by: list[LiftAnswer] = []
    """The nearest number of chips and the nearest global batch, within an eighth, with which no
    pipeline is needed. Empty unless only divisibility asks for one."""
    split: dict[str, float]
    """Seconds of the gap by term of `time`."""
    verdict: str
    forbidden: list[str] = []
    """Schedules of the stack that the recipe rules out with more than one micro-batch; the verdict
    says why."""
    roofline: RooflineAnswer | None
    thresholds: list[ThresholdAnswer] | None = None
    """The thresholds, where the request includes them. Empty where `needed` is "unknown", or time
    ran out first."""

    @classmethod
    def of(
        cls,
        pipelining: Pipelining,
        positions: Mapping[Layout, int],
        thresholds: list[Threshold] | None,
    ) -> Self:
        """Returns whether pipelining is needed. `positions` has the position of each layout in the
        answer. `thresholds` is None where the request does not include them."""
        without, with_pp = pipelining.without, pipelining.with_pp
        return cls.from_attributes(
            pipelining,
            without=without and positions[without.prediction.layout],
            with_pp=with_pp and positions[with_pp.prediction.layout],
            thresholds=thresholds,
        )


class RecommendationAnswer(Basis):
    """Every layout is written once, in `layouts`; all else names layouts by their position there.
    Answers of before there were positions are served as they were stored."""

    layouts: Annotated[list[CandidateAnswer], Field(min_length=1)]
    """The layout to launch first, then the others by step time. All fit with the probability
    `constraints.min_fit_probability`, 0.9 unless the request says otherwise, except the `bolder`
    one."""
    recommended: Position
    """The layout to launch: the simplest within the tolerance of the fastest. Where it is undecided
    whether a pipeline pays, it is the fastest without one if that costs at most twice the
    tolerance. It is the first of `layouts`."""
    fastest: Position
    simplest: Position
    """The simplest layout within the tolerance of the fastest."""
    simplest_gap: float
    """The cost of simplicity: the share by which a step of `simplest` takes longer than one of
    `fastest`."""
    bolder: BolderAnswer | None = None
    """The fastest layout that fits by the median, that is with even chances: it is faster and less
    sure to fit. Null where it is not faster than `fastest` by 1%, or where time ran out before that
    was known, which `reasons` say."""
    ranked: list[Position]
    """Fastest first."""
    front: list[Position]
    """Layouts within the tolerance that none beats in time, complexity and free memory (in steps of
    5%) at once, fastest first. Exact in time and complexity; in free memory, of the layouts that
    were evaluated."""
    reasons: list[str]
    reason_facts: list[ReasonFacts] = []
    """The kind and the figures of each of `reasons`, in their order, for programs. Empty in answers
    that an earlier release stored."""
    chips_used: int
    """The number of chips that all `layouts` use: as many as are fastest, unless
    `constraints.use_all_chips` asks for all."""
    fewer_chips: FewerChipsAnswer | None
    """Null where all chips are used: none of the smaller numbers that were tried is faster
    (`alternatives.num_chips` asks for others), or time ran out before that was known, which
    `reasons` say."""
    pipelining: PipeliningAnswer
    launch: LaunchAnswer | LaunchUnsaid | None = None
    """The launch configuration of the recommended layout in the words of its framework, or the
    reason why the framework has none for it; null for stacks without a launch format."""
    allocation: AllocationAnswer | None
    """The ranks that run on each of the nodes of the request."""
    choices: list[ChoiceAnswer]
    """Every place to run, those that keep the limits first, the best foremost; the answer is for
    the first. Empty where the request has neither alternatives nor an objective."""
    out_of_memory: list[OutOfMemoryRun]
    """Layouts of the same model that were reported out of memory on this chip and stack, but for
    those that a later run disproves. What needs as much is left out of the answer, unless nothing
    else fits; then the first of `reasons` says so."""
    evidence: list[EvidenceShown]
    """The nearest published runs, one of a model, chip and source, beside what is predicted of
    them. They inform the reader, not the prediction."""
    certificate: CertificateAnswer
