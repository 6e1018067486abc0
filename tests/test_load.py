"""The benchmarks of load run, and their client counts what it sends."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.benchmarks import soak
from tests.benchmarks.http_load import Request
from tests.benchmarks.load import bare, measured


@pytest.mark.long
def test_the_client_counts_every_answer_and_what_it_was(tmp_path: Path) -> None:
    with bare(b'{"a":1}', tmp_path) as server:
        good = Request.of("POST", "/bare", {"model": "llama-3.1-8b"})
        bad = Request.of("GET", "/nowhere")
        load = server.closed_loop(itertools.cycle([good, bad]), 2, 0.3)
        assert load.statuses.keys() == {200, 404}
        assert load.statuses.total() == len(load.latencies)
        assert load.errors == load.statuses[404]
        paced = server.open_loop(itertools.repeat(good), 50, 2, 0.4)
        assert len(paced.latencies) == pytest.approx(20, abs=1)


@pytest.mark.long
def test_a_loaded_service_answers_or_says_that_it_is_too_busy(tmp_path: Path) -> None:
    found = measured(f"sqlite:///{tmp_path / 'load.db'}", tmp_path, 0.5)
    for kind in ("cached", "cached_many", "get", "predictions", "reports", "mixed"):
        assert found[kind]["errors"] == 0, kind
        assert found[kind]["rps"] > 0, kind
    assert found["overload"]["statuses"].keys() <= {"201", "429", "503"}
    assert "201" in found["overload"]["statuses"]
    assert found["overload"]["recovery_s"] < 10


@pytest.mark.long
def test_a_soaked_service_refuses_only_what_is_wrong(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(soak, "_PAUSE_S", 1.0)
    moments = [*soak.soaked(f"sqlite:///{tmp_path / 'soak.db'}", tmp_path, 0.4)]
    statuses = {status for _, load, _ in moments for status in load.statuses}
    assert statuses == {200, 201, 202, 422}
    first, last = moments[0][2], moments[-1][2]
    assert last.processes <= first.processes + 3  # of sweeps, of batches, and their tracker
    assert last.resident_mib > 100
