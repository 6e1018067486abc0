"""The check that every hook makes of a job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shardwright.client.errors import Problem
from shardwright.hooks.asking import post, within
from shardwright.hooks.finding import Finding
from shardwright.hooks.policy import HookPolicy
from shardwright.secrets import mask_secrets

_SEARCH_S = 0.05
"""The time to search for the best layout. What else a check does, and the start of a process, take
some 200 of the 300 ms that a hook has. Up to 2,048 chips the first change is the same after 2 s."""
_NO_TRAINING = "not-a-training-job"


def check_request(
    launch: Mapping[str, Any], *, chip: str | None = None, num_chips: int | None = None
) -> dict[str, Any]:
    """Returns the request that checks a launch. Without a chip, the service takes the chips that
    the launch itself asks its scheduler for."""
    request: dict[str, Any] = {"launch": launch}
    if chip is not None:
        request["cluster"] = {"preset": chip}
        if num_chips is not None:
            request["cluster"]["num_chips"] = num_chips
    return request


def launch_of_object(job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object that describes a job as a launch, with its secrets masked. Each member is a
    line of YAML, by which the service recognises such objects."""
    lines = (f"{name}: {json.dumps(value)}\n" for name, value in job.items())
    return {"arguments": mask_secrets("".join(lines))}


def check_job(policy: HookPolicy, request: Mapping[str, Any]) -> Finding:
    """Returns the result of the check of a job, within the time that the policy allows. Raises
    nothing: a check that fails is a finding too."""

    def ask() -> Any:
        """Returns the service's answer to the check."""
        body = {**request, "time_limit_s": _SEARCH_S, "store": True}
        return post(policy.service, "/v1/checks", body, timeout_s=policy.budget_s)

    try:
        return Finding.of(within(policy.budget_s, ask), policy.enforce)
    except Problem as problem:
        return Finding() if _is_not_training(problem) else _not_checked(problem.detail)
    except Exception as error:  # noqa: BLE001 - a job goes on whatever befalls its check
        return _not_checked(str(error) or type(error).__name__)


def _is_not_training(problem: Problem) -> bool:
    """Returns whether the service sees no training in the job. Most jobs of a cluster are of that
    kind, and a hook says nothing about them."""
    fields = {error.field for error in problem.errors}
    return problem.type == _NO_TRAINING or "launch.format" in fields


def _not_checked(reason: str) -> Finding:
    """Returns the finding of a job that could not be checked, which goes on unchanged."""
    return Finding(sentences=(f"not checked, goes on unchanged: {reason}",))
