"""The commands, on a real application."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner, Result

from shardwright.cli import session
from shardwright.cli.job_files import files_beside
from shardwright.cli.main import app
from shardwright.client.client import Client
from shardwright.client.settings import ClientSettings

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
def run(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command against an application in this process."""
    settings = ClientSettings(url="http://testserver")

    def connected(_: ClientSettings) -> Client:
        return Client(settings, transport=client._transport)

    monkeypatch.setattr(session, "Client", connected)

    def run(*arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(app, [*arguments], **options)

    return run


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


def test_a_file_that_is_missing_leaves_no_verdict(run: Any, job: str) -> None:
    (Path(job).parent / "lora.yaml").unlink()
    found = run("check", job, "--on", "h100", "--model", "llama-3.1-8b", "--json")
    assert found.exit_code == 5, found.output
    (missing, *_) = json.loads(found.stdout)["reservations"]
    assert "lora.yaml" in missing["cure"]


def test_what_trains_nothing_has_an_exit_code_of_its_own(run: Any) -> None:
    found = run("check", "-", input="srun python analyse.py\n")
    assert found.exit_code == 6


def test_a_wrong_question_names_the_field(run: Any) -> None:
    found = run("ask", "llama-3.1-8b", "--on", "h1000", "--seq-len", "8192", "--batch", "8",
                "--chips", "8", "--stack", "torchtitan")  # fmt: skip
    assert found.exit_code == 2
    assert "h100" in found.stderr


def test_an_answer_for_people_has_the_verdict_first(run: Any, job: str) -> None:
    found = run("check", job, "--on", "h100", "--no-json")
    assert "GO" in found.stdout.splitlines()[0]


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
