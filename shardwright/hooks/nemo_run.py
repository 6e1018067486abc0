"""A plugin of NeMo-Run that checks each task of an experiment:

    experiment.add(script, executor=executor, plugins=[ShardwrightPlugin()])

It reads tasks that are scripts (`run.Script`). Recipes (`run.Partial`) are objects of Python, which
the service does not read: they pass.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from nemo_run import Partial, Script
from nemo_run.core.execution.base import Executor
from nemo_run.run.plugin import ExperimentPlugin

from shardwright.cli.job_files import files_beside
from shardwright.hooks.checking import check_job, check_request
from shardwright.hooks.finding import Finding
from shardwright.hooks.policy import HookPolicy
from shardwright.secrets import mask_items, mask_secrets


class Refused(Exception):
    """A task that the administrator has refused."""


@dataclass(kw_only=True)
class ShardwrightPlugin(ExperimentPlugin):  # type: ignore[misc]  # NeMo-Run is not here to be typed
    """Says in a line what a check of a task finds."""

    chip: str | None = None
    """The chip of the executor, such as h100; without it, that of its partition."""

    def setup(self, task: Partial | Script, executor: Executor) -> None:
        """Checks a task that is a script, and prints what was found. If the policy allows the
        change, the task's variables name the check. Raises Refused only where the administrator has
        such tasks refused."""
        if not isinstance(task, Script):
            return
        try:
            policy = HookPolicy.read()
            finding = self._check_task(task, executor, policy)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"shardwright: not checked, goes on unchanged: {error}\n")
            return
        line = finding.line("shardwright check")
        if line:
            sys.stderr.write(f"{line}\n")
        if finding.is_refused:
            raise Refused(line)
        if policy.patch and finding.verdict is not None:
            variables = finding.variables(policy.service.url)
            executor.env_vars = {**variables, **executor.env_vars}

    def _check_task(self, task: Script, executor: Executor, policy: HookPolicy) -> Finding:
        """Returns what the check of a task finds. The chip is the one that the policy has for the
        executor's partition, or else the plugin's own."""
        text = task.inline or _command(task)
        partition = getattr(executor, "partition", None)
        launch = {
            "arguments": mask_secrets(text),
            "files": files_beside(text, Path.cwd()),
            "environment": {
                name: mask_secrets(value)
                for name, value in {**executor.env_vars, **task.env}.items()
            },
        }
        nodes = getattr(executor, "nodes", None) or 1
        gpus = getattr(executor, "gpus_per_node", None)
        chip = policy.chip_of([partition]) or self.chip
        num_chips = nodes * gpus if gpus else None
        return check_job(policy, check_request(launch, chip=chip, num_chips=num_chips))


def _command(task: Script) -> str:
    """Returns the command of a task, or the text of its script where that is a shell script."""
    if task.entrypoint in ("bash", "sh") and Path(task.path).is_file():
        return Path(task.path).read_text(encoding="utf-8", errors="replace")
    module = ["-m"] if task.m else []
    words = [*module, task.path, *map(str, mask_items(task.args))]
    return f"{task.entrypoint} {shlex.join(words)}"
