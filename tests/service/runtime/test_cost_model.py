"""The service while its cost model is compiled, and afterwards."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from models.compilation import machine_code
from models.compilation.cache_folder import CacheFolders
from models.compilation.machine_code import NotKept
from models.search.warm_up import WarmUp
from service.runtime import compilation as compilation_in_processes
from service.runtime import cost_model
from service.runtime.compilation import Progress
from tests.service.asking import PREDICTION, QUESTION, assert_problem
from tests.waiting import wait_for

Wait = Callable[[], None]
SPAWNING = multiprocessing.get_context("spawn")


class SlowCompilation:
    """Stands for a compilation that takes until it is told to end."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self.fails = False

    def __call__(self) -> None:
        assert self._told.wait(60)
        if self.fails:
            raise RuntimeError("no compiler")

    def end(self) -> None:
        self._told.set()


@pytest.fixture
def compilation(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowCompilation]:
    slow = SlowCompilation()
    monkeypatch.setattr(cost_model, "_SOON_S", 0.1)
    monkeypatch.setattr("service.app.warm_up", slow)
    yield slow
    slow.end()


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of machine code of its own, so that no other test has the lock on it."""
    folder = tmp_path / "machine-code"
    monkeypatch.setattr(cost_model, "machine_code_folders", lambda: CacheFolders([folder]))
    return folder


def readiness(client: TestClient) -> tuple[int, str]:
    answer = client.get("/readyz")
    return answer.status_code, answer.json()["cost_model"]


def wait_until(state: str, client: TestClient) -> None:
    wait_for(lambda: readiness(client)[1] == state)


def test_the_service_lives_before_it_is_ready(make_client, compilation: SlowCompilation) -> None:
    client = make_client()
    assert client.get("/livez").status_code == 200
    assert readiness(client) == (503, "being compiled")
    assert int(client.get("/readyz").headers["retry-after"]) > 0
    compilation.end()
    wait_until("ok", client)
    assert readiness(client) == (200, "ok")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/predictions", PREDICTION),
        ("/v1/recommendations", QUESTION),
        ("/v1/profiles/default/calibrations", {}),
    ],
)
def test_what_predicts_is_refused_if_compiling_takes_long(
    make_client, compilation: SlowCompilation, path: str, body: object
) -> None:
    client = make_client(heavy_wait_s=0.1)
    answer = client.post(path, json=body)
    assert_problem(answer, "overloaded")
    assert "compiled" in answer.json()["detail"]
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("path", ["/v1/recommendations", "/v1/catalog/chips", "/v1/profiles"])
def test_what_is_stored_is_answered_meanwhile(
    make_client, compilation: SlowCompilation, path: str
) -> None:
    assert make_client(heavy_wait_s=0).get(path).status_code == 200


def test_a_service_that_only_loads_is_ready_when_it_listens(
    make_client, compilation: SlowCompilation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_model, "_SOON_S", 30)
    threading.Timer(0.3, compilation.end).start()
    assert readiness(make_client()) == (200, "ok")


def test_a_request_waits_for_the_end_of_compiling(
    make_client, compilation: SlowCompilation
) -> None:
    client = make_client()
    threading.Timer(0.3, compilation.end).start()
    assert client.post("/v1/predictions", json=PREDICTION).status_code == 201


def test_a_cost_model_that_cannot_be_compiled_is_never_ready(
    make_client, compilation: SlowCompilation, caplog: pytest.LogCaptureFixture
) -> None:
    compilation.fails = True
    client = make_client()
    compilation.end()
    wait_until("cannot be compiled", client)
    assert client.get("/readyz").status_code == 503
    assert "no compiler" in caplog.text


def test_one_line_says_where_machine_code_is_kept(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cost_model.compile_cost_model(lambda: None)
    (record,) = caplog.records
    assert record.message == "cost model is compiled"
    assert record.folders == [str(folder)]


def test_one_line_warns_where_nothing_is_kept(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("is no folder")
    cost_model.compile_cost_model(lambda: None)
    (record,) = caplog.records
    assert (record.levelname, record.folders) == ("WARNING", [])


class CompiledOnce:
    """Stands for a cost model that is kept in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self) -> None:
        if self._file.exists():
            return
        if not machine_code._may_compile.get():
            raise NotKept
        self._file.write_text(str(os.getpid()))


def test_a_process_of_its_own_compiles_for_a_service(tmp_path: Path) -> None:
    file = tmp_path / "compiled-by"
    cost_model.compile_cost_model(CompiledOnce(file))
    assert int(file.read_text()) != os.getpid()


def test_what_cannot_be_kept_is_compiled_by_the_service(tmp_path: Path, folder: Path) -> None:
    folder.write_text("is no folder")
    file = tmp_path / "compiled-by"
    cost_model.compile_cost_model(CompiledOnce(file))
    assert int(file.read_text()) == os.getpid()


def _compile_in(folder: Path, began: Event, may_end: Event) -> None:
    def compile_until_told() -> None:
        began.set()
        may_end.wait(60)

    cost_model.machine_code_folders = lambda: CacheFolders([folder])
    cost_model.compile_cost_model(compile_until_told)


@pytest.mark.parametrize(
    "beside",
    [
        threading.Thread,  # which holds the lock of the folder as a process does
        pytest.param(SPAWNING.Process, marks=pytest.mark.long),
    ],
)
def test_processes_that_start_at_once_compile_one_after_the_other(
    folder: Path, beside: Callable[..., Any]
) -> None:
    began, may_end = SPAWNING.Event(), SPAWNING.Event()
    other = beside(target=_compile_in, args=(folder, began, may_end))
    other.start()
    assert began.wait(60)
    own = threading.Event()
    thread = threading.Thread(target=cost_model.compile_cost_model, args=(own.set,))
    thread.start()
    assert not own.wait(0.5)
    may_end.set()
    assert own.wait(60)
    thread.join()
    other.join()
    assert getattr(other, "exitcode", 0) == 0


def test_a_process_that_hangs_holds_up_no_other_for_good(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_model, "_LONGEST_TURN_S", 0.2)
    began, may_end = multiprocessing.Event(), multiprocessing.Event()
    other = threading.Thread(target=_compile_in, args=(folder, began, may_end))
    other.start()
    assert began.wait(60)
    cost_model.compile_cost_model(lambda: None)
    may_end.set()
    other.join()


def test_who_asks_meanwhile_is_told_how_long_it_takes(
    make_client, compilation: SlowCompilation
) -> None:
    client = make_client(heavy_wait_s=0.1)
    client.app.state.services.cost_model._note_progress(Progress(share=0.25, elapsed_s=10.0))
    answer = client.post("/v1/predictions", json=PREDICTION)
    assert_problem(answer, "overloaded")
    assert "about 30 s more" in answer.json()["detail"]


@pytest.mark.long
def test_two_processes_share_the_steps_of_a_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation_in_processes, "_cores", lambda: 2)
    files = [tmp_path / f"step-{number}" for number in range(4)]
    cost_model.compile_cost_model(WarmUp(*map(CompiledOnce, files)))
    compiled_by = [int(file.read_text()) for file in files]
    assert compiled_by[0::2] == [compiled_by[0]] * 2
    assert compiled_by[1::2] == [compiled_by[1]] * 2
    assert len({*compiled_by, os.getpid()}) == 3
