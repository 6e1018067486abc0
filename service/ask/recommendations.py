"""Find the layouts to launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from models.advice.allocation import Allocation, allocate
from models.advice.cluster_choice import Choice, Objective, choose, none_fits, settled, told
from models.advice.fewer_chips import with_chips
from models.advice.fewest_chips import Fewest, fewest_chips
from models.advice.recommendation import Recommendation, recommend
from models.advice.thresholds import thresholds
from models.errors import Infeasible
from models.search.result import ShouldContinue
from models.spec.constraints import Constraints
from models.spec.layout import Layouts
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.ask.answer_pages import answer_page, brief
from service.ask.evidence import Evidence
from service.ask.oom_history import least_that_failed, left_out, out_of_memory, warnings
from service.resolve.answer_basis import basis
from service.resolve.assumptions import of_the_chunks, of_the_leaves
from service.resolve.candidate_clusters import OWN, CandidateClusters, add_number, places_of
from service.resolve.profiles import wanted_profile
from service.resolve.resolution import Resolver
from service.runtime.deadline import Deadline, nobody
from service.runtime.idempotency import Created, Save
from service.schemas.allocation import AllocationAnswer
from service.schemas.catalog import CatalogQuery
from service.schemas.objective import ChoiceAnswer, ObjectiveFields, OtherCluster, OtherPreset
from service.schemas.prediction import PredictedLayout
from service.schemas.recommendation import (
    CandidateAnswer,
    CertificateAnswer,
    FasterOnFewerAnswer,
    FewerChipsAnswer,
    PipeliningAnswer,
    RecommendationAnswer,
    RecommendationRequest,
    ThresholdAnswer,
)
from service.store import Rows, Store
from service.store.tables import RecommendationRow

_THRESHOLDS_S = 3.0  # for all of them, unless the request gives a limit


class Recommendations:
    def __init__(self, store: Store, evidence: Evidence) -> None:
        self._store, self._evidence = store, evidence

    def recommend(
        self, request: RecommendationRequest, require_client: Callable[[], None] = nobody
    ) -> Save:
        with self._store.reading() as rows:
            places = places_of(Resolver(rows), request)
            profile = wanted_profile(rows, request.profile)
        constraints, should_continue = (
            request.constraints.build(),
            Deadline(request.time_limit_s, require_client),
        )
        choices, fewest = self._choose(
            places, request, profile, constraints, should_continue.most()
        )
        where, known = (choices[0].name, choices[0].layout) if choices else (OWN, None)
        resolved = places.resolved[where]
        problem, allocation, leaves = resolved.problem, None, list[str]()
        if choices and choices[0].all_chips_s is not None:
            problem = with_chips(problem, choices[0].chips_used or choices[0].num_chips)
        if request.allocation is not None:
            nodes = request.allocation.build()
            allocation = allocate(problem, profile, constraints, nodes, should_continue.most())
            leaves = of_the_leaves(allocation, nodes)
            problem = replace(problem, cluster=allocation.cluster)
        failed = out_of_memory(self._store, problem, profile)
        try:
            found = recommend(
                problem,
                profile,
                constraints,
                tolerance=request.tolerance,
                top=request.top,
                should_continue=should_continue,
                failed_gib=least_that_failed(failed),
                left_out_s=math.inf if allocation is None else allocation.left_out_s,
                known=Layouts.of([known])
                if known and known.num_devices == problem.cluster.num_devices
                else None,
            )
        except Infeasible as error:
            nowhere = len(choices) > 1 and all(choice.refused for choice in choices)
            raise (none_fits(choices, error) if nowhere else error) from None
        if choices:
            choices[0] = settled(choices[0], resolved.problem, _objective(request), found)
        members = _found(found)
        if "thresholds" in request.include:
            soon = (
                should_continue
                if "time_limit_s" in request.model_fields_set
                else should_continue.within(_THRESHOLDS_S)
            )
            asked = (profile, constraints, request.tolerance, soon, least_that_failed(failed))
            members["pipelining"].thresholds = _thresholds(found, *asked)
        answer = RecommendationAnswer(
            **members,
            allocation=None if allocation is None else AllocationAnswer.of(allocation),
            choices=[ChoiceAnswer.of(choice, places.written[choice.name]) for choice in choices],
            evidence=self._evidence.beside(found.problem, found.fastest.prediction.layout, profile),
            out_of_memory=failed,
            **basis(places.asked[where], resolved.answered(found.problem), profile),
        )
        answer.request.update(_asked(request, places))
        answer.assumptions.extend([*_lossless(request.objective), *_to_check(_advised(answer))])
        if allocation is not None:
            used = {
                "num_chips": problem.cluster.num_chips,
                "chips_per_domain": allocation.chips_per_group,
            }
            answer.request["cluster"].update(used)
            answer.reasons.extend(_spare(allocation, request.cluster.num_chips))
            answer.assumptions.extend(leaves)
        heeded = left_out(found.fastest.prediction.needed_gib, failed)
        where_to = _of_places(choices, _objective(request), fewest)
        answer.reasons[:0] = [*warnings(_advised(answer), failed), *heeded, *where_to]
        return lambda rows: _save(rows, answer)

    def _choose(
        self,
        places: CandidateClusters,
        request: RecommendationRequest,
        profile: Profile,
        constraints: Constraints,
        should_continue: ShouldContinue,
    ) -> tuple[list[Choice], list[str]]:
        """Where the request asks for it, its places, the best first; and how the fewest chips were
        found, in words."""
        if not {"alternatives", "objective"} & request.model_fields_set:
            return [], []
        objective, fewest = _objective(request), list[str]()

        def failed_gib(problem: Problem) -> float:
            return least_that_failed(out_of_memory(self._store, problem, profile))

        def more() -> dict[str, Problem]:
            if (most := request.alternatives.up_to_chips) is None:
                return {}
            own = places.resolved[OWN].problem
            found = fewest_chips(
                own, profile, constraints, objective, most, should_continue, failed_gib(own)
            )
            fewest.append(found.told)
            return self._added(places, found)

        problems = {name: resolved.problem for name, resolved in places.resolved.items()}
        choices = choose(
            problems, profile, constraints, objective, should_continue, failed_gib, more
        )
        return [*choices, *places.refused], fewest

    def _added(self, places: CandidateClusters, fewest: Fewest) -> dict[str, Problem]:
        """Them as one of the places, unless they are already."""
        own, name = places.resolved[OWN].problem, "alternatives.up_to_chips"
        if fewest.num_chips is None:
            return {}
        sized = replace(own, cluster=replace(own.cluster.sized(fewest.num_chips), torus_shape=None))
        if any(place.problem == sized for place in places.resolved.values()):
            return {}
        with self._store.reading() as rows:
            add_number(places, Resolver(rows), name, fewest.num_chips)
        return {name: places.resolved[name].problem}

    def get(self, id_: str) -> dict[str, Any]:
        with self._store.reading() as rows:
            return rows.answers.recommendation(id_).document

    def page(self, query: CatalogQuery) -> dict[str, Any]:
        return answer_page(self._store, RecommendationRow, query)


def _thresholds(
    found: Recommendation,
    profile: Profile,
    constraints: Constraints,
    tolerance: float,
    should_continue: ShouldContinue,
    failed_gib: float,
) -> list[ThresholdAnswer]:
    """None of what is not known."""
    if found.pipelining.needed is None:
        return []
    some = thresholds(found.problem, profile, constraints, tolerance, should_continue, failed_gib)
    return [ThresholdAnswer.of(one) for one in some]


def _objective(request: RecommendationRequest) -> Objective:
    return request.objective.build(request.workload.token_budget)


def _spare(allocation: Allocation, most: int | None) -> list[str]:
    """Why chips that are held are left over; `most`: how many the request lets be used."""
    used, spare = allocation.cluster.num_chips, sum(allocation.spares.values())
    if not spare:
        return []
    why = "the fastest way found uses the rest"
    if most is not None and most < used + spare:
        why = f"cluster.num_chips lets at most {most} be used"
        why += f", and the fastest way found uses {used}" if used < most else ""
    return [f"{spare} of the {used + spare} chips that are held are spare: {why}"]


def _of_places(choices: Sequence[Choice], objective: Objective, fewest: Sequence[str]) -> list[str]:
    """Why the first place is the one, how the fewest chips were found, and what is left out
    there."""
    if not choices:
        return []
    best, lines = choices[0], [told(choices, objective), *fewest]
    if best.all_chips_s is not None:
        spared = (
            f"{best.num_chips - (best.chips_used or 0)} of the {best.num_chips} chips are left out"
        )
        lines.append(f"{spared}: with all of them a step takes {best.all_chips_s:.4g} s")
    return lines


def _lossless(objective: ObjectiveFields) -> list[str]:
    """What failures are taken to cost nothing of."""
    if not objective.failures_per_chip_hour:
        counts = objective.tokens is not None or objective.deadline_hours is not None
        return (
            ["objective.failures_per_chip_hour is 0: hours and costs count no failures"]
            if counts
            else []
        )
    costs = {"checkpoint_s": "checkpoints stop no training", "restart_s": "a restart takes no time"}
    open_ = {name: free for name, free in costs.items() if name not in objective.model_fields_set}
    return [
        f"objective.{name} is 0: {free}, so goodput is too high" for name, free in open_.items()
    ]


def _to_check(advised: dict[str, PredictedLayout]) -> list[str]:
    """What a launch needs beyond its degrees, and what looks like a slip of the request."""
    lines = [line for name, found in advised.items() for line in of_the_chunks(name, found)]
    beyond = [
        line
        for line in advised["the fastest"].provenance.outside
        if line.startswith("tokens_per_step")
    ]
    if any(" is beyond " in line and line.endswith(" any run") for line in beyond):
        lines.append(f"{beyond[0]}: check that workload.global_batch counts sequences, not tokens")
    return lines


def _advised(answer: RecommendationAnswer) -> dict[str, PredictedLayout]:
    fastest, simplest = answer.fastest.prediction, answer.simplest.prediction
    alike = simplest.layout == fastest.layout
    return {"the fastest": fastest} if alike else {"the fastest": fastest, "the simplest": simplest}


def _asked(request: RecommendationRequest, places: CandidateClusters) -> dict[str, Any]:
    """What of the request is no part of the question, and its own cluster and stack, whichever are
    the best."""
    given = dict(places.written[OWN])
    given |= {
        name: getattr(request, name) for name in ("tolerance", "top", "include", "time_limit_s")
    }
    given["constraints"] = request.constraints.model_dump(mode="json", exclude_none=True)
    if request.allocation is not None:
        given["allocation"] = request.allocation.model_dump(mode="json", exclude_none=True)
    several = len(places.asked) > 1
    if several:
        others = [
            _other(places, i, cluster) for i, cluster in enumerate(request.alternatives.clusters)
        ]
        given["alternatives"] = {"clusters": others, "num_chips": request.alternatives.num_chips}
        if request.alternatives.up_to_chips is not None:
            given["alternatives"]["up_to_chips"] = request.alternatives.up_to_chips
    if several or "objective" in request.model_fields_set:
        given["objective"] = request.objective.model_dump(mode="json", exclude_none=True)
    return given


def _other(places: CandidateClusters, i: int, given: OtherPreset | OtherCluster) -> dict[str, Any]:
    """An alternative as it is written, with its stack where it names one."""
    written = places.written[f"alternatives.clusters[{i}]"]
    return {**written["cluster"], **({} if given.stack is None else {"stack": written["stack"]})}


def _found(found: Recommendation) -> dict[str, Any]:
    usd_per_hour = found.problem.cluster.usd_per_hour
    return {
        "fastest": CandidateAnswer.of(found.fastest, usd_per_hour),
        "simplest": CandidateAnswer.of(found.simplest, usd_per_hour),
        "simplest_gap": found.simplest_gap,
        "surer": CandidateAnswer.of(found.surer, usd_per_hour) if found.surer else None,
        "ranked": [CandidateAnswer.of(candidate, usd_per_hour) for candidate in found.ranked],
        "front": [CandidateAnswer.of(candidate, usd_per_hour) for candidate in found.front],
        "reasons": list(found.reasons),
        "chips_used": found.chips_used,
        "fewer_chips": FewerChipsAnswer.of(found.fewer_chips) if found.fewer_chips else None,
        "faster_on_fewer": FasterOnFewerAnswer.of(found.faster_on_fewer)
        if found.faster_on_fewer
        else None,
        "pipelining": PipeliningAnswer.of(found.pipelining, usd_per_hour),
        "certificate": CertificateAnswer.of(found.certificate),
    }


def _save(rows: Rows, answer: RecommendationAnswer) -> Created:
    document = answer.model_dump(mode="json")
    row = RecommendationRow(
        id=answer.id,
        created_at=answer.created_at,
        profile_id=answer.profile.id,
        profile_version=answer.profile.version,
        brief=brief(document),
        document=document,
    )
    rows.answers.add(row)
    return Created(f"/v1/recommendations/{answer.id}", document)
