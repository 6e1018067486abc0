"""The plugin service of dstack (`rest_plugin`): specifications of runs, which go back as they came.

dstack refuses a run when its plugin service does not answer within 8 s, and its answer has no place
for a warning: a run prints it itself where the administrator allows the change (`patch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.hooks.checking import check_job, check_request, launch_of_object
from shardwright.hooks.finding import Finding
from shardwright.hooks.policy import HookPolicy

MORE = "shardwright check"
_SAYS = 'echo "$SHARDWRIGHT_CHECK" >&2'


def run_answer(request: Mapping[str, Any], policy: HookPolicy) -> tuple[dict[str, Any], Finding]:
    """Returns the answer to dstack, and what the check found. The answer has the specification of
    the run, and an error if the run is refused. Raises KeyError where the request has no
    specification."""
    spec = request["spec"]
    configuration = spec.get("configuration") or {}
    if configuration.get("type") != "task" or not configuration.get("commands"):
        return {"spec": spec, "error": None}, Finding()
    finding = check_job(policy, check_request(launch_of_object(_task(configuration))))
    if finding.is_refused:
        return {"spec": spec, "error": finding.line(MORE)}, finding
    if policy.patch and finding.verdict is not None:
        spec = {**spec, "configuration": _with_message(configuration, finding, policy)}
    return {"spec": spec, "error": None}, finding


def _task(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the run in the form of a SkyPilot task, which the service reads: commands, nodes and
    GPUs."""
    resources = configuration.get("resources") or {}
    accelerators = _accelerators(resources.get("gpu") or {})
    return {
        "num_nodes": configuration.get("nodes") or 1,
        "resources": {"accelerators": accelerators} if accelerators else {},
        "envs": _variables(configuration.get("env")),
        "run": "\n".join(map(str, configuration["commands"])),
    }


def _accelerators(gpu: Any) -> str | None:
    """Returns the GPUs of a node, such as "H100:8"; None where any kind would do. Of several names
    the first is taken, and of a range the lower end."""
    if not isinstance(gpu, Mapping) or not gpu.get("name"):
        return None
    names = gpu["name"]
    name = names if isinstance(names, str) else names[0]
    count = gpu.get("count") or 1
    fewest = (count.get("min") or 1) if isinstance(count, Mapping) else count
    return f"{name}:{fewest}"


def _variables(env: Any) -> dict[str, str]:
    """Returns the environment variables that have values. dstack asks its user for the value of one
    that is only named."""
    if isinstance(env, Mapping):
        return {name: str(value) for name, value in env.items() if isinstance(value, str | int)}
    pairs = (str(assignment).partition("=") for assignment in env or ())
    return {name: value for name, is_joined, value in pairs if is_joined}


def _with_message(
    configuration: Mapping[str, Any], finding: Finding, policy: HookPolicy
) -> dict[str, Any]:
    """Returns the configuration with a first command that prints what the check found."""
    variables = {**finding.variables(policy.service.url), "SHARDWRIGHT_CHECK": finding.line(MORE)}
    env = configuration.get("env") or {}
    if isinstance(env, Mapping):
        joined: Any = {**variables, **env}
    else:
        joined = [*(f"{name}={value}" for name, value in variables.items()), *env]
    return {**configuration, "env": joined, "commands": [_SAYS, *configuration["commands"]]}
