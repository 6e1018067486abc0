"""Refusals of the service, in the words of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.shardwright.cli.commands import shown

ASKED = ("--seq-len", "8192", "--batch", "64", "--stack", "torchtitan")


def _written_script(run: Any, path: Path, stack: str) -> str:
    asked = ("--on", "h100:16", "--seq-len", "8192", "--batch", "64", "--stack", stack)
    path.write_text(run("ask", "llama-3.1-8b", *asked, "--script").stdout)
    return str(path)


def test_every_value_that_a_written_script_leaves_out_is_named_with_its_option(
    run: Any, tmp_path: Path
) -> None:
    script = _written_script(run, tmp_path / "fsdp.sh", "fsdp")
    found = run("check", script, "--on", "h100")
    assert found.exit_code != 0
    assert "--model: is required" in shown(found.stderr)
    assert "--seq-len: is required" in shown(found.stderr)
    assert "workload" not in found.stderr
    complete = run("check", script, "--on", "h100", "--model", "llama-3.1-8b", "--seq-len", "8192")
    assert complete.exit_code == 0, complete.output


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (("ask", "llama-9", "--on", "h100:8", *ASKED), "MODEL llama-9: unknown name"),
        (("ask", "llama-3.1-8b", "--on", "h100", *ASKED), "--chips: is required"),
        (("evidence", "--model", "llama-9"), "--model llama-9: unknown name"),
        (("sweep", "--model", "llama-3.1-8b", "--on", "h100", *ASKED), "--on: is required"),
        (
            ("frontier", "llama-3.1-8b", "--on", "h100:8", *ASKED, "--vary", "foo=1"),
            "--vary (foo): unknown field; known here: scale_up",
        ),
    ],
)
def test_an_error_calls_a_field_by_the_option_or_argument_of_the_command(
    run: Any, command: tuple[str, ...], place: str
) -> None:
    found = run(*command)
    assert found.exit_code == 2
    assert place in shown(found.stderr)


@pytest.mark.parametrize(
    ("arguments", "text", "place"),
    [
        (("check", "-", "--on", "a100-80gb"), "base_model: Qwen/Qwen2.5-14B\n", "--chips: is"),
        (("check", "-", "--on", "h100"), "python cook.py --lr 1\n", "--format: is not told"),
        (("predict", "-", "--on", "h100"), "python cook.py --lr 1\n", "ms-swift"),
        (
            ("check", "-", "--on", "h100", "--seq-len", "4096"),
            "torchrun --nproc_per_node 8 -m torchtitan.train --training.seq_len 8192\n",
            "SCRIPT workload.seq_len = 8192: contradicts --seq-len = 4096",
        ),
    ],
)
def test_an_error_of_a_script_names_the_option_that_helps(
    run: Any, arguments: tuple[str, ...], text: str, place: str
) -> None:
    if "base_model" in text:
        text += "adapter: lora\nsequence_len: 4096\nmicro_batch_size: 2\n"
    found = run(*arguments, input=text)
    assert found.exit_code != 0
    assert place in shown(found.stderr)


def test_an_error_is_the_problem_document_where_output_is_json(run: Any) -> None:
    refused = run("ask", "llama-9", "--on", "h100:8", *ASKED, "--json")
    assert json.loads(refused.stdout)["errors"][0]["field"] == "model"
    assert "MODEL" in refused.stderr
    unasked = run("check", "missing.sh", "--on", "h100", "--json")
    assert "missing.sh cannot be read" in json.loads(unasked.stdout)["detail"]
    assert run("check", "missing.sh", "--on", "h100", "--no-json").stdout == ""
    assert run("ask", "llama-9", "--on", "h100:8", *ASKED, "--script").stdout == ""


def test_a_folder_with_a_config_is_a_model(run: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 64}')
    found = run("ask", str(tmp_path), "--on", "h100:8", *ASKED)
    assert "is required for model_type llama" in shown(found.stderr)


def test_the_number_of_chips_stands_behind_the_name_or_in_an_option(run: Any) -> None:
    both = run("ask", "llama-3.1-8b", "--on", "h100:8", "--chips", "8", *ASKED)
    assert both.exit_code == 2
    assert "leave out --nodes and --chips" in shown(both.stderr)
    no_number = run("ask", "llama-3.1-8b", "--on", "h100:many", *ASKED)
    assert "as h100:64" in shown(no_number.stderr)
