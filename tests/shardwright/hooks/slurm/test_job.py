from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwright.hooks.finding import Finding
from shardwright.hooks.policy import HookPolicy
from shardwright.hooks.slurm.job import BatchJob
from shardwright.hooks.slurm.outcomes import outcome_of
from shardwright.hooks.slurm.submission import answer_lines, filtered_job
from tests.paths import ROOT


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/bash\n#SBATCH -N 4 -p large # all of it\nsrun train\n")
    return str(path)


def _asked(job: BatchJob, policy: HookPolicy, text: str = "srun train", **variables: str) -> Any:
    return job.check_request(text, Path("/"), policy, variables)


@pytest.mark.parametrize(
    "words",
    [
        ["-N", "8", "--gpus-per-node=h100:8", "{script}", "-x", "1"],
        ["-N8", "--gpus-per-node", "h100:8", "--parsable", "{script}", "-x", "1"],
        ["--nodes", "8", "--gres=gpu:h100:8", "-Q", "--exclusive", "--", "{script}", "-x", "1"],
    ],
)
def test_the_command_line_is_read_as_sbatch_reads_it(
    script: str, policy: HookPolicy, words: list[str]
) -> None:
    job = BatchJob.of_command([word.replace("{script}", script) for word in words])
    assert job.argv == [script, "-x", "1"]
    assert _asked(job, policy)["cluster"] == {"preset": "h100", "num_chips": 64}


def test_options_of_the_script_count_where_the_command_line_has_none(
    script: str, policy: HookPolicy
) -> None:
    policy = replace(policy, chips={"large": "h200"})
    job = BatchJob.of_command(["--gpus-per-node=8", script])
    assert _asked(job, policy)["cluster"] == {"preset": "h200", "num_chips": 32}


def test_the_filter_gives_what_the_wrapper_reads(script: str) -> None:
    options = {"nodes": "4", "partition": "large", "argv": [script]}
    assert filtered_job(json.dumps(options)) == BatchJob.of_command([script])


@pytest.mark.parametrize(
    ("options", "chips"),
    [
        ({"gpus-per-node": "h100:8", "nodes": "2"}, 16),
        ({"gres": "gpu:h100:8", "nodes": "2"}, 16),
        ({"tres-per-node": "gres:gpu:h100:4", "nodes": "2"}, 8),
        ({"gpus": "h100:24"}, 24),
        ({"gpus-per-node": "h100:8", "nodes": "2-4"}, None),
        ({"gpus-per-node": "h100:8"}, None),
    ],
)
def test_chips_are_counted_where_the_options_tell_them(
    policy: HookPolicy, options: dict[str, str], chips: int | None
) -> None:
    cluster = _asked(BatchJob(options), policy)["cluster"]
    assert cluster["preset"] == "h100"
    assert cluster.get("num_chips") == chips


def test_names_of_the_site_go_before_those_of_slurm(policy: HookPolicy) -> None:
    policy = replace(policy, chips={"hopper": "h200", "large": "h100"})
    job = BatchJob({"gpus-per-node": "hopper:8", "partition": "large"})
    assert _asked(job, policy)["cluster"] == {"preset": "h200"}


def test_without_a_name_the_script_says_which_chips_there_are(policy: HookPolicy) -> None:
    assert "cluster" not in _asked(BatchJob({"partition": "large", "nodes": "2"}), policy)


def test_variables_that_a_script_uses_are_sent_but_no_secrets(policy: HookPolicy) -> None:
    text = "LR=1\nsrun train --tp $TP --lr $LR --key ${WANDB_API_KEY} --id $SLURM_JOB_ID"
    given = {"TP": "8", "LR": "2", "WANDB_API_KEY": "x", "SLURM_JOB_ID": "1", "HOME": "/root"}
    launch = _asked(BatchJob({}), policy, text, **given)["launch"]
    assert launch["environment"] == {"TP": "8"}


def test_a_script_from_a_pipe_is_left_to_sbatch() -> None:
    assert BatchJob.of_command(["-N", "1"]).script() is None
    assert BatchJob.of_command(["--wrap=srun train"]).script() == "srun train"


def test_the_comment_of_the_owner_stays() -> None:
    found = Finding(verdict="go", run_id="check-01a2")
    assert answer_lines(BatchJob({}), found) == ("comment shardwright:go:check-01a2",)
    assert answer_lines(BatchJob({"comment": "mine"}), found) == ("comment",)
    refused = replace(found, is_refused=True)
    assert answer_lines(BatchJob({}), refused)[1:] == ("refused",)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("COMPLETED", "ok"), ("CANCELLED by 1000", "aborted"), ("RUNNING", None), ("", None)],
)
def test_the_state_of_a_job_is_an_outcome_once_it_has_ended(
    state: str, outcome: str | None
) -> None:
    assert outcome_of(state) == outcome


def test_a_check_imports_nothing_that_takes_long() -> None:
    """A hook is a new process for each job, and has 300 ms."""
    code = (
        "import sys, shardwright.hooks.slurm.__main__, shardwright.hooks.slurm.submission;"
        "print([*{'httpx', 'typer', 'rich', 'pydantic', 'asyncio', 'yaml'} & sys.modules.keys()])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert ended.stdout == "[]\n", ended.stderr
