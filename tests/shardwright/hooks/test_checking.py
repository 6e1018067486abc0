from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardwright.client.settings import ClientSettings
from shardwright.hooks import checking
from shardwright.hooks.checking import check_job, check_request, launch_of_object
from shardwright.hooks.finding import Finding
from shardwright.hooks.policy import HookPolicy
from tests.shardwright.hooks.jobs import BETTER_FLAG, ILLEGAL, MEGATRON, NO_TRAINING


def _found(policy: HookPolicy, script: str) -> Finding:
    return check_job(policy, check_request({"arguments": script}))


@pytest.mark.usefixtures("asked")
def test_a_slow_job_gets_a_warning_the_better_flag_and_where_to_read_more(
    policy: HookPolicy,
) -> None:
    found = _found(policy, MEGATRON)
    line = found.line("shardwright check job.sh")
    assert found.verdict == "go_with_warnings"
    assert found.mark == f"shardwright:go_with_warnings:{found.run_id}"
    assert found.variables("http://here") == {
        "SHARDWRIGHT_URL": "http://here",
        "SHARDWRIGHT_ID": found.run_id,
    }
    assert line.startswith("shardwright: go, with warnings: 29% of the step")
    assert f"change first: {BETTER_FLAG} (20% more steps an hour)" in line
    assert line.endswith("; more: shardwright check job.sh")
    assert "\n" not in line


@pytest.mark.usefixtures("asked")
def test_only_verdicts_that_are_enforced_refuse_a_job(policy: HookPolicy) -> None:
    assert not _found(policy, ILLEGAL).is_refused
    strict = replace(policy, enforce=frozenset({"illegal"}))
    found = _found(strict, ILLEGAL)
    assert found.is_refused
    assert "--tensor-model-parallel-size 3: tp(3) must divide" in found.line("x")
    assert "change first: --tensor-model-parallel-size 8" in found.line("x")
    assert not _found(strict, MEGATRON).is_refused


@pytest.mark.usefixtures("asked")
def test_nothing_is_said_of_a_job_that_trains_nothing(policy: HookPolicy) -> None:
    found = _found(policy, NO_TRAINING)
    assert found == Finding()
    assert found.line("x") == ""


@pytest.mark.usefixtures("asked")
def test_a_training_job_that_cannot_be_read_goes_on_and_the_line_says_why(
    policy: HookPolicy,
) -> None:
    found = _found(policy, MEGATRON.replace("--num-layers 80", ""))
    assert not found.is_refused
    assert found.mark is None
    assert found.line("x").startswith("shardwright: not checked, goes on unchanged: ")
    assert "num-layers" in found.line("x")


@pytest.mark.parametrize("broken", [RuntimeError("oops"), KeyError("verdict"), OSError("no")])
def test_a_job_goes_on_whatever_befalls_its_check(
    policy: HookPolicy, monkeypatch: pytest.MonkeyPatch, broken: Exception
) -> None:
    def post(*_: Any, **__: Any) -> Any:
        raise broken

    monkeypatch.setattr(checking, "post", post)
    strict = replace(policy, enforce=frozenset({"illegal", "will_not_fit"}))
    found = _found(strict, ILLEGAL)
    assert not found.is_refused
    assert "goes on unchanged" in found.line("x")


@pytest.mark.parametrize("answer", [{}, [], None, {"verdict": "illegal"}, {"verdict": {}}])
def test_an_answer_in_another_form_lets_the_job_go_on(
    policy: HookPolicy, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(checking, "post", lambda *_, **__: answer)
    found = _found(replace(policy, enforce=frozenset({"illegal"})), ILLEGAL)
    assert not found.is_refused
    assert "goes on unchanged" in found.line("x")


def test_nobody_there_is_said_in_the_line() -> None:
    policy = HookPolicy(service=ClientSettings(url="http://127.0.0.1:9"))
    assert "no Shardwright answers at http://127.0.0.1:9" in _found(policy, MEGATRON).line("x")


def test_secrets_of_a_described_job_stay_here() -> None:
    job = {"kind": "Job", "env": [{"name": "HF_TOKEN", "value": "hf_abcdefghijklmnopqrstuv"}]}
    assert "hf_abc" not in launch_of_object(job)["arguments"]
    assert launch_of_object(job)["arguments"].startswith('kind: "Job"\n')
