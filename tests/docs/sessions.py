"""The terminal sessions of the pages about hooks.

Those of Slurm, SkyPilot and dstack are recorded with the real schedulers, by
`python -m tests.shardwright.hooks.record`. What the hooks say in them is asked of the hooks anew,
so that it cannot fall behind the code. The session of Kubernetes needs no scheduler, and is written
from the beginning.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml

from shardwright.client.settings import ClientSettings
from shardwright.hooks import dstack, skypilot
from shardwright.hooks.kubernetes.review import reviewed
from shardwright.hooks.policy import HookPolicy
from tests.docs.pages import section
from tests.paths import ROOT
from tests.shardwright.hooks.jobs import ILLEGAL, MEGATRON, dstack_spec, skypilot_task
from tests.shardwright.hooks.kubernetes import objects
from tests.waiting import LONG_S

_SAID = re.compile(r"shardwright: (go, with warnings|will not start): .*; more: .*")
_CHIPS_OF_QUEUES = {"large": "b300"}


def has_sessions(text: str) -> bool:
    """Whether a page shows a session with a check."""
    names = (*_SAYING, "kubernetes")
    return any(section(f"session {name}").search(text) for name in names)


def with_sessions(text: str, address: str) -> str:
    """The page with what the hooks say now, where they ask the service at this address."""

    def said_now(says: Callable[[str, str], str], found: re.Match[str]) -> str:
        return says(address, MEGATRON if found[1] == "go, with warnings" else ILLEGAL)

    for name, says in _SAYING.items():
        session = section(f"session {name}").search(text)
        if session:
            now = _SAID.sub(partial(said_now, says), session[0])
            text = text[: session.start()] + now + text[session.end() :]
    session = section("session kubernetes").search(text)
    if session:
        text = text[: session.start()] + _of_kubernetes(address) + text[session.end() :]
    return text


def _said_to_slurm(address: str, script: str) -> str:
    """What the wrapper and the filter of sbatch print."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.sh").write_text(script)
        Path(folder, "hooks.toml").write_text(f'url = "{address}"\nbudget_s = {LONG_S}\n')
        ended = subprocess.run(
            [sys.executable, "-m", "shardwright.hooks.slurm", "sbatch", "job.sh"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SHARDWRIGHT_HOOKS": "hooks.toml"},
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=True,
        )
    return ended.stderr.rstrip("\n")


def _said_to_skypilot(address: str, script: str) -> str:
    """What a task prints, or the reason of a refusal."""
    body = json.dumps({"task": skypilot_task(script), "skypilot_config": ""})
    _, finding = skypilot.policy_answer(body, _policy(address))
    return finding.line(skypilot.MORE)


def _said_to_dstack(address: str, script: str) -> str:
    """What a run prints, or the reason of a refusal."""
    _, finding = dstack.run_answer({"spec": dstack_spec(script)}, _policy(address))
    return finding.line(dstack.MORE)


def _policy(address: str) -> HookPolicy:
    settings = ClientSettings(url=address)
    return HookPolicy(service=settings, budget_s=LONG_S, chips=_CHIPS_OF_QUEUES)


_SAYING: dict[str, Callable[[str, str], str]] = {
    "slurm": _said_to_slurm,
    "skypilot": _said_to_skypilot,
    "dstack": _said_to_dstack,
}
"""By session: the line of its hook for a script, where it asks the service at an address."""


def _of_kubernetes(address: str) -> str:
    """A review, the response, and the setting that says which chips the job has."""
    review = objects.review(objects.train_job())
    answer = reviewed(review, _policy(address))
    lines = [
        "$ cat /etc/shardwright/hooks.toml",
        'url = "http://shardwright.example:8000"',
        "[chips]",
        *(f'{name} = "{chip}"' for name, chip in _CHIPS_OF_QUEUES.items()),
        "$ cat review.json",
        *yaml.safe_dump(review, sort_keys=False, width=110).splitlines(),
        "$ curl -s https://shardwright-hooks.shardwright.svc/kubernetes -d @review.json",
        *json.dumps(answer, indent=2).splitlines(),
    ]
    return "```text\n" + "\n".join(lines) + "\n```\n"
