from __future__ import annotations

from typing import Any

import pytest

from service.resolve.resolution import ResolvedQuestion, Resolver
from service.schemas.question import Question
from tests.service.asking import CHIP, PREDICTION, QUESTION, SHAPE, assert_problem, changed


@pytest.fixture
def resolve(client):
    store = client.app.state.services.store

    def resolved(question: dict[str, Any]) -> ResolvedQuestion:
        with store.reading() as rows:
            return Resolver(rows).resolve(Question.model_validate(question))

    return resolved


@pytest.mark.parametrize("model", ["llama-3.1-8b", SHAPE], ids=["named", "described"])
def test_questions_of_one_job_have_their_model_cluster_and_stack_in_common(resolve, model) -> None:
    asked = changed(QUESTION, "model", model)
    one, other = (
        resolve(changed(asked, "workload.global_batch", batch)).problem for batch in (128, 256)
    )
    assert one.workload != other.workload
    assert one.architecture is other.architecture
    assert one.cluster is other.cluster
    assert one.stack is other.stack


@pytest.mark.parametrize(
    ("path", "value", "part"),
    [
        ("model", "llama-3.1-70b", "architecture"),
        ("cluster.num_chips", 128, "cluster"),
        ("cluster.usd_per_chip_hour", 3.5, "cluster"),
        ("stack", {"name": "torchtitan", "launch": "eager"}, "stack"),
    ],
)
def test_a_part_in_other_words_is_another(resolve, path: str, value: object, part: str) -> None:
    one = resolve(QUESTION)
    other = resolve(changed(changed(QUESTION, path, value), "workload.global_batch", 256))
    assert getattr(one.problem, part) != getattr(other.problem, part)
    assert one.used != other.used or one.request != other.request


def test_a_part_is_resolved_again_once_its_name_means_another_version(client, resolve) -> None:
    memories = []
    for memory_gb in (128, 256):
        entry = {"name": "mine", "chip": {**CHIP, "memory_gb": memory_gb}}
        assert client.post("/v1/catalog/chips", json=entry).status_code == 201
        found = resolve(changed(QUESTION, "cluster.preset", "mine"))
        memories.append((found.used.chip.version, found.problem.cluster.chip.memory_gb))
    assert memories == [(1, 128), (2, 256)]


def test_an_object_with_nothing_but_a_name_is_the_model_of_that_name(shared_client) -> None:
    by_name = shared_client.post("/v1/predictions", json=changed(PREDICTION, "model", "qwen3-8b"))
    as_object = changed(PREDICTION, "model", {"name": "qwen3-8b"})
    answer = shared_client.post("/v1/predictions", json=as_object).json()
    assert answer["catalogue"] == by_name.json()["catalogue"]
    assert answer["request"]["model"] == "qwen3-8b"
    unknown = shared_client.post(
        "/v1/predictions", json=changed(PREDICTION, "model", {"name": "qwen3-8"})
    )
    (error,) = assert_problem(unknown, "unknown-name", "/model/name")["errors"]
    assert "the nearest known are qwen3-8b" in error["rule"]
