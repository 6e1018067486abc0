"""The report of a job that has ended, without a Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardwright.client.errors import problem_of
from shardwright.hooks.policy import HookPolicy
from shardwright.hooks.slurm import end
from shardwright.hooks.slurm.end import NothingToReport, report


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The bodies that are sent; a first one with the outcome of a crash is refused, as by a service
    that reads in the log that memory ran out."""
    bodies: list[Any] = []

    def post(_: Any, path: str, body: Any, **__: Any) -> Any:
        bodies.append(dict(body))
        if body.get("outcome") == "crashed":
            document = {"title": "no", "errors": [{"field": "outcome", "rule": "no"}]}
            raise problem_of(document, 422, None)
        return {"report": {"id": "01a2"}}

    monkeypatch.setattr(end, "post", post)
    return bodies


def _environment(comment: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_COMMENT": comment,
        "SLURM_JOB_USER": "ann",
        "SLURM_CLUSTER_NAME": "trial",
    }


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job of ann.log"
    path.write_text("step 1\nHF_TOKEN=hf_abcdefghijklmnopqrstuv\n")
    return path


def _state(monkeypatch: pytest.MonkeyPatch, state: str, log: Path) -> None:
    shown = f"JobId=7 JobState={state} Comment=x StdIn=/dev/null StdOut={log} Power= \n"
    monkeypatch.setattr(end, "_scontrol_line", lambda _: shown)


def test_a_report_names_the_check_and_carries_labels_but_no_secrets(
    sent: list[Any], log: Path, policy: HookPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    _state(monkeypatch, "COMPLETED", log)
    assert report(_environment("mine shardwright:go:check-01b3"), policy) == "01a2"
    assert sent[0]["check_id"] == "01b3"
    assert sent[0]["outcome"] == "ok"
    assert sent[0]["labels"] == {"job": "7", "user": "ann"}
    assert "hf_abc" not in sent[0]["log"]


def test_where_the_log_shows_another_end_than_the_state_the_log_is_right(
    sent: list[Any], log: Path, policy: HookPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    _state(monkeypatch, "FAILED", log)
    assert report(_environment("shardwright:go:check-01b3"), policy) == "01a2"
    assert [body.get("outcome") for body in sent] == ["crashed", None]


@pytest.mark.parametrize("comment", ["", "mine", "shardwright:go"])
def test_a_job_that_was_not_checked_is_not_reported(
    sent: list[Any], policy: HookPolicy, comment: str
) -> None:
    with pytest.raises(NothingToReport):
        report(_environment(comment), policy)
    assert sent == []
