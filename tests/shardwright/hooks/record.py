"""Records the terminal sessions that the pages about hooks show, on the real schedulers.

`python -m tests.shardwright.hooks.record` rewrites them; `make test-hooks` makes what it needs.
`make docs` keeps what the hooks say in them as it is now, and needs none of that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.docs.pages import section
from tests.paths import ROOT
from tests.shardwright.hooks.environments import ask
from tests.shardwright.hooks.jobs import ILLEGAL, MEGATRON, dstack_run, skypilot_task
from tests.shardwright.hooks.policy_process import policy_process
from tests.shardwright.hooks.services import ServiceProcess, compiling, running
from tests.shardwright.hooks.slurm.cluster import SlurmCluster, cluster

_PAGES = ROOT / "docs" / "guides" / "hooks"
_NOBODY = "http://127.0.0.1:9"  # the port of a service that is stopped


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running(folder) as service:
            sessions = {
                **_of_slurm(folder / "slurm", service),
                **_of_launchers(folder, service),
            }
    for page in _PAGES.glob("*.md"):
        text = page.read_text()
        for session, lines in sessions.items():
            block = "```text\n" + "\n".join(lines) + "\n```\n"
            found = section(f"session {session}")
            text = found.sub(lambda _, block=block: block, text)
        page.write_text(text)


def _of_slurm(folder: Path, service: ServiceProcess) -> Mapping[str, list[str]]:
    folder.mkdir()
    with cluster(folder) as slurm:
        slurm.configure(service.url, budget_s=2)
        up = [f"$ cat {'job.sh'}", *MEGATRON.splitlines(), *_submitted(slurm)]
        down = ["# the service is stopped"]
        slurm.configure(_NOBODY, budget_s=2)
        down += [line.replace(_NOBODY, "http://shardwright:8000") for line in _submitted(slurm)]
        down += ["", "# the service is frozen (kill -STOP)"]
        slurm.configure(service.url, budget_s=2)
        with service.frozen():
            down += _submitted(slurm)
        down += ["", "# the service compiles its cost model, as at its first start"]
        with compiling(folder) as fresh:
            slurm.configure(fresh.url, budget_s=2)
            down += _submitted(slurm)
    return {"slurm": up, "slurm without a service": down}


def _submitted(slurm: SlurmCluster) -> Iterator[str]:
    """The lines of a terminal in which the job is submitted."""
    start = time.monotonic()
    submitted = slurm.submit(MEGATRON)
    took_s = time.monotonic() - start
    job_id = submitted.stdout.split()[-1]
    yield "$ time sbatch job.sh"
    yield from submitted.stderr.replace(f"{slurm.folder}/", "").splitlines()
    yield from submitted.stdout.splitlines()
    yield f"real {took_s:.2f}s"
    yield f"$ squeue -h -j {job_id} -O State,Comment:70"
    shown = slurm.run("squeue", "-h", "-j", job_id, "-O", "State,Comment:70").stdout
    yield from (line.rstrip() for line in shown.splitlines())
    slurm.run("scancel", job_id)


def _of_launchers(folder: Path, service: ServiceProcess) -> Mapping[str, list[str]]:
    """Returns what the clients of SkyPilot and dstack go on with, after their policies."""
    policy = f'url = "{service.url}"\npatch = true\nenforce = ["illegal"]\n'
    with policy_process(folder, policy) as url:

        def sky(script: str) -> Any:
            return ask("skypilot", f"{url}/skypilot", given=skypilot_task(script))

        def dstack(script: str) -> Any:
            given = dstack_run(script)
            return ask("dstack", given=given, DSTACK_PLUGIN_SERVICE_URI=f"{url}/dstack")

        task = sky(MEGATRON)["after"]
        run = dstack(MEGATRON)["after"]["configuration"]
        return {
            "skypilot": [
                "# the task that goes on: its variables, and the first lines that it runs",
                *_variables(task["envs"]),
                *task["run"].splitlines()[:2],
                "",
                '# an illegal one, with enforce = ["illegal"]',
                _plain(sky(ILLEGAL)["refusal"]).replace(url, "http://127.0.0.1:8010"),
            ],
            "dstack": [
                "# the run that goes on: its variables, and its first command",
                *_variables(run["env"]),
                run["commands"][0],
                "",
                '# an illegal one, with enforce = ["illegal"]',
                dstack(ILLEGAL)["refusal"],
            ],
        }


def _variables(variables: Mapping[str, str]) -> list[str]:
    return [
        f"{name}={value}"
        for name, value in sorted(variables.items())
        if name in ("SHARDWRIGHT_CHECK", "SHARDWRIGHT_ID")
    ]


def _plain(text: str) -> str:
    """A text without the colours of a terminal."""
    return text.replace("\x1b[31m", "").replace("\x1b[39m", "")


if __name__ == "__main__":
    main()
