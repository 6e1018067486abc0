"""What every answer says beside its numbers: profile, catalogue entries, conventions and assumptions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from models.problem import Problem
from models.profile import Profile
from service.identifiers import new_id
from service.resolution import Resolved
from service.schemas.prediction import Conventions, MfuPeak, ProfileUsed
from service.schemas.question import Question
from service.schemas.workload import WorkloadFields

_MFU = {
    "causal": "attention FLOPs over the keys a causal query sees on average; recompute not counted",
    "full": "attention FLOPs over the whole sequence or window; recompute not counted",
}


def basis(question: Question, resolved: Resolved, profile: Profile) -> dict[str, Any]:
    """The members of service.schemas.prediction.Basis."""
    return {
        "id": new_id(),
        "created_at": datetime.now(UTC),
        "request": resolved.request,
        "profile": ProfileUsed(id=profile.id, version=profile.version),
        "catalogue": resolved.used,
        "conventions": conventions(resolved.problem),
        "assumptions": assumptions(question, resolved.problem),
    }


def conventions(problem: Problem) -> Conventions:
    dtype = problem.workload.number_format.gemm
    return Conventions(
        mfu=_MFU,
        mfu_peak=MfuPeak(dtype=dtype, tflops_per_chip=problem.cluster.chip.peak_flops(dtype) / 1e12),
        interval="central 80%",
        units="GiB = 2^30 bytes; GB = 1e9 bytes; bandwidths one way; times in seconds",
    )


def assumptions(question: Question, problem: Problem) -> list[str]:
    return [*_defaults(question.workload), *_of_the_cluster(question, problem), _kernel(problem)]


def _defaults(workload: WorkloadFields) -> list[str]:
    open_ = [name for name in WorkloadFields.model_fields if name not in workload.model_fields_set]
    return [f"workload.{name} is {getattr(workload, name)}" for name in open_ if name != "token_budget"]


def _of_the_cluster(question: Question, problem: Problem) -> list[str]:
    cluster = problem.cluster
    said = question.cluster.model_fields_set
    lines = []
    if cluster.slice_shape and "torus_shape" not in said:
        lines.append(f"cluster.torus_shape is {'x'.join(map(str, cluster.slice_shape))}, the most cubic slice")
    if not cluster.slice_shape and "chips_per_domain" not in said:
        chips = cluster.scale_up_domain // cluster.chip.devices_per_chip
        lines.append(f"cluster.chips_per_domain is {chips}, as even as the number of chips allows")
    lines += [f"{dim.name} joins {dim.domain} devices at {dim.gb_s:g} GB/s each" for dim in cluster.dims]
    return lines


def _kernel(problem: Problem) -> str:
    return f"attention runs on {problem.kernel}, what {problem.stack.id} picks on {problem.cluster.chip.generation}"
