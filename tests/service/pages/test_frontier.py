from __future__ import annotations

import html
import json
import re
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from models.spec import catalogue
from service.pages.frontier_answer import title
from service.pages.frontier_form import AXES
from service.pages.frontier_pins import pins
from service.pages.published_runs import fastest_by_chip
from tests.docs.examples import served
from tests.service.pages.questions import FORM, HOSTILE
from tests.service.pages.test_ask import data_of
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
    *parts, (kind, answer), (last, _) = events_of(stream.text)
    expected = shared_client.post("/v1/frontiers", json=_BODY).json()
    assert last == "title"
    assert (kind, answer["points"]) == ("answer", expected["points"])
    assert answer["crossings"] == expected["crossings"]
    assert answer["reasons"] == expected["reasons"]
    assert len(parts) == 3  # one for each domain
    points = [point for _, document in parts for point in document["points"]]
    assert sorted(points, key=str) == sorted(expected["points"], key=str)


@pytest.mark.parametrize(
    "axes",
    [("scale_up", "scale_out"), pytest.param(("layers", "num_chips"), marks=pytest.mark.long)],
)
def test_each_pair_of_axes_can_be_drawn(shared_client: TestClient, axes: tuple[str, str]) -> None:
    sent = {**FORM, "x": axes[0], "y": axes[1]}
    stream = shared_client.get("/frontier/events", params=sent)
    kind, answer = events_of(stream.text)[-2]
    assert kind == "answer"
    assert len(answer["points"]) == len(AXES[axes[0]].values) * len(AXES[axes[1]].values)


def test_without_scripts_a_link_leads_to_the_table(shared_client: TestClient) -> None:
    page = shared_client.get("/frontier", params={**FORM, **_GRID})
    assert "whole=1" in page.text
    whole = shared_client.get("/frontier", params={**FORM, **_GRID, "whole": "1"})
    table = whole.text.split('<table id="points" class="roomy">')[1].split("</table>")[0]
    assert table.count('<th scope="row">') == 6
    assert data_of(whole.text)["answer"]["points"]


def answer_with(*gaps: float | None, need: str = "no") -> dict[str, Any]:
    """Returns an answer over domains of 8 to 32 chips and two bandwidths, with these gaps."""
    places = [(domain, times) for domain in (8, 16, 32) for times in (1, 2)]
    points = [
        {"at": {"domain": domain, "scale_up": times}, "gap": gap, "exact": True,
         "without_s": None if gap is None else 1 + gap, "with_s": 1.0, "pipeline_needed": need}
        for (domain, times), gap in zip(places, gaps, strict=True)
    ]  # fmt: skip
    links = [{"kind": "switch", "scale": "up", "gb_s": 450.0}]
    return {"points": points, "catalogue": {"fabric": {"links": links}}}


@pytest.mark.parametrize(
    ("gaps", "words"),
    [
        ((0.5, 0.5, 0.5, 0.02, 0.5, 0.01), "longer in domains of 16 chips and more, at 900 GB/s"),
        ((0.5, 0.5, 0.01, 0.02, 0.02, 0.01), "longer in domains of 16 chips and more, at 450 GB/s"),
        ((0.5, 0.5, 0.5, 0.5, None, 0.03), "longer in domains of 32 chips and more, at 900 GB/s"),
        ((0.0,) * 6, "longer everywhere in this picture"),
        ((0.0, 0.5, 0.5, 0.5, 0.5, 0.5), "longer at 1 of 6 points"),
        ((None, 0.5, 0.5, 0.5, 0.5, 0.5), "over 3% longer everywhere"),
    ],
)
def test_the_title_names_where_a_pipeline_can_be_left_away(
    gaps: tuple[float | None, ...], words: str
) -> None:
    grid = {"domain": [8, 16, 32], "scale_up": [1, 2]}
    assert words in title(answer_with(*gaps), grid, 0.03)


@pytest.mark.parametrize(("need", "is_said"), [("no", False), ("undecided", True)])
def test_the_title_says_where_no_point_that_it_names_is_decided(need: str, is_said: bool) -> None:
    grid = {"domain": [8, 16, 32], "scale_up": [1, 2]}
    words = title(answer_with(0.5, 0.5, 0.5, 0.02, 0.5, 0.01, need=need), grid, 0.03)
    assert ("leave open" in words) == is_said


def test_every_point_that_the_title_names_is_within_the_tolerance(
    shared_client: TestClient,
) -> None:
    answer = shared_client.post("/v1/frontiers", json=_BODY).json()
    words = title(answer, _BODY["grid"], 0.03)
    limits = re.search(r"in domains of (\d+) chips and more, at ([\d,]+) GB/s and more", words)
    assert limits is not None or "everywhere" in words
    domain, gb_s = (0, 0) if limits is None else (int(limits[1]), int(limits[2].replace(",", "")))
    (link,) = [one for one in answer["catalogue"]["fabric"]["links"] if one["scale"] == "up"]
    for point in answer["points"]:
        place = point["at"]
        if place["domain"] >= domain and place["scale_up"] * link["gb_s"] >= gb_s:
            assert point["gap"] is None or point["gap"] <= 0.03


def test_published_runs_of_the_model_stand_beside_the_picture(shared_client: TestClient) -> None:
    sent = {**FORM, **_GRID, "model": "deepseek-v3", "cluster": "h800", "chips": "1024",
            "stack": "megatron", "batch": "4096"}  # fmt: skip
    page = shared_client.get("/frontier", params=sent)
    runs = fastest_by_chip(shared_client.app.state.services, "deepseek-v3")
    assert len({row.chip for row in runs}) == len(runs) > 3
    shown = html.unescape(page.text)
    for row in runs:
        assert row.hardware in shown
        assert row.run["source"]["title"] in shown
    listed = shared_client.get(
        "/v1/evidence", params={"model": "deepseek-v3", "exact": True, "outcome": "ok", "limit": 50}
    ).json()["items"]
    for run in listed:
        of_chip = [row for row in runs if row.chip == run["cluster"].get("chip")]
        assert all(row.speed >= run["measured"]["tokens_per_s_per_chip"] for row in of_chip)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"x": "speed"}, "must be one of domain"),
        ({"y": "domain"}, "must be another axis"),
        ({"x_values": "eight"}, "chips in a scale-up domain"),
        ({"x_values": ",".join(map(str, range(1, 300)))}, "above 400"),
        ({"cluster": HOSTILE}, "chip or machine"),
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


def test_every_published_run_is_pinned_where_its_links_lie(shared_client: TestClient) -> None:
    for model in ("deepseek-v3", "llama-3.1-8b"):
        runs = fastest_by_chip(shared_client.app.state.services, model)
        switched = {row for row, run in enumerate(runs) if run.domain != "torus"}
        pinned = [(pin, run) for pin in pins(runs) for run in pin["runs"]]
        assert sorted(run["row"] for _, run in pinned) == sorted(switched)
        assert switched
        for pin, run in pinned:
            links = f"{pin['domain']:,} chips at {pin['gb_s']:,.0f} GB/s"
            assert links == runs[run["row"]].domain
            assert run["stages"] == runs[run["row"]].run["layout"]["pp"]


def test_every_chip_with_a_switched_domain_is_pinned_once() -> None:
    names = [name for pin in pins([]) for name in pin["names"]]
    assert len(names) == len(set(names))
    chips = {chip.id: chip for chip in catalogue.chips().values()}
    assert {"h100-sxm-80gb", "gb200-nvl72"} <= set(names)
    for pin in pins([]):
        for name in pin["names"]:
            inner = chips[name].fabric.levels[0]
            assert (inner.size, inner.gb_s_per_chip) == (pin["domain"], pin["gb_s"])


@pytest.mark.long
def test_who_leaves_the_page_stops_the_search(database_url: str) -> None:
    large = {**FORM, "model": "deepseek-v3", "cluster": "h800", "chips": "2048",
             "batch": "15360", "stack": "megatron", "x": "domain", "y": "scale_up",
             "x_values": _MANY, "y_values": "0.5,1,2,4,8"}  # fmt: skip
    with served(database_url) as address:
        with httpx.stream("GET", f"{address}/frontier/events", params=large, timeout=60) as stream:
            lines = stream.iter_lines()  # to be held: a reader that is let go closes the connection
            next(lines)
            wait_for(lambda: _running(address) == 1)
        wait_for(lambda: _running(address) == 0, within_s=5)


def _running(address: str) -> int:
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if _is_running(line)))


def _is_running(line: str) -> bool:
    return line.startswith("shardwright_queue_running") and "searches" in line
