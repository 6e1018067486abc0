from __future__ import annotations

import gzip
import json
import math

import pytest
from httpx import Response
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from service.errors import MalformedBody
from service.learning.report_texts import parse_batch
from service.web.json_text import MAX_DEPTH, decode_utf8, parse
from tests.service.asking import CONFIG, PREDICTION, assert_problem, changed

MALFORMED = {
    "nothing closed": b'{"model": ',
    "brackets": b"[" * 100_000,
    "objects": b'{"a":' * 100_000,
    "depth": b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    "digits": b'{"a":' + b"1" * 10_000 + b"}",
    "invalid utf-8": b'{"model": "\xff\xfe"}',
    "utf-16": json.dumps(PREDICTION).encode("utf-16"),
    "lone surrogate": b'{"model": "\\ud800"}',
    "nul": b'{"model": "a\\u0000b"}',
    "nul in a name": b'{"a\\u0000b": 1}',
    "raw control character": b'{"model": "a\nb"}',
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "overflow": b'{"a": 1e999}',
    "repeated name": b'{"model": "a", "model": "b"}',
    "many members": b"{" + b",".join(b'"k%d":1' % i for i in range(30_000)) + b"}",
    "many arrays": b"[" + b"[]," * 1_000_000 + b"1]",
    "two texts": b"{} {}",
    "comment": b"{/* */}",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_not_json_is_refused(shared_client, name: str) -> None:
    headers = {"content-type": "application/json"}
    assert_problem(
        shared_client.post("/v1/predictions", content=MALFORMED[name], headers=headers),
        "malformed-body",
    )


def test_reports_of_a_batch_may_have_many_members_together() -> None:
    """They are read one by one, where nobody else waits."""
    reports = [{f"k{i}": 1 for i in range(1000)}] * 101
    assert len(parse_batch(json.dumps({"reports": reports}))["reports"]) == 101
    with pytest.raises(MalformedBody, match="together"):
        parse_batch(json.dumps({"layouts": reports}))


def test_what_a_quantization_config_says_of_each_module_is_left_out() -> None:
    """A mixed-precision checkpoint lists all its modules, and no reader needs them."""
    modules = {f"model.layers.{i}.mlp.experts.{i}": {"quant_algo": "FP8"} for i in range(150_000)}
    config = {
        "quant_method": "modelopt",
        "quantized_layers": modules,
        "modules_to_not_convert": [*modules],
        "ignore": ["lm_head"],
    }
    body = {"model": {"model_type": "llama", "quantization_config": config}}
    read = parse(json.dumps(body))["model"]["quantization_config"]
    assert read == {"quant_method": "modelopt", "ignore": ["lm_head"]}


def sent(client: TestClient, body: dict) -> Response:
    """As Python writes it, which is not always JSON."""
    headers = {"content-type": "application/json"}
    return client.post("/v1/predictions", content=json.dumps(body), headers=headers)


def test_a_config_as_python_writes_it_reaches_its_reader(shared_client) -> None:
    config = {"model_type": "jamba", "time_step_limit": [0.0, math.inf], "hidden_size": 8192}
    assert_problem(
        sent(shared_client, changed(PREDICTION, "model", config)),
        "unsupported",
        "/model/model_type",
    )
    odd = {**CONFIG, "rope_scaling": {"factor": math.nan}, "time_step_limit": [0.0, math.inf]}
    answer = sent(shared_client, changed(PREDICTION, "model", odd))
    assert answer.is_success
    assert answer.json()["request"]["model"]["time_step_limit"] == [0.0, "Infinity"]
    wrong = sent(shared_client, changed(PREDICTION, "model", {**CONFIG, "vocab_size": math.inf}))
    found = assert_problem(wrong, "invalid", "/model/vocab_size")
    assert found["errors"][0]["value"] == "Infinity"


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("model", "/model/num_layers"),
        ("workload", "/workload/num_layers"),
        ("layout", "/layout/num_layers"),
    ],
)
def test_a_number_outside_the_configuration_of_a_model_must_be_finite(
    shared_client, path: str, pointer: str
) -> None:
    answer = sent(shared_client, changed(PREDICTION, path, {"num_layers": -math.inf}))
    assert f"-Infinity at {pointer}," in assert_problem(answer, "malformed-body")["detail"]


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/json; charset=latin-1", "nonsense", ""]
)
def test_other_media_types_are_refused(shared_client, media_type: str) -> None:
    body = json.dumps(PREDICTION).encode()
    answer = shared_client.post(
        "/v1/predictions", content=body, headers={"content-type": media_type}
    )
    assert answer.status_code == 415
    assert_problem(answer, "unsupported-media-type")


def test_a_compressed_body_is_refused_as_such(shared_client) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = shared_client.post(
        "/v1/predictions", content=gzip.compress(json.dumps(PREDICTION).encode()), headers=headers
    )
    assert answer.status_code == 415
    assert "encoded as gzip" in assert_problem(answer, "unsupported-media-type")["detail"]


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=UTF-8", "application/vnd.x+json"]
)
def test_json_by_another_name_is_read(shared_client, media_type: str) -> None:
    body = json.dumps(PREDICTION).encode()
    headers = {"content-type": media_type}
    assert shared_client.post("/v1/predictions", content=body, headers=headers).is_success


@pytest.mark.parametrize(
    ("length", "is_read"),
    [("4096.0", True), ("4.096e3", True), ("4096.5", False), ('"4096"', False)],
)
def test_a_number_without_a_fraction_is_an_integer(
    shared_client, length: str, is_read: bool
) -> None:
    body = json.dumps(PREDICTION).replace(
        f'"seq_len": {PREDICTION["workload"]["seq_len"]}', f'"seq_len": {length}'
    )
    answer = shared_client.post(
        "/v1/predictions", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code in ((200, 201) if is_read else (422,))
    if is_read:
        assert answer.json()["request"]["workload"]["seq_len"] == 4096


def test_a_missing_body_is_said_to_be_required(shared_client) -> None:
    assert_problem(shared_client.post("/v1/predictions"), "invalid", "")


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        value = parse(decode_utf8(body))
    except MalformedBody:
        return
    assert json.loads(json.dumps(value, allow_nan=False).encode()) == value


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(st.characters(exclude_categories=["Cs"])),
        st.lists,
    )
)
def test_json_is_read_as_it_is(value: object) -> None:
    if "\\u0000" not in json.dumps(value):
        assert parse(json.dumps(value)) == value
