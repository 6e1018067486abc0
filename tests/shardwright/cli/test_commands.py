"""The commands, on a real application."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from shardwright.cli.job_files import files_beside
from tests.paths import ROOT
from tests.shardwright.cli.commands import run_against, shown

LORA = """base_model: Qwen/Qwen2.5-14B
adapter: lora
lora_r: 16
lora_target_linear: true
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
bf16: auto
learning_rate: 2e-4
"""
JOB = """#!/bin/bash
export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz
srun torchrun --nnodes 2 --nproc_per_node 8 -m axolotl.cli.train lora.yaml
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "lora.yaml").write_text(LORA)
    (tmp_path / "job.sh").write_text(JOB)
    return str(tmp_path / "job.sh")


def test_a_job_is_checked_with_the_files_beside_it(run: Any, job: str) -> None:
    found = run("check", job, "--on", "h100", "--json")
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert answer["verdict"] in ("go", "go_with_warnings")
    assert answer["reservations"] == []
    assert "hf_abc" not in json.dumps(answer)


def test_who_has_no_key_is_told_where_to_give_it(
    make_client: Any, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_against(make_client(require_api_keys=True), monkeypatch)
    found = run("check", job, "--on", "h100")
    assert found.exit_code == 1
    assert "SHARDWRIGHT_KEY" in found.stderr


def test_a_run_of_which_nothing_is_known_says_which_options_tell_it(
    run: Any, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    log.write_text("iteration 1\n")
    found = run("report", str(log), env={"SHARDWRIGHT_ID": ""})
    assert found.exit_code == 2
    assert "--job" in found.stderr


def test_a_file_that_is_missing_leaves_no_verdict(run: Any, job: str) -> None:
    (Path(job).parent / "lora.yaml").unlink()
    found = run("check", job, "--on", "h100", "--model", "llama-3.1-8b", "--json")
    assert found.exit_code == 5, found.output
    (missing, *_) = json.loads(found.stdout)["reservations"]
    assert "lora.yaml" in missing["cure"]


@pytest.mark.parametrize(
    "script",
    ["srun python analyse.py\n", "#!/bin/bash\nexport NCCL_DEBUG=WARN\n", "echo hello\n"],
)
def test_what_trains_nothing_has_an_exit_code_of_its_own(run: Any, script: str) -> None:
    assert run("check", "-", input=script).exit_code == 6


@pytest.mark.parametrize(
    "script",
    [
        "torchrun my_train.py --config own.yaml\n",  # a trainer that is not known
        "tune run recipe --config own.yaml\n",  # one whose settings are not read
        "torchrun pretrain_gpt.py --bf16 $1\n",  # what is not in the script
        "deepspeed train.py --deepspeed ds.json\n",  # a file that was not sent, and no model
    ],
)
def test_of_a_script_that_does_not_tell_enough_nothing_can_be_told(run: Any, script: str) -> None:
    assert run("check", "-", "--on", "h100", input=script).exit_code == 5


@pytest.mark.parametrize(
    "options",
    [
        ["--on", "h1000"],
        ["--on", "h100", "--format", "nonsense"],
        ["--on", "h100", "--model", "llama-9"],
    ],
)
def test_a_wrong_option_of_a_check_is_a_wrong_question(
    run: Any, job: str, options: list[str]
) -> None:
    assert run("check", job, *options).exit_code == 2


def test_a_wrong_question_names_the_field(run: Any) -> None:
    found = run("ask", "llama-3.1-8b", "--on", "h1000", "--seq-len", "8192", "--batch", "8",
                "--chips", "8", "--stack", "torchtitan")  # fmt: skip
    assert found.exit_code == 2
    assert "h100" in found.stderr


def test_a_script_of_an_answer_is_checked_as_the_answer_says(run: Any) -> None:
    """The service's own placeholders in it, such as the recipe of Megatron-Bridge, hide nothing."""
    asked = ("ask", "llama-3.1-8b", "--on", "h100", "--seq-len", "8192", "--batch", "128",
             "--chips", "64", "--stack", "megatron-bridge")  # fmt: skip
    found = json.loads(run(*asked, "--json").stdout)
    recommended = found["layouts"][found["recommended"]]["prediction"]
    checked = run("check", "-", "--on", "h100", "--json", input=run(*asked, "--script").stdout)
    answer = json.loads(checked.stdout)
    assert checked.exit_code == 0, answer["summary"]
    assert answer["prediction"]["step_time_s"] == pytest.approx(recommended["step_time_s"])


def test_what_a_job_leaves_out_is_asked_for_by_its_option(run: Any, job: str) -> None:
    found = run("check", job)
    assert found.exit_code == 2
    assert "--on: is required: the launch does not name its chips" in shown(found.stderr)


def test_an_answer_for_people_has_the_verdict_first(run: Any, job: str) -> None:
    found = run("check", job, "--on", "h100", "--no-json")
    assert "GO" in found.stdout.splitlines()[0]


def test_a_prediction_says_which_reports_moved_it(
    client: TestClient, run: Any, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = json.loads(run("predict", job, "--on", "h100", "--json").stdout)
    measured = {"step_time_s": 1.2 * usual["layouts"][0]["step_time_s"]}
    reports = [{"prediction_id": usual["id"], "outcome": "ok", "measured": measured}] * 5
    client.post("/v1/reports", json={"reports": reports})
    client.post("/v1/profiles/default/calibrations")
    client.post("/v1/profiles/default/versions/2/activate", headers={"If-Match": "*"})
    monkeypatch.setenv("COLUMNS", "400")
    found = run("predict", job, "--on", "h100", "--no-json").stdout
    assert "longer than under version 1: " in found
    assert "from 5 reports of " in found


def test_a_job_that_does_not_fit_is_no_ok_of_any_command(run: Any, tmp_path: Path) -> None:
    large = tmp_path / "large.sh"
    large.write_text(SLURM.format(shard=16, tensor=1).replace("mode full", "mode none"))
    on = ("--on", "h100:16", "--model", "llama-3.1-70b")
    for command in (("predict", str(large)), ("compare", str(large), str(large))):
        found = run(*command, *on, "--no-json", env={"COLUMNS": "400"})
        assert found.exit_code == 0, found.output
        headline, memory, *_ = found.stdout.splitlines()
        assert headline.startswith("X WILL NOT FIT")
        assert memory.startswith("  memory")
        assert "of 79.1: fits with <1%" in memory
        assert "OK" not in found.stdout


def test_what_a_framework_refuses_is_shown_with_the_file_that_does(run: Any) -> None:
    line = "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32"
    line += " --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --swiglu"
    line += " --recompute-granularity full --padded-vocab-size 32768"
    text = f"srun torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py {line}\n"
    found = run("check", "-", "--on", "h100", "--no-json", input=text)
    shown = " ".join(found.stdout.split())
    assert "source: megatron-core 0.19.2: megatron/training/arguments.py" in shown


@pytest.mark.parametrize("command", [("profiles",), ("evidence", "--model", "llama-3.1-8b")])
def test_lists_are_tables_for_people_and_json_in_pipes(run: Any, command: tuple[str, ...]) -> None:
    assert run(*command, "--no-json").exit_code == 0
    assert json.loads(run(*command).stdout)


def test_only_files_below_the_folder_of_a_job_are_sent(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (tmp_path / "secret.yaml").write_text("key: 1")
    (folder / "own.yaml").write_text("api_key: abc123def")
    found = files_beside("python a.py ../secret.yaml own.yaml /etc/hosts.conf", folder)
    assert list(found) == ["own.yaml"]
    assert "abc123def" not in found["own.yaml"]


SLURM = """#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8
srun torchrun --nnodes 2 --nproc_per_node 8 -m torchtitan.train --training.seq_len 8192 \\
  --training.global_batch_size 64 --training.local_batch_size 1 \\
  --parallelism.data_parallel_shard_degree {shard} --parallelism.tensor_parallel_degree {tensor} \\
  --activation_checkpoint.mode full
"""
ON_H100 = ("--on", "h100", "--nodes", "2", "--model", "llama-3.1-8b")


@pytest.fixture
def two_jobs(tmp_path: Path) -> tuple[str, str]:
    sharded, tensor = tmp_path / "sharded.sh", tmp_path / "tensor.sh"
    sharded.write_text(SLURM.format(shard=16, tensor=1))
    tensor.write_text(SLURM.format(shard=2, tensor=8))
    return str(sharded), str(tensor)


def test_two_jobs_are_compared_and_one_with_the_best(run: Any, two_jobs: tuple[str, str]) -> None:
    found = run("compare", *two_jobs, *ON_H100, "--json")
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    times = [answer[side]["prediction"]["step_time_s"] for side in ("first", "second")]
    assert times[0] - times[1] == pytest.approx(sum(answer["time"].values()))
    shown = run("compare", two_jobs[1], *ON_H100, "--no-json")
    assert "the best layout" in shown.stdout


def test_a_frontier_is_a_table_of_its_points(run: Any) -> None:
    asked = ("frontier", "llama-3.1-8b", "--on", "h100", "--chips", "16", "--seq-len", "8192",
             "--batch", "64", "--stack", "megatron")  # fmt: skip
    found = run(*asked, "--vary", "scale_out=0.5,2", "--no-json")
    assert found.exit_code == 0, found.output
    assert found.stdout.splitlines()[0].split() == [
        "scale_out",
        "without",
        "with",
        "worth",
        "needed",
    ]
    wrong = run(*asked, "--vary", "scale_out=fast")
    assert wrong.exit_code == 2
    assert "scale_out=0.5,1,2" in wrong.stderr


@pytest.mark.usefixtures("large_tasks_in_threads")
def test_a_sweep_lists_every_combination(run: Any) -> None:
    found = run("sweep", "--model", "llama-3.1-8b", "--on", "h100:8", "--on", "h100:16",
                "--seq-len", "8192", "--batch", "64", "--stack", "torchtitan")  # fmt: skip
    assert found.exit_code == 0, found.output
    items = json.loads(found.stdout)
    assert [(item["num_chips"], item["outcome"]) for item in items] == [(8, "ok"), (16, "ok")]


def test_the_loop_from_a_check_to_its_report_needs_no_id(
    run: Any, two_jobs: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, log = _checked_and_logged(run, two_jobs[0], tmp_path, slower=1.0)
    monkeypatch.setenv("SHARDWRIGHT_ID", f"check-{checked['id']}")
    found = run("report", log, "--label", "user=ada", "--json")
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)["report"]
    assert (report["check_id"], report["labels"]) == (checked["id"], {"user": "ada"})
    assert abs(report["residual"]) < 0.01


def _checked_and_logged(
    run: Any, job: str, folder: Path, *, slower: float
) -> tuple[dict[str, Any], str]:
    """Returns the stored check of a job, and the log of a run of it, whose steps take `slower`
    times as long as predicted."""
    checked = json.loads(run("check", job, *ON_H100, "--store", "--json").stdout)
    rate = round(64 * 8192 / 16 / (slower * checked["prediction"]["step_time_s"]))
    log = folder / "train.log"
    line = f"loss:  9.1  memory: 40.00GiB(50.00%)  tps: {rate:,}  mfu: 40.0%"
    log.write_text("".join(f"[titan] step: {step}  {line}\n" for step in range(1, 12)))
    return checked, str(log)


def test_a_slow_run_is_explained_by_whatever_names_its_check(
    run: Any, two_jobs: tuple[str, str], tmp_path: Path
) -> None:
    checked, log = _checked_and_logged(run, two_jobs[0], tmp_path, slower=1.9)
    given = f"check-{checked['id']}"
    ways: list[tuple[tuple[str, ...], str]] = [
        ((), given),
        (("--check", checked["id"]), ""),
        (("--check", given), ""),
    ]
    for options, of_job in ways:
        found = run("explain", log, *options, "--no-json", env={"SHARDWRIGHT_ID": of_job})
        assert found.exit_code == 0, found.output
        assert found.stdout.startswith("! SLOWER THAN PREDICTED")
        assert "OK" not in found.stdout
    reported = run("report", log, "--check", given, "--json", env={"SHARDWRIGHT_ID": ""})
    assert json.loads(reported.stdout)["report"]["check_id"] == checked["id"]
    unnamed = run("explain", log, env={"SHARDWRIGHT_ID": ""})
    assert unnamed.exit_code == 2
    assert "--check" in unnamed.stderr


def test_an_exported_history_is_explained_as_a_log_is(
    run: Any, two_jobs: tuple[str, str], tmp_path: Path
) -> None:
    history = tmp_path / "history.csv"
    rows = "".join(f'"{step}","90.5"\n' for step in range(20))
    history.write_text(f'"Step","myrun - step_time"\n{rows}')
    ran = ("--job", two_jobs[0], *("--on", "h100", "--model", "llama-3.1-8b"))
    of_another = {"SHARDWRIGHT_ID": "check-of-another-job"}
    found = run("explain", "--csv", str(history), *ran, "--json", env=of_another)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["speed"]["measured_step_time_s"] == 90.5


def test_published_runs_are_listed_with_what_a_step_is(run: Any) -> None:
    asked = ("--model", "llama-3.1-8b", "--on", "h100:64", "--stack", "megatron-bridge")
    found = run("evidence", *asked, "--no-json", env={"COLUMNS": "300"})
    assert "1024 x 8192 bf16" in found.stdout
    assert "1024 x 8192 fp8" in found.stdout


def test_published_runs_are_sought_by_a_number_of_chips_alone(run: Any) -> None:
    found = run("evidence", "--chips", "64", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["items"]


@pytest.mark.long
def test_a_command_answers_without_a_service(two_jobs: tuple[str, str]) -> None:
    # In a process of its own, whose logs it sets up.
    asked = [sys.executable, "-m", "shardwright", "check", two_jobs[0], *ON_H100, "--local"]
    found = subprocess.run([*asked, "--json"], capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["prediction"]["step_time_s"] > 0
