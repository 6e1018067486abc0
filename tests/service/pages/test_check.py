from __future__ import annotations

import html
import re

import pytest
from starlette.testclient import TestClient

from service.pages.check import EXAMPLE
from service.pages.check_answer import first_change, settings_read
from service.pages.numbers import seconds
from tests.service.pages.questions import HOSTILE
from tests.service.pages.test_ask import data_of

_TORCHTITAN = """\
NGPU=8 torchrun --nproc_per_node=8 --nnodes=8 -m torchtitan.train \\
  --module llama3 --config llama3_8b \\
  --training.seq_len 8192 --training.local_batch_size 1 --training.global_batch_size 128 \\
  --parallelism.tensor_parallel_degree 8 --parallelism.data_parallel_shard_degree -1
"""
_MAXTEXT = """\
python3 -m MaxText.train MaxText/configs/base.yml model_name=llama3.1-8b per_device_batch_size=2 \\
  max_target_length=8192 ici_tensor_parallelism=8 ici_fsdp_parallelism=8 remat_policy=full
"""
_SEARCHED = ("best", "first_change", "warnings", "summary")
"""Members of a check that depend on how far a search comes within half a second."""
SCRIPTS = {
    "megatron": (EXAMPLE, {"cluster": "h100"}),
    "torchtitan": (_TORCHTITAN, {"cluster": "h100", "chips": "64", "model": "llama-3.1-8b"}),
    "maxtext": (_MAXTEXT, {"cluster": "v5p", "chips": "64", "model": "llama-3.1-8b"}),
}


def post(client: TestClient, **fields: str):
    page = client.get("/check")
    token = re.findall(r'name="form_token" value="([\w-]+)"', page.text)[0]
    return client.post("/check", data={**fields, "form_token": token})


def check(client: TestClient, text: str, fields: dict[str, str]) -> dict:
    cluster = {"preset": fields["cluster"]}
    if "chips" in fields:
        cluster["num_chips"] = int(fields["chips"])
    body = {"launch": {"arguments": text}, "cluster": cluster}
    if "model" in fields:
        body["model"] = fields["model"]
    answer = client.post("/v1/checks", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_page_shows_the_check_that_the_api_gives(shared_client: TestClient, name: str) -> None:
    text, fields = SCRIPTS[name]
    page = post(shared_client, script=text, **fields)
    expected = check(shared_client, text, fields)
    shown_check = data_of(page.text)["check"]
    for found in (shown_check, expected):
        for member in _SEARCHED:
            found.pop(member)
    assert shown_check == expected
    shown = html.unescape(page.text)
    assert seconds(expected["prediction"]["step_time_s"]) in shown
    for reservation in expected["reservations"]:
        assert reservation["reason"] in shown


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_with_the_first_change_is_what_was_predicted_of_it(
    shared_client: TestClient, name: str
) -> None:
    text, fields = SCRIPTS[name]
    checked = check(shared_client, text, fields)
    change = first_change(checked, text)
    if change is None:
        assert checked["first_change"] is None
        return
    assert not change["left"]
    after = check(shared_client, change["text"], fields)
    expected = checked["first_change"]["step_time_s"]
    assert after["prediction"]["step_time_s"] == pytest.approx(expected)


def test_each_setting_stands_on_the_line_that_is_named(shared_client: TestClient) -> None:
    rows = settings_read(check(shared_client, EXAMPLE, {"cluster": "h100"}), EXAMPLE)
    lines = EXAMPLE.splitlines()
    by_label = {row.label: row for row in rows}
    assert "--tensor-model-parallel-size 8" in lines[by_label["tensor parallel (TP)"].line - 1]
    assert "--global-batch-size 128" in lines[by_label["global batch"].line - 1]
    padded = by_label["vocab size"]
    assert "--vocab-size 128256" in lines[padded.line - 1]
    assert padded.value == "129024, padded from 128256"
    assert "--hidden-size 4096" in lines[by_label["hidden size"].line - 1]
    assert by_label["pipeline parallel (PP)"].line is None


def test_what_was_not_understood_is_marked_where_it_stands(shared_client: TestClient) -> None:
    text = EXAMPLE.replace("--bf16", "--bf16 --no-such-option 3")
    page = post(shared_client, script=text, cluster="h100")
    marked = re.findall(r'<span class="line marked" id="line-(\d+)">', page.text)
    assert marked == ["3"]


def test_a_form_without_our_token_is_not_answered(shared_client: TestClient) -> None:
    answer = shared_client.post("/check", data={"script": EXAMPLE, "cluster": "h100"})
    assert answer.status_code == 403
    assert "did not come from a page of this service" in answer.text


@pytest.mark.parametrize("script", ["", "echo hello", "\0", HOSTILE, "a" * 70000])
def test_a_text_that_is_no_launch_is_refused_in_a_sentence(
    shared_client: TestClient, script: str
) -> None:
    page = post(shared_client, script=script, cluster="h100")
    assert page.status_code == 422
    assert 'role="alert"' in page.text
    assert "<img" not in page.text


def test_a_hostile_setting_is_shown_as_text(shared_client: TestClient) -> None:
    text = EXAMPLE.replace("--bf16", f"--bf16 --no-such-option '{HOSTILE[:-1]}'")
    page = post(shared_client, script=text, cluster="h100")
    assert "<img" not in page.text
    assert HOSTILE[:20] not in page.text


def test_nothing_that_was_checked_is_stored(shared_client: TestClient) -> None:
    before = shared_client.get("/v1/checks").json()
    post(shared_client, script=EXAMPLE, cluster="h100")
    assert shared_client.get("/v1/checks").json() == before
