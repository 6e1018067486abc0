"""The admin policy of SkyPilot: a JSON string within JSON, as its RestfulAdminPolicy sends it.

SkyPilot refuses a launch when its policy server does not answer, and knows two answers: the task,
or status 400 with the reason of a refusal. A warning has no place in either, so that a task prints
it itself where the administrator allows the change (`patch`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import yaml

from shardwright.hooks.checking import check_job, check_request
from shardwright.hooks.finding import Finding
from shardwright.hooks.policy import HookPolicy
from shardwright.secrets import mask_secrets

MORE = "shardwright check task.yaml"
_SAYS = 'echo "$SHARDWRIGHT_CHECK" >&2'


def policy_answer(body: str, policy: HookPolicy) -> tuple[str, Finding]:
    """Returns the answer to SkyPilot, and what the check found. The task in the answer prints what
    was found, if the policy allows the change. Raises ValueError or KeyError where the body is not
    a request of SkyPilot."""
    request = json.loads(body)
    launch = {"arguments": mask_secrets(request["task"])}
    finding = check_job(policy, check_request(launch))
    task = request["task"]
    if policy.patch and finding.verdict is not None:
        task = _with_message(task, finding, policy)
    answer = {"task": task, "skypilot_config": request["skypilot_config"]}
    return json.dumps(answer), finding


def _with_message(task: str, finding: Finding, policy: HookPolicy) -> str:
    """Returns the task, in YAML, with a first command that prints what the check found."""
    document = yaml.safe_load(task)
    if not isinstance(document, Mapping) or "run" not in document:
        return task
    variables = {**finding.variables(policy.service.url), "SHARDWRIGHT_CHECK": finding.line(MORE)}
    changed = {
        **document,
        "envs": {**variables, **(document.get("envs") or {})},
        "run": f"{_SAYS}\n{document['run']}",
    }
    return str(yaml.safe_dump(changed, sort_keys=False))
