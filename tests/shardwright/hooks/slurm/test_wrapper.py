"""The wrapper around sbatch, with programs in the place of the real sbatch and of the hook."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.shardwright.hooks.overhead import PATIENT_S
from tests.shardwright.hooks.slurm.cluster import with_budget

_REAL_HOOK = f'PYTHONPATH={ROOT} exec {sys.executable} -m shardwright.hooks.slurm "$@"'
_REAL_SBATCH = 'printf "%s|" "$0" "$@"'
Submit = Callable[..., "subprocess.CompletedProcess[str]"]


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def submit(tmp_path: Path) -> Submit:
    """Submits a job through the wrapper, which is first in PATH; the real sbatch is in the last
    folder."""

    def submit(
        *options: str,
        hook: str | None = _REAL_HOOK,
        budget_s: int = PATIENT_S,
        folders: tuple[str, ...] = ("wrapper", "hook", "real"),
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        _program(tmp_path / "wrapper" / "sbatch", with_budget("sbatch", budget_s))
        _program(tmp_path / "real" / "sbatch", _REAL_SBATCH)
        if hook is not None:
            _program(tmp_path / "hook" / "shardwright-slurm", hook)
        path = [*(f"{tmp_path}/{folder}" for folder in folders), "/usr/bin", "/bin"]
        return subprocess.run(
            ["sbatch", *options],
            env={**os.environ, "PATH": ":".join(path), **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return submit


def test_a_job_goes_to_the_next_sbatch_in_the_path(submit: Submit, tmp_path: Path) -> None:
    submitted = submit("--wrap=echo  $HOME *", "b c", hook="echo comment")
    assert submitted.stdout == f"{tmp_path}/real/sbatch|--wrap=echo  $HOME *|b c|"
    assert submitted.stderr == ""


def test_a_wrapper_that_is_in_the_path_twice_checks_once(submit: Submit, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "sbatch").symlink_to(tmp_path / "wrapper" / "sbatch")
    folders = ("again", "wrapper", "hook", "real")
    submitted = submit("job.sh", hook="echo checked >&2; echo comment", folders=folders)
    assert submitted.stdout == f"{tmp_path}/real/sbatch|job.sh|"
    assert submitted.stderr == "checked\n"


def test_without_another_sbatch_the_wrapper_says_so(submit: Submit) -> None:
    submitted = submit("job.sh", folders=("wrapper", "hook"))
    assert submitted.returncode == 127
    assert "no other sbatch is in PATH" in submitted.stderr


def test_a_comment_is_set_and_a_refused_job_goes_nowhere(submit: Submit, tmp_path: Path) -> None:
    mark = "shardwright:go:check-01a2"
    submitted = submit("job.sh", hook=f"echo comment {mark}")
    assert submitted.stdout == f"{tmp_path}/real/sbatch|--comment={mark}|job.sh|"
    refused = submit("job.sh", hook=f"echo comment {mark}; echo refused")
    assert (refused.returncode, refused.stdout) == (1, "")


@pytest.mark.parametrize(
    ("policy", "script", "reason"),
    [
        (None, "job.sh", "No such file or directory: 'hooks.toml'"),
        ("no = TOML", "job.sh", "hooks.toml: "),
        ('enforce = ["slow"]', "job.sh", "enforce may name"),
        ("", "nowhere.sh", "No such file or directory: 'nowhere.sh'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_the_job_goes_on(
    submit: Submit, tmp_path: Path, policy: str | None, script: str, reason: str
) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\nsrun hostname\n")
    if policy is not None:
        (tmp_path / "hooks.toml").write_text(policy)
    submitted = submit(script, SHARDWRIGHT_HOOKS="hooks.toml")
    assert submitted.stdout == f"{tmp_path}/real/sbatch|{script}|"
    (line,) = submitted.stderr.splitlines()
    assert line.startswith("shardwright: not checked, goes on unchanged: ")
    assert reason in line


@pytest.mark.parametrize(
    ("hook", "line"),
    [
        ("sleep 30", "no answer within 1 s, submitted unchanged"),
        ("echo comment; exit 1", "not checked, goes on unchanged: shardwright-slurm ended with 1"),
        (None, "not checked, goes on unchanged: shardwright-slurm ended with 127"),
    ],
)
def test_only_a_hook_that_takes_too_long_is_said_to(
    submit: Submit, tmp_path: Path, hook: str | None, line: str
) -> None:
    submitted = submit("job.sh", hook=hook, budget_s=1)
    assert submitted.stdout == f"{tmp_path}/real/sbatch|job.sh|"
    assert submitted.stderr.splitlines()[-1] == f"shardwright: {line}"
