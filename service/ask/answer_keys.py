"""The keys of answers: digests of all that decides what an answer says.

Two questions with the same key have the same answer. The key covers the question, whatever the
order of its fields and whether it writes defaults out; the versions of the profile, of the
catalogue entries that the question names, of the published runs and of the service; and the runs
that the asker reported out of memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import models
import service
from models.spec.profile import Profile
from service.ask.oom_history import RunKind, out_of_memory_runs_of_kind
from service.identifiers import digest
from service.resolve.profiles import requested_profile
from service.resolve.resolution import ResolvedQuestion
from service.schemas.check import CheckRequest, LaunchedCheckRequest
from service.schemas.launch_request import LaunchedPredictionRequest
from service.schemas.prediction import OutOfMemoryRun, PredictionRequest
from service.schemas.recommendation import RecommendationRequest
from service.store import Rows
from service.store.answers import AnswerKind

AnyRequest = (
    PredictionRequest
    | LaunchedPredictionRequest
    | RecommendationRequest
    | CheckRequest
    | LaunchedCheckRequest
)

_AS_GIVEN = {
    "model",
    "cluster",
    "workload",
    "stack",
    "layout",
    "layouts",
    "alternatives",
    "objective",
    "allocation",
}
"""Fields of which an answer lists what the request left open. A request that writes a default out
gets another list, and needs another key."""


def question_key(kind: AnswerKind, request: AnyRequest) -> str:
    """Returns a key that is equal for two questions that mean the same and are answered in the same
    words."""
    # A prediction is the same however long its caller waits; a search may end earlier.
    ignored = {"wait_s"} if kind == "predictions" else set[str]()
    # Fields of _AS_GIVEN count as they are written, because an answer lists what the request left
    # open in them. Other fields count with their defaults, written out or not.
    filled = request.model_dump(mode="json", exclude=_AS_GIVEN | ignored)
    as_given = request.model_dump(mode="json", include=_AS_GIVEN, exclude_unset=True)
    if isinstance(request, RecommendationRequest) and request.include:
        # Thresholds have a time limit of their own, unless the request names one.
        filled["limited"] = "time_limit_s" in request.model_fields_set
    return digest(kind, json.dumps({**filled, **as_given}, sort_keys=True))


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a question at one moment: the versions of the catalogue entries that its names
    stand for, and the models, chips and stacks whose reported runs its answer looks at."""

    catalogue_key: str
    """Equal where every name in the question means the same version of the same entry."""
    run_kinds: frozenset[RunKind]
    """The models, chips and stacks whose runs out of memory its answer looks at."""

    @classmethod
    def of(cls, resolved: Iterable[ResolvedQuestion], *others: Any) -> Meaning:
        """Returns what an answer to these questions rests on: the versions of the catalogue entries
        that they name, and the reported runs of their models, chips and stacks. `others` are parts
        of the answer's `request` that are in none of the questions."""
        questions = list(resolved)
        used = [(question.request, question.used.model_dump(mode="json")) for question in questions]
        return cls(
            catalogue_key=digest(json.dumps((used, others), sort_keys=True)),
            run_kinds=frozenset(RunKind.of(question.problem) for question in questions),
        )


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """The key of an answer, with what was read to make it."""

    digest: str
    profile: Profile
    out_of_memory: Mapping[RunKind, list[OutOfMemoryRun]]
    """The runs that the answer is cautious of (service.ask.oom_history), where there are any."""


def answer_key(
    rows: Rows, kind: AnswerKind, request: AnyRequest, resolve: Callable[[], Meaning]
) -> AnswerKey:
    """Returns the key that an answer to this request would have now. `resolve` returns what the
    names in the request mean; it is called only if that is not in memory."""
    question = question_key(kind, request)
    profile = requested_profile(rows, request.profile)
    meaning = rows.recall(("meaning", question), resolve)
    # The release of the published runs, because an answer shows the nearest of them.
    used = profile.id, str(profile.version), str(rows.versions.evidence)
    runs = {
        run_kind: out_of_memory_runs_of_kind(rows, run_kind, profile)
        for run_kind in sorted(meaning.run_kinds)
    }
    texts = [run.model_dump_json() for failed in runs.values() for run in failed]
    release = service.__version__, sources_key()
    key = digest(question, meaning.catalogue_key, *used, *release, *texts)
    return AnswerKey(key, profile, runs)


@cache
def sources_key() -> str:
    """Returns the digest of the service's sources and data, which may differ between checkouts of
    one version. It leaves out the published runs, whose release is in the key beside it."""
    packages = [Path(package.__path__[0]) for package in (models, service)]
    sources = sorted(
        file
        for package in packages
        for pattern in ("*.py", "*.json")
        for file in package.rglob(pattern)
    )
    return digest(*(file.read_text("utf-8") for file in sources))
