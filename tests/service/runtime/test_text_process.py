"""Large texts are read by another process, with the same answers and errors, in little memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from models.errors import Invalid
from service.runtime.text_process import MAX_INLINE_CHARACTERS, TextProcess
from tests.paths import ROOT
from tests.service.asking import PREDICTION, QUESTION, assert_problem, changed

_AT_MOST_BYTES = 100 * 2**20
"""So that six searches at once and this process stay below 600 MiB."""
_READERS = """
import sys
import service.runtime.processes, service.runtime.text_process
from service.formats.logs.contents import read_contents
from service.formats.tables.nccl_tests_output import read_output
from service.learning.report_texts import parse_batch
from service.web.json_text import parse_body
parse_body(b'{"reports": [{}]}', parse_batch), read_contents("nothing", None, None)
print(open("/proc/self/statm").read().split()[1], *sys.modules)
"""
"""Reads one of each kind, and says what was imported, after the pages in memory."""
_STEPS = "\n".join(
    f" iteration {step:8d}/     100 | elapsed time per iteration (ms): 2000.0 | global batch size:"
    "   128 |"
    for step in range(20, 60)
)


async def nobody_left() -> bool:
    return False


def process_of(text: str) -> int:
    return os.getpid()


def refuses(text: str) -> None:
    raise Invalid("log", len(text), "is refused")


def read(client, reader, characters: int):
    texts: TextProcess = client.app.state.services.texts
    return client.portal.call(texts.read, nobody_left, None, reader, "x" * characters)


def test_short_texts_stay_and_long_ones_go(shared_client) -> None:
    assert read(shared_client, process_of, MAX_INLINE_CHARACTERS) == os.getpid()
    there = read(shared_client, process_of, MAX_INLINE_CHARACTERS + 1)
    assert there != os.getpid()
    assert read(shared_client, process_of, MAX_INLINE_CHARACTERS + 1) == there


def test_a_refusal_comes_back_as_it_was_raised(shared_client) -> None:
    with pytest.raises(Invalid) as here:
        read(shared_client, refuses, 1)
    with pytest.raises(Invalid) as there:
        read(shared_client, refuses, MAX_INLINE_CHARACTERS + 1)
    assert there.value.rule == here.value.rule
    assert there.value.value == MAX_INLINE_CHARACTERS + 1
    assert str(there.value) == f"log = {MAX_INLINE_CHARACTERS + 1}: is refused"


def test_what_the_process_imports_predicts_nothing_and_is_small() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _READERS], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    pages, *modules = found.split()
    assert "service.formats.logs.contents" in modules
    assert not {"numba", "sqlalchemy", "fastapi", "models.cost"} & {*modules}
    assert int(pages) * os.sysconf("SC_PAGE_SIZE") < _AT_MOST_BYTES


def test_a_long_log_is_answered_as_a_short_one_is(shared_client) -> None:
    run = {name: PREDICTION[name] for name in (*QUESTION, "layout")}
    run = changed(run, "stack", "megatron")
    short = shared_client.post("/v1/reports/logs", json={**run, "log": _STEPS}).json()
    padding = "\n".join(["an ordinary line"] * 20_000)
    long = shared_client.post("/v1/reports/logs", json={**run, "log": f"{padding}\n{_STEPS}"})
    assert long.status_code == 201, long.text
    assert long.json()["reading"] == short["reading"]
    assert long.json()["notes"] == short["notes"]


def test_an_answer_says_that_a_line_was_cut(shared_client) -> None:
    run = changed({name: PREDICTION[name] for name in (*QUESTION, "layout")}, "stack", "megatron")
    log = f"{'7' * 100_000}\n{_STEPS}"
    made = shared_client.post("/v1/reports/logs", json={**run, "log": log}).json()
    assert "1 line is longer than 65536 characters" in made["notes"][-1]
    refused = shared_client.post("/v1/reports/logs", json={**run, "log": "7" * 100_000})
    assert_problem(refused, "invalid")
    assert "longer than 65536 characters" in refused.json()["errors"][0]["rule"]
    explained = shared_client.post("/v1/explanations", json={**run, "log": log}).json()
    assert "cut_lines" in [one["code"] for one in explained["log"]["observations"]]


def test_a_malformed_large_body_is_refused_as_a_small_one_is(shared_client) -> None:
    headers = {"content-type": "application/json"}
    body = b'{"model": "' + b"a" * 2**19 + b'", }'
    refused = shared_client.post("/v1/predictions", content=body, headers=headers)
    assert_problem(refused, "malformed-body")
