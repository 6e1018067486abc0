"""The part of every answer beside its numbers: the request as it was understood, the profile, the
catalogue entries, conventions and assumptions.

The *grounds* are all of that; the *basis* is the grounds with the answer's id and time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Profile
from service.identifiers import new_id
from service.resolve.assumptions import assumptions
from service.resolve.learned_reports import learned
from service.resolve.resolution import ResolvedQuestion
from service.resolve.switches import switches_answer
from service.schemas.prediction import Conventions, MfuPeak, ProfileUsed
from service.schemas.question import PinnedQuestion, Question

_MFU = {
    "causal": "attention FLOPs over the keys a causal query sees on average; recompute not counted",
    "full": "attention FLOPs over the whole sequence or window; recompute not counted",
}


def basis(
    question: Question, resolved: ResolvedQuestion, profile: Profile, layout: Layout | None = None
) -> dict[str, Any]:
    """Returns the members of service.schemas.prediction.Basis: the grounds, and a new id with the
    time."""
    return {
        "id": new_id(),
        "created_at": datetime.now(UTC),
        **grounds(question, resolved, profile, layout),
    }


def grounds(
    question: Question, resolved: ResolvedQuestion, profile: Profile, layout: Layout | None = None
) -> dict[str, Any]:
    """Returns the members of service.schemas.prediction.Grounds. With a layout, they also say which
    switches of the stack matter to it, and which reports moved its step time."""
    problem = resolved.problem
    return {
        "request": {**resolved.request, **_requested_profile(question)},
        "profile": ProfileUsed(id=profile.id, version=profile.version),
        "catalogue": resolved.used,
        "conventions": conventions(problem),
        "assumptions": assumptions(question, resolved, profile),
        "switches": []
        if layout is None
        else switches_answer(problem, profile, layout, resolved.request["stack"]),
        "learned": None if layout is None else learned(problem, layout, profile),
    }


def _requested_profile(question: Question) -> dict[str, Any]:
    """Returns the version of the profile that the question pins, as its request writes it; empty
    where it pins none."""
    requested = question.profile if isinstance(question, PinnedQuestion) else None
    return {} if requested is None else {"profile": requested.model_dump()}


def conventions(problem: Problem) -> Conventions:
    """Returns the conventions of MFU, intervals and units. The peak that MFU divides by is the
    chip's for the number format of matrix products."""
    chip = problem.cluster.chip
    gemm = problem.workload.number_format.gemm
    return Conventions(
        mfu=_MFU,
        mfu_peak=MfuPeak(
            dtype=chip.matmul_dtype(gemm), tflops_per_chip=chip.peak_flops(gemm) / 1e12
        ),
        interval="central 80%",
        units="GiB = 2^30 bytes; GB = 1e9 bytes; bandwidths one way; times in seconds",
    )
