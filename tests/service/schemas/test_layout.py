"""Layouts on the wire: knobs that mean nothing are null, and a layout that is sent back is the
same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.layouts.rules import require_legal
from models.spec.constraints import Constraints
from models.spec.layout import TORUS_KNOBS, Layout, Layouts
from models.spec.problem import Problem
from service.schemas.layout import LayoutFields
from service.store.tables import PredictionRow
from tests.benchmarks.problems import problem
from tests.oracles.brute_force import legal
from tests.service.asking import (
    PREDICTION,
    QUESTION,
    assert_problem,
    candidate,
    changed,
    listed,
    store_as_before,
)

PLACES: dict[str, Problem] = {
    "switched": problem("llama-3-8b", ("h100", 4), "megatron", seq_len=4096, global_batch=8),
    "experts": problem("mixtral-8x7b", ("h100", 4), "torchtitan", seq_len=4096, global_batch=8),
    "torus": problem("llama-3-8b", ("tpu-v5p", 8), "maxtext", seq_len=4096, global_batch=8),
    "all forwards first": problem(
        "mixtral-8x7b",
        ("h100", 4),
        "torchtitan",
        seq_len=4096,
        global_batch=8,
        load_balancing="global_batch_loss",
    ),
}
_SAMPLE = 120  # layouts of each place


def some_layouts(question: Problem) -> list[Layout]:
    blocks = Layouts.concatenate(list(legal(question, Constraints(allowed={"micro_batch": (1,)}))))
    rows = np.random.default_rng(0).choice(len(blocks), min(_SAMPLE, len(blocks)), replace=False)
    return [blocks[int(row)] for row in rows]


@pytest.mark.long
@pytest.mark.parametrize("name", PLACES)
def test_a_layout_that_is_sent_back_is_the_same(name: str) -> None:
    question = PLACES[name]
    layouts = some_layouts(question)
    assert {layout.pp > 1 for layout in layouts} == {True, False}
    for layout in layouts:
        shown = LayoutFields.shown(layout, on_torus=question.cluster.is_torus)
        assert shown.build() == layout
        sent = LayoutFields.model_validate_json(shown.model_dump_json())
        assert sent == shown
        settled = sent.with_stack_defaults(question)
        assert settled == shown
        require_legal(question, settled.build())
        whole = LayoutFields.of(layout)
        assert whole.build() == layout
        assert whole.with_stack_defaults(question) == shown


@pytest.mark.long
@pytest.mark.parametrize("name", PLACES)
def test_knobs_that_mean_nothing_are_null_and_no_others(name: str) -> None:
    question = PLACES[name]
    for layout in some_layouts(question):
        shown = LayoutFields.shown(layout, on_torus=question.cluster.is_torus)
        null = {knob for knob in shown.model_dump() if getattr(shown, knob) is None}
        unused = set() if question.cluster.is_torus else set(TORUS_KNOBS)
        if layout.pp == 1:
            unused |= {"virtual_stages"} | ({"schedule"} if layout.schedule == "1f1b" else set())
        assert null == unused


def test_a_null_is_as_if_the_knob_were_left_out() -> None:
    question = PLACES["all forwards first"]
    left_out = LayoutFields(pp=2, dp_shard=2).with_stack_defaults(question)
    null = LayoutFields(
        pp=2, dp_shard=2, schedule=None, virtual_stages=None, torus_axes=None, torus_block=None
    ).with_stack_defaults(question)
    assert null == left_out
    assert left_out.schedule == "afab"


def test_a_knob_that_cannot_be_is_not_passed_over(shared_client) -> None:
    wrong: dict[str, Any]
    for wrong in ({"virtual_stages": 2}, {"torus_block": 4}, {"torus_axes": ["x", "y", "z"]}):
        body = {**QUESTION, "layout": {"dp_shard": 64, **wrong}}
        (knob,) = wrong
        answer = shared_client.post("/v1/predictions", json=body)
        assert_problem(answer, "invalid", f"/layout/{knob}")


def test_what_means_nothing_may_be_said_all_the_same(shared_client) -> None:
    said = {
        "schedule": "1f1b",
        "virtual_stages": 1,
        "torus_axes": ["z", "y", "x"],
        "torus_block": 1,
    }
    one, other = (
        shared_client.post("/v1/predictions", json={**QUESTION, "layout": layout}).json()
        for layout in ({"dp_shard": 64}, {"dp_shard": 64, **said})
    )
    assert one["layouts"] == other["layouts"]
    assert one["assumptions"] == other["assumptions"]
    assert {one["layouts"][0]["layout"][knob] for knob in said} == {None}


def layouts_in(document: Any) -> list[dict[str, Any]]:
    """Every layout anywhere in a document."""
    if isinstance(document, list):
        return [layout for item in document for layout in layouts_in(item)]
    if not isinstance(document, dict):
        return []
    if "dp_shard" in document and "zero_stage" in document:
        return [document]
    return [layout for value in document.values() for layout in layouts_in(value)]


TORUS = {
    **changed(QUESTION, "stack", "maxtext"),
    "cluster": {"preset": "tpu-v5p", "num_chips": 64},
}
LARGE = {**changed(QUESTION, "stack", "megatron"), "model": "llama-3-70b"}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/recommendations", QUESTION),
    ("/v1/recommendations", LARGE),
    ("/v1/recommendations", TORUS),
    ("/v1/predictions", PREDICTION),
    ("/v1/frontiers", {**QUESTION, "grid": {"scale_out": [1]}}),
    ("/v1/frontiers", {**TORUS, "grid": {"layers": [1]}}),
    ("/v1/comparisons", {**QUESTION, "first": {"constraints": {"pp": 2}}}),
    ("/v1/comparisons", {**TORUS, "first": {"constraints": {"tp": 2}}}),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_answers_have_only_knobs_that_mean_something(
    shared_client, path: str, body: dict[str, Any]
) -> None:
    answer = shared_client.post(path, json=body)
    assert answer.status_code < 300, answer.text
    own = {name: value for name, value in answer.json().items() if name != "evidence"}
    found = layouts_in(own)
    assert found
    for layout in found:
        assert (layout["torus_axes"] is None) == (body["cluster"]["preset"] == "h100")
        assert (layout["torus_block"] is None) == (layout["torus_axes"] is None)
        assert (layout["schedule"] is None) == (layout["pp"] == 1)
        assert (layout["virtual_stages"] is None) == (layout["pp"] == 1)
    for layout in layouts_in(answer.json().get("evidence")):
        assert (layout["schedule"] is None) == (layout["pp"] == 1)


@pytest.mark.parametrize("body", [QUESTION, LARGE, TORUS])
def test_a_recommended_layout_is_predicted_as_it_was(shared_client, body: dict[str, Any]) -> None:
    found = shared_client.post("/v1/recommendations", json=body).json()
    shown = [candidate(found, "fastest"), candidate(found, "simplest"), *listed(found, "ranked")]
    layouts = [one["prediction"]["layout"] for one in shown]
    predicted = shared_client.post("/v1/predictions", json={**body, "layouts": layouts}).json()
    assert predicted["layouts"] == [one["prediction"] for one in shown]
    assert not any("the stack's own" in line for line in predicted["assumptions"])


def with_all_knobs(layout: dict[str, Any]) -> dict[str, Any]:
    """As answers had it before knobs could be null."""
    return LayoutFields.of(LayoutFields.model_validate(layout).build()).model_dump(mode="json")


def test_what_was_stored_with_all_knobs_is_the_same_run_as_what_has_nulls(client) -> None:
    """Of a run that is reported before and after, the last report counts."""
    made = client.post("/v1/predictions", json=PREDICTION).json()
    (one,) = made["layouts"]
    older = [{**one, "layout": with_all_knobs(one["layout"])}]
    store_as_before(client, PredictionRow, {**made, "layouts": older})
    assert older[0]["layout"]["schedule"] == "1f1b"
    address = f"/v1/predictions/{made['id']}"
    assert client.get(address).json()["layouts"] == older
    assert client.get(f"{address}/timeline").status_code == 200
    failed = {"outcome": "out_of_memory"}
    reports = [
        client.post("/v1/reports", json={"prediction_id": made["id"], **failed}).json(),
        client.post("/v1/reports", json={**PREDICTION, **failed}).json(),
    ]
    assert {one["prediction"]["layout"]["schedule"] for one in reports} == {None}
    with client.app.state.services.store.reading() as rows:
        assert len({row.run_hash for row in rows.reports.by_ids([r["id"] for r in reports])}) == 1
    (known,) = client.post("/v1/predictions", json=PREDICTION).json()["out_of_memory"]
    assert known["layout"] == reports[1]["prediction"]["layout"]
    assert client.post("/v1/profiles/default/versions/1/replay").status_code == 200
