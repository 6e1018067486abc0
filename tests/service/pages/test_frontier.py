from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from models.spec import catalogue
from service.pages.frontier_form import AXES, pins
from tests.service.pages.questions import FORM, HOSTILE
from tests.service.pages.test_ask import data_of
from tests.service.processes import starting
from tests.waiting import wait_for

_GRID = {"x": "domain", "y": "scale_up", "x_values": "8, 16, 64", "y_values": "1, 2"}
_MANY = ",".join(map(str, range(8, 360, 8)))
_BODY: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": {"preset": "h100", "num_chips": 64},
    "workload": {"seq_len": 8192, "global_batch": 128, "precision": "bf16"},
    "stack": "torchtitan",
    "grid": {"domain": [8, 16, 64], "scale_up": [1, 2]},
}


def events_of(text: str) -> list[tuple[str, Any]]:
    """The events of a stream: their names and documents."""
    found = []
    for block in filter(None, text.split("\n\n")):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        found.append((fields["event"], json.loads(fields["data"])))
    return found


def test_the_points_of_the_events_are_those_of_the_api(shared_client: TestClient) -> None:
    stream = shared_client.get("/frontier/events", params={**FORM, **_GRID})
    assert stream.headers["content-type"].startswith("text/event-stream")
    *parts, (kind, answer) = events_of(stream.text)
    expected = shared_client.post("/v1/frontiers", json=_BODY).json()
    assert (kind, answer["points"]) == ("answer", expected["points"])
    assert answer["crossings"] == expected["crossings"]
    assert answer["reasons"] == expected["reasons"]
    assert len(parts) == 3  # one for each domain
    points = [point for _, document in parts for point in document["points"]]
    assert sorted(points, key=str) == sorted(expected["points"], key=str)


@pytest.mark.parametrize("axes", [("scale_up", "scale_out"), ("layers", "num_chips")])
def test_each_pair_of_axes_can_be_drawn(shared_client: TestClient, axes: tuple[str, str]) -> None:
    sent = {**FORM, "x": axes[0], "y": axes[1]}
    stream = shared_client.get("/frontier/events", params=sent)
    kind, answer = events_of(stream.text)[-1]
    assert kind == "answer"
    assert len(answer["points"]) == len(AXES[axes[0]].values) * len(AXES[axes[1]].values)


def test_without_scripts_a_link_leads_to_the_table(shared_client: TestClient) -> None:
    page = shared_client.get("/frontier", params={**FORM, **_GRID})
    assert "whole=1" in page.text
    whole = shared_client.get("/frontier", params={**FORM, **_GRID, "whole": "1"})
    assert whole.text.count('<th scope="row">') == 6
    assert data_of(whole.text)["answer"]["points"]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"x": "speed"}, "must be one of domain"),
        ({"y": "domain"}, "must be another axis"),
        ({"x_values": "eight"}, "grid.domain"),
        ({"x_values": ",".join(map(str, range(1, 300)))}, "above 400"),
        ({"cluster": HOSTILE}, "cluster.preset"),
    ],
)
def test_a_wrong_field_is_told(
    shared_client: TestClient, changed: dict[str, str], sentence: str
) -> None:
    sent = {**FORM, **_GRID, **changed}
    page = shared_client.get("/frontier", params={**sent, "whole": "1"})
    assert page.status_code == 422
    assert sentence in page.text
    assert "<img" not in page.text
    kind, document = events_of(shared_client.get("/frontier/events", params=sent).text)[-1]
    assert kind == "trouble"
    assert sentence in " ".join(document["sentences"])


def test_every_chip_with_a_switched_domain_is_pinned_once() -> None:
    names = [name for pin in pins() for name in pin["names"]]
    assert len(names) == len(set(names))
    chips = {chip.id: chip for chip in catalogue.chips().values()}
    assert {"h100-sxm-80gb", "gb200-nvl72"} <= set(names)
    for pin in pins():
        for name in pin["names"]:
            inner = chips[name].fabric.levels[0]
            assert (inner.size, inner.gb_s_per_chip) == (pin["domain"], pin["gb_s"])


def test_who_leaves_the_page_stops_the_search(database_url: str) -> None:
    large = {**FORM, "model": "deepseek-v3", "cluster": "h800", "chips": "2048",
             "batch": "15360", "stack": "megatron", "x": "domain", "y": "scale_up",
             "x_values": _MANY, "y_values": "0.5,1,2,4,8"}  # fmt: skip
    with starting(database_url) as service:
        service.read_address()
        service.wait_until_ready()
        with httpx.stream(
            "GET", f"{service.address}/frontier/events", params=large, timeout=60
        ) as stream:
            lines = stream.iter_lines()  # to be held: a reader that is let go closes the connection
            next(lines)
            wait_for(lambda: _running(service.address) == 1)
        ends = time.monotonic() + 5
        while _running(service.address) and time.monotonic() < ends:
            time.sleep(0.1)
        assert _running(service.address) == 0


def _running(address: str) -> int:
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if _is_running(line)))


def _is_running(line: str) -> bool:
    return line.startswith("shardwright_queue_running") and "searches" in line
