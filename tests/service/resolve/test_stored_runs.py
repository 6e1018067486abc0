"""Stored reports as typed runs, and runs as observations of a calibration."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from starlette.testclient import TestClient

from models.errors import Invalid
from models.spec.hardware import GIB
from models.spec.profile import shipped_profile
from service.resolve.calibration_targets import log_residuals, observation
from service.resolve.resolution import Resolver
from service.resolve.stored_runs import StoredRun, StoredRuns
from service.schemas.profile import Unusable
from service.store.reports import ReportFilter
from tests.service.asking import REPORT, changed


def post(client: TestClient, **report: Any) -> dict[str, Any]:
    response = client.post("/v1/reports", json={**REPORT, **report})
    assert response.status_code == 201, response.json()
    document: dict[str, Any] = response.json()
    return document


def read(client: TestClient) -> tuple[list[StoredRun], list[Unusable]]:
    with client.app.state.services.store.reading() as rows:
        return StoredRuns(rows).read(rows.reports.newest(ReportFilter(), 10))


def test_a_run_is_what_was_reported(client) -> None:
    report = post(client, source="here")
    ((run,), unusable) = read(client)
    assert not unusable
    assert run.report_id == report["id"]
    assert (run.chip, run.stack, run.architecture) == ("h100-sxm-80gb", "torchtitan", "llama-3-8b")
    assert (run.step_time_s, run.source, run.tenant) == (2.0, "here", None)
    assert run.layout.dp_shard == 64
    assert run.predicted_layout().model_dump(mode="json") == report["prediction"]["layout"]
    seen = observation(run)
    assert (seen.key, seen.source) == (run.report_id, "here")
    assert seen.group == "llama-3-8b/h100-sxm-80gb/torchtitan"
    assert (seen.step_time_s, seen.memory_bytes, seen.out_of_memory) == (2.0, None, False)
    assert log_residuals([run], shipped_profile()) == pytest.approx([report["residual"]])
    assert pickle.loads(pickle.dumps(run)) == run


def test_runs_of_one_question_share_a_problem(client) -> None:
    post(client)
    post(client, measured={"step_time_s": 3.0})
    post(client, **changed(REPORT, "workload.global_batch", 256))
    runs, _ = read(client)
    assert [run.problem is runs[-1].problem for run in runs] == [False, True, True]


def test_memory_is_what_the_framework_reserved(client) -> None:
    """Where only the memory of tensors was measured, what the allocator adds is as predicted."""
    predicted = post(client, memory={"reserved_gib": 50.0})["prediction"]
    post(client, memory={"allocated_gib": predicted["allocated_gib"] / 2})
    post(client, memory={"reserved_gib": 50.0}, outcome="out_of_memory", measured=None)
    failed, allocated, reserved = read(client)[0]
    assert reserved.reserved_bytes == 50 * GIB
    assert allocated.reserved_bytes == pytest.approx(predicted["reserved_gib"] / 2 * GIB)
    assert failed.out_of_memory
    assert failed.reserved_bytes is None


def test_a_report_of_what_is_gone_is_left_out_with_the_reason(client, monkeypatch) -> None:
    report = post(client)

    def forget(*_: object) -> None:
        raise Invalid("model", None, "is forgotten")

    monkeypatch.setattr(Resolver, "resolve", forget)
    assert read(client) == ([], [Unusable(report=report["id"], reason="model: is forgotten")])


def test_parts_that_were_measured_are_targets_too(client) -> None:
    question = {
        "model": "qwen3-30b-a3b",
        "stack": "megatron",
        "layout": {"dp_shard": 64, "ep": 8, "zero_stage": 1},
    }
    parts = {"exposed_communication_s": 0.2, "expert_imbalance": 1.5}
    post(client, **question, parts=parts)
    ((run,), _) = read(client)
    seen = observation(run)
    assert seen.exposed_s == 0.2
    assert seen.coefficients["imbalance"] > 0
