"""Requests the tests vary, where they are asked, and the one shape every error has."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from sqlalchemy import update

from tests.waiting import wait_for

ON_BOTH = pytest.mark.parametrize("databases", ["sqlite", "postgresql"], indirect=True)
"""For tests of what is kept: they run on SQLite and on PostgreSQL, all others on SQLite alone."""
ON_POSTGRESQL_FIRST = pytest.mark.parametrize(
    "databases", ["postgresql", pytest.param("sqlite", marks=pytest.mark.long)], indirect=True
)
"""For those of them that take seconds: among the long tests they run on SQLite too."""

QUESTION: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": {"preset": "h100", "num_chips": 64},
    "workload": {"seq_len": 8192, "global_batch": 128},
    "stack": "torchtitan",
}
LAYOUT: dict[str, Any] = {"dp_shard": 64, "zero_stage": 3, "recompute": "selective"}
PREDICTION: dict[str, Any] = {**QUESTION, "layout": LAYOUT}
LAUNCHED: dict[str, Any] = {
    "launch": {
        "format": "deepspeed",
        "arguments": {
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3},
        },
    },
    "model": "llama-3.1-8b",
    "cluster": {"preset": "h100", "num_chips": 64},
    "workload": {"seq_len": 8192, "global_batch": 128},
}
REPORT: dict[str, Any] = {**PREDICTION, "outcome": "ok", "measured": {"step_time_s": 2.0}}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
"""A config.json of Hugging Face."""
SHAPE: dict[str, Any] = {
    "num_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "vocab_size": 128256,
}
LARGEST: dict[str, Any] = {
    "model": {
        "name": "huge",
        **SHAPE,
        "num_layers": 96,
        "num_key_value_heads": 8,
        "moe": {"num_experts": 240, "experts_per_token": 2, "moe_intermediate_size": 14336},
    },
    "cluster": {"preset": "h100", "num_chips": 60_480},
    "workload": {"seq_len": 4096, "global_batch": 4 * 60_480},
    "stack": "generic",
    "top": 100,
    "tolerance": 1,
    "time_limit_s": 10,
}
"""A question whose search takes as much time and memory as any."""
CHIP: dict[str, Any] = {
    "generation": "hopper",
    "peak_tflops": {"bf16": 800.0},
    "memory_gb": 128,
    "usable_memory_gib": 118,
    "memory_bandwidth_gb_s": 4000,
    "scale_up": {"gb_s_per_chip": 450, "domain": 16},
    "scale_out_gb_s": 50,
}


def scraped(client: Any) -> str:
    """Returns what /metrics tells once the database has answered, for which a scrape waits half a
    second."""
    texts: list[str] = []

    def is_whole() -> bool:
        texts.append(client.get("/metrics").raise_for_status().text)
        return "shardwright_database_up 1.0" in texts[-1]

    wait_for(is_whole)
    return texts[-1]


def store_as_before(client: Any, row: type[Any], document: dict[str, Any]) -> None:
    """Makes a stored answer one of an earlier release, which stored the document in its row."""
    values = {"document": document, "text_key": None}
    with client.app.state.services.store.writing() as rows:
        rows._session.execute(update(row).where(row.id == document["id"]).values(values))


def changed(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """`base` with the value at a dotted path replaced."""
    result = copy.deepcopy(base)
    *steps, last = path.split(".")
    inner = result
    for step in steps:
        inner = inner[step]
    inner[last] = value
    return result


def without(base: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in base.items() if name not in names}


def candidate(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """The layout that a recommendation has under a name, with all that it says of it."""
    position = answer[name]["layout"] if name == "bolder" else answer[name]
    found: dict[str, Any] = answer["layouts"][position]
    return found


def predicted(answer: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = candidate(answer, name)["prediction"]
    return found


def listed(answer: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The layouts of a list of a recommendation: those `ranked`, or on the `front`."""
    return [answer["layouts"][position] for position in answer[name]]


def assert_problem(response: Any, name: str, pointer: str | None = None) -> dict[str, Any]:
    """The canonical error shape (RFC 9457); `pointer` is the place of one of its errors."""
    body = response.json()
    assert response.headers["content-type"] == "application/problem+json", body
    assert body["type"] == f"/problems/{name}", body
    assert body["status"] == response.status_code
    assert response.status_code < 500 or name in (
        "overloaded",
        "unavailable",
        "stopping",
        "internal",
    )
    assert all(
        isinstance(body[member], str) and body[member] for member in ("title", "detail", "instance")
    )
    assert body["request_id"] == response.headers["x-request-id"]
    for error in body.get("errors", []):
        assert error.keys() == {"field", "pointer", "value", "rule"}
        assert len(str(error["value"])) <= 300
        assert error["rule"]
    if pointer is not None:
        assert pointer in [error["pointer"] for error in body["errors"]], body["errors"]
    assert len(response.content) < 100_000
    return body
