"""The hooks of Slurm on a real one: sbatch, slurmctld and slurmd of this machine."""

from __future__ import annotations

import json
import re
import resource
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shardwright.hooks.jobs import BETTER_FLAG, ILLEGAL, MEGATRON, NO_TRAINING, numbered
from tests.shardwright.hooks.overhead import BUDGET_S, UP_S, has_idle_cores, p95_s
from tests.shardwright.hooks.services import ServiceProcess, compiling
from tests.shardwright.hooks.slurm.cluster import SlurmCluster, cluster, missing

pytestmark = [
    pytest.mark.hooks,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(missing() is not None, reason=f"Slurm: {missing()}"),
]
_TRAINING = """
import os
for step in range(1, 31) if os.environ.get("SLURM_PROCID") == "0" else ():
    print(f" [2026-11-01 10:00:{step:02}] iteration {step:8}/     100 |"
          f" consumed samples: {512 * step:12} |"
          " elapsed time per iteration (ms): 300000.0 | learning rate: 1.5E-04 |"
          " global batch size:   512 | lm loss: 2.5E+00 | number of nan iterations:   0 |")
"""
"""A program that prints the log of a run: this machine has no chips to train on."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with cluster(tmp_path_factory.mktemp("slurm")) as started:
        (started.folder / "pretrain_gpt.py").write_text(_TRAINING)
        yield started


@pytest.fixture(params=["sbatch", "sbatch-checked"])
def program(request: pytest.FixtureRequest) -> str:
    """The filter of the real sbatch, and the wrapper where there is no filter."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _free_node(slurm: SlurmCluster) -> Iterator[None]:
    """So that no job waits for that of another test."""
    yield
    slurm.run("scancel", "--user=root")


def _job_id(output: str) -> str:
    found = re.search(r"Submitted batch job (\d+)", output)
    assert found, output
    return found[1]


def test_a_slow_job_is_submitted_with_a_warning_and_the_better_flag(
    slurm: SlurmCluster, service: ServiceProcess, program: str
) -> None:
    slurm.configure(service.url)
    submitted = slurm.submit(MEGATRON, program=program)
    assert submitted.stderr.startswith("shardwright: go, with warnings: ")
    assert BETTER_FLAG in submitted.stderr
    assert len(submitted.stderr.splitlines()) == 1
    assert "Comment=shardwright:go_with_warnings" in slurm.job(_job_id(submitted.stdout))


def test_an_illegal_job_is_submitted_unless_the_administrator_has_it_refused(
    slurm: SlurmCluster, service: ServiceProcess, program: str
) -> None:
    slurm.configure(service.url)
    assert _job_id(slurm.submit(ILLEGAL, program=program).stdout)
    slurm.configure(service.url, 'enforce = ["illegal"]\n')
    refused = slurm.submit(ILLEGAL, program=program)
    assert refused.returncode != 0
    assert "will not start" in refused.stderr
    assert _job_id(slurm.submit(MEGATRON, program=program).stdout)


def test_jobs_that_train_nothing_are_passed_over_in_silence(
    slurm: SlurmCluster, service: ServiceProcess, program: str
) -> None:
    slurm.configure(service.url)
    submitted = slurm.submit(NO_TRAINING, program=program)
    assert submitted.stderr == ""
    assert "Comment=" not in slurm.job(_job_id(submitted.stdout))


def test_a_comment_of_the_owner_is_left_alone(
    slurm: SlurmCluster, service: ServiceProcess, program: str
) -> None:
    slurm.configure(service.url)
    submitted = slurm.submit(MEGATRON, "--comment=mine", program=program)
    assert "Comment=mine " in slurm.job(_job_id(submitted.stdout))


def test_options_of_the_command_line_go_before_those_of_the_script(
    slurm: SlurmCluster, service: ServiceProcess, program: str
) -> None:
    """With four GPUs the model needs more memory than they have."""
    slurm.configure(service.url)
    submitted = slurm.submit(
        MEGATRON.replace("parallel-size 8", "parallel-size 4"),
        *("--nodes=1", "--gpus-per-node=b300:4", "--ntasks-per-node=4"),
        program=program,
    )
    assert "will not fit" in submitted.stderr


def test_a_job_goes_on_unchanged_where_no_service_is(slurm: SlurmCluster, program: str) -> None:
    slurm.configure("http://127.0.0.1:9", 'enforce = ["illegal"]\n')
    submitted = slurm.submit(ILLEGAL, program=program)
    assert "not checked, goes on unchanged" in submitted.stderr
    assert "Comment=" not in slurm.job(_job_id(submitted.stdout))


def test_a_job_goes_on_unchanged_where_the_service_hangs(
    slurm: SlurmCluster, service: ServiceProcess, program: str
) -> None:
    slurm.configure(service.url, 'enforce = ["illegal"]\n', budget_s=2)
    with service.frozen():
        submitted = slurm.submit(ILLEGAL, program=program)
    assert "no answer within 2 s, submitted unchanged" in submitted.stderr
    assert len(submitted.stderr.splitlines()) == 1
    assert "Comment=" not in slurm.job(_job_id(submitted.stdout))


def test_a_job_goes_on_unchanged_while_the_service_compiles(
    slurm: SlurmCluster, tmp_path: Path, program: str
) -> None:
    with compiling(tmp_path) as service:
        slurm.configure(service.url, 'enforce = ["illegal"]\n')
        submitted = slurm.submit(ILLEGAL, program=program)
    assert "unchanged" in submitted.stderr
    assert _job_id(submitted.stdout)


def test_a_job_goes_on_unchanged_where_the_hook_itself_is_broken(
    slurm: SlurmCluster, program: str
) -> None:
    slurm.configure("http://127.0.0.1:9", "no = TOML\n")
    submitted = slurm.submit(MEGATRON, program=program)
    assert "not checked, goes on unchanged" in submitted.stderr
    assert len(submitted.stderr.splitlines()) == 1
    assert _job_id(submitted.stdout)


def test_a_checked_job_is_reported_once_when_it_has_ended(
    slurm: SlurmCluster, service: ServiceProcess
) -> None:
    slurm.configure(service.url)
    before = len(_reports(service.url))
    assert slurm.state(_job_id(slurm.submit(NO_TRAINING).stdout)) == "COMPLETED"
    job_id = _job_id(slurm.submit(MEGATRON).stdout)
    assert slurm.state(job_id) == "COMPLETED"
    ends = time.monotonic() + 60
    while len(_reports(service.url)) == before and time.monotonic() < ends:
        time.sleep(0.5)
    reports = _reports(service.url)
    assert len(reports) == before + 1
    assert reports[0]["outcome"] == "ok"
    assert reports[0]["measured"]["step_time_s"] == pytest.approx(300)
    assert reports[0]["source"] == "trial"
    assert reports[0]["labels"] == {"job": job_id, "user": "root", "partition": "train"}


def test_a_job_knows_the_check_that_it_belongs_to(
    slurm: SlurmCluster, service: ServiceProcess
) -> None:
    """In its environment, set by the task prolog from its comment."""
    slurm.configure(service.url)
    job_id = _job_id(slurm.submit(f"{MEGATRON}echo id=$SHARDWRIGHT_ID\n").stdout)
    assert slurm.state(job_id) == "COMPLETED"
    found = re.search("Comment=shardwright:go_with_warnings:(check-[0-9a-f-]+)", slurm.job(job_id))
    assert found
    assert f"id={found[1]}\n" in (slurm.folder / f"job-{job_id}.log").read_text()


def test_a_check_delays_a_job_by_less_than_its_budget(
    slurm: SlurmCluster, service: ServiceProcess, tmp_path: Path
) -> None:
    slurm.configure(service.url, budget_s=2)

    def check(number: int) -> None:
        script = tmp_path / f"job-{number}.sh"
        script.write_text(numbered(MEGATRON, number))
        slurm.run("timeout", "-k", "0.1", "2", "shardwright-slurm", "sbatch", str(script))

    is_idle = has_idle_cores()
    up_s = p95_s(check, 20)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with service.frozen():
        hanging_s = p95_s(check, 5)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_ms = (after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime) / 5 * 1e3
    print(
        f"Slurm: p95 {up_s * 1e3:.0f} ms with the service up, {hanging_s:.2f} s with it hanging;"
        f" {cpu_ms:.0f} ms of a core for the hook itself"
    )
    assert hanging_s < BUDGET_S
    assert up_s < UP_S or not is_idle


def _reports(url: str) -> list[dict[str, object]]:
    with urllib.request.urlopen(f"{url}/v1/reports") as response:
        return json.load(response)["items"]
