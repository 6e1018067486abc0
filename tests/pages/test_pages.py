"""The pages in a real browser."""

from __future__ import annotations

import csv
import json
import math
import statistics
from pathlib import Path
from typing import Any

import httpx
import pytest

from service import api_keys
from service.pages.check import EXAMPLE
from service.store import Store, database
from tests.pages.visits import ASK, SCHEMES, VISITS, WIDTHS, visit
from tests.paths import ROOT
from tests.service.learning.test_report_logs import MEGATRON
from tests.service.pages.questions import HOSTILE
from tests.service.pages.reported_runs import calibrated, reported_runs
from tests.service.processes import starting

pytestmark = pytest.mark.pages

_AXE = (ROOT / "tests/pages/axe/axe.min.js").read_text()
_LEAST_PIXELS = 11  # of text: smaller is not read without effort
_MOST_BYTES = 350_000
_QUESTION = {
    "model": "deepseek-v3",
    "cluster": {"preset": "h800", "num_chips": 2048},
    "workload": {"seq_len": 4096, "global_batch": 15360, "precision": "fp8"},
    "stack": "megatron",
}
_SMALL_TEXTS = """least => [...document.querySelectorAll("main *, header *, footer *")]
  .filter(element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
  .filter(element => element.checkVisibility() && !element.closest(".visually-hidden"))
  .filter(element => {
    const svg = element.closest("svg");
    const scale = svg?.viewBox.baseVal?.width ? svg.clientWidth / svg.viewBox.baseVal.width : 1;
    return parseFloat(getComputedStyle(element).fontSize) * scale < least;
  }).map(element => element.outerHTML.slice(0, 120))"""
_OUTSIDE = """() => [...document.querySelectorAll("main :is(svg text, p, h1, h2, td)")]
  .filter(element => element.checkVisibility() && !element.closest(".scroll, pre, .nodes"))
  .filter(element => {
    const box = element.getBoundingClientRect();
    return box.width && (box.left < -0.5 || box.right > innerWidth + 0.5);
  }).map(element => element.textContent.slice(0, 80))"""
_DOTS = """figure => [...document.querySelectorAll(`${figure} g[data-mark=dot] circle`)]
  .map(dot => [dot.cx.baseVal.value, dot.cy.baseVal.value])"""
_OVERLAPS = """() => [...document.querySelectorAll(".chart svg")].flatMap(svg => {
  const boxes = [...svg.querySelectorAll("text")]
    .filter(text => text.textContent.trim())
    .map(text => ({ text: text.textContent, box: text.getBoundingClientRect() }));
  return boxes.flatMap(({ text, box }, i) => boxes.slice(i + 1)
    .filter(({ box: other }) => box.left < other.right - 1 && other.left < box.right - 1
      && box.top < other.bottom - 2 && other.top < box.bottom - 2)
    .map(({ text: other }) => `${text} | ${other}`));
})"""


_OPEN = """() => document.querySelectorAll("details").forEach(one => one.open = true)"""
_UNTOLD = """() => [...document.querySelectorAll("main *")]
  .filter(part => part.checkVisibility() && part.scrollWidth > part.clientWidth + 1)
  .filter(part => ["auto", "scroll"].includes(getComputedStyle(part).overflowX))
  .filter(part => !part.matches("textarea, input, select"))
  .filter(part => {
    const isReached = part.tabIndex === 0 && part.ariaLabel;
    const { content } = getComputedStyle(part, "::before");
    const isTold = !part.matches(".scroll") || content !== "none";
    return !isReached || !isTold;
  }).map(part => part.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def answer(address: str) -> dict[str, Any]:
    return httpx.post(f"{address}/v1/recommendations", json=_QUESTION, timeout=60).json()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", VISITS)
def test_a_page_is_readable_and_accessible(
    address: str, new_page: Any, name: str, width: int, scheme: str
) -> None:
    page = new_page(width, scheme)
    visit(page, address, name)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(_SMALL_TEXTS, _LEAST_PIXELS) == []
    assert page.evaluate(_OUTSIDE) == []
    assert page.evaluate(_OVERLAPS) == []
    page.evaluate(_AXE)
    found = page.evaluate("axe.run()")["violations"]
    serious = [
        (each["id"], [node["html"][:200] for node in each["nodes"]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


@pytest.mark.parametrize("name", VISITS)
def test_what_is_wider_than_a_telephone_says_so_and_scrolls_by_keys(
    address: str, new_page: Any, name: str
) -> None:
    page = new_page(WIDTHS[-1])
    visit(page, address, name)
    page.evaluate(_OPEN)
    assert page.evaluate(_UNTOLD) == []


def test_the_bar_of_a_step_shows_the_terms_of_the_answer(
    address: str, new_page: Any, answer: dict[str, Any]
) -> None:
    page = new_page()
    visit(page, address, "ask")
    drawn = page.evaluate("""() => {
      const group = document.querySelector("#time-terms svg g[data-mark=rect]");
      return [...group.children].map(rect => rect.getBoundingClientRect().width);
    }""")
    terms = [value for value in answer["layouts"][0]["prediction"]["time"].values() if value]
    assert len(drawn) == len(terms)
    scale = sum(drawn) / sum(terms)
    # The bar has the terms in another order; insets of a pixel part them.
    for pixels, seconds in zip(sorted(drawn), sorted(terms), strict=True):
        assert pixels == pytest.approx(seconds * scale, abs=2)


def test_each_layout_has_its_interval(address: str, new_page: Any, answer: dict[str, Any]) -> None:
    page = new_page()
    visit(page, address, "ask")
    lines = page.evaluate("""() => [
      ...document.querySelectorAll("#step-time g[data-mark=rule] line")]
      .map(line => [line.x1.baseVal.value, line.x2.baseVal.value])
      .filter(([from, to]) => to - from > 1)""")
    shown = {answer["recommended"], answer["fastest"], answer["simplest"],
             answer["bolder"]["layout"]}  # fmt: skip
    predictions = [answer["layouts"][position]["prediction"] for position in shown]
    assert len(lines) == len(predictions)
    ratios = sorted(to / low for low, to in [(low - 8, to - 8) for low, to in lines])
    expected = sorted(each["step_time_high_s"] / each["step_time_low_s"] for each in predictions)
    assert ratios == pytest.approx(expected, rel=0.01)


def test_the_pipeline_shows_every_operation_and_zooms(
    address: str, new_page: Any, answer: dict[str, Any]
) -> None:
    page = new_page()
    visit(page, address, "ask")
    timeline = httpx.get(
        f"{address}/v1/recommendations/{answer['id']}/timeline?micro_batches=16", timeout=60
    ).json()
    bars = page.locator("#pipeline svg g[data-mark=bar] rect")
    assert bars.count() == len(timeline["events"])
    page.get_by_role("button", name="Zoom in").click()
    assert 0 < bars.count() < len(timeline["events"])
    page.get_by_role("button", name="Zoom out").click()
    assert bars.count() == len(timeline["events"])


def test_the_heat_map_shows_the_points_of_the_frontier(address: str, new_page: Any) -> None:
    page = new_page()
    visit(page, address, "frontier")
    body = {
        "model": "llama-3.1-405b",
        "cluster": {"preset": "h100", "num_chips": 8192},
        "workload": {"seq_len": 8192, "global_batch": 2048, "precision": "bf16"},
        "stack": "megatron",
        "grid": {"domain": [8, 16, 32, 64, 128, 256], "scale_up": [0.5, 1, 2, 4, 8]},
    }
    points = httpx.post(f"{address}/v1/frontiers", json=body, timeout=90).json()["points"]
    titles = page.evaluate(
        """() => [...document.querySelectorAll("#frontier rect title")].map(t => t.textContent)"""
    )
    assert len(titles) == len(points)
    for point in points:
        place = ", ".join(f"{axis} {value:g}" for axis, value in point["at"].items()) + "\n"
        (title,) = [title for title in titles if title.startswith(place)]
        assert f"pipeline needed: {point['pipeline_needed']}" in title
    pins = page.evaluate("""() => [...document.querySelectorAll("#frontier svg text")]
      .map(text => text.textContent)""")
    assert "h100-sxm-80gb" in pins
    assert page.locator("h1").inner_text().startswith("Without a pipeline a step is predicted to")
    undecided = sum(point["pipeline_needed"] == "undecided" for point in points)
    assert 0 < sum(text.endswith("%?") for text in pins) <= undecided


@pytest.mark.parametrize("width", WIDTHS)
def test_every_chip_on_the_map_is_named_on_it_or_below(
    address: str, new_page: Any, width: int
) -> None:
    page = new_page(width)
    visit(page, address, "frontier")
    titles = page.evaluate("""() => [...document.querySelectorAll(
      "#frontier svg g[data-mark=dot] title")].map(title => title.textContent)""")
    told = page.locator("#frontier").text_content()
    assert len(titles) > 8
    for title in titles:
        first, *others = title.partition("\n")[0].split(", ")
        assert (f"{first} and {len(others)} more" if others else first) in told


def test_a_published_run_is_a_square_that_leads_to_its_row(address: str, new_page: Any) -> None:
    page = new_page()
    visit(page, address, "frontier")
    squares = page.locator("#frontier svg g[data-mark=dot] path").filter(
        has=page.locator("title", has_text="published: ")
    )
    data = json.loads(page.locator("#data").text_content())
    runs = [run for pin in data["pins"] for run in pin["runs"]]
    titles = squares.all_text_contents()
    drawn = [line for title in titles for line in title.splitlines()[1:]]
    assert len(drawn) == len(runs) > 1
    for run in runs:
        words = f"{run['stages']} pipeline stages" if run["stages"] > 1 else "no pipeline"
        assert f"published: {run['name']}, {words}" in drawn
    squares.first.dispatch_event("click")
    row = int(page.url.rpartition("#published-")[2])
    (led,) = [run for run in runs if run["row"] == row]
    assert led["name"] in titles[0]
    assert led["name"] in page.locator("tr:target").inner_text()


def test_each_place_is_drawn_at_its_hours_and_dollars(address: str, new_page: Any) -> None:
    page = new_page()
    visit(page, address, "choose")
    (link,) = page.evaluate("""() => [...document.querySelectorAll("a[href*='format=csv']")]
      .map(link => link.getAttribute("href"))""")
    choices = httpx.get(address + link.partition("?")[0], timeout=60).json()["items"]
    for figure, member in (("#hours", "hours"), ("#dollars", "usd")):
        values = [choice[member] for choice in choices if choice[member] is not None]
        pixels = [across for across, _ in page.evaluate(_DOTS, figure)]
        assert len(values) == len(pixels) > 1
        slope, offset = statistics.linear_regression(values, pixels)
        assert slope > 0
        assert pixels == pytest.approx([offset + slope * value for value in values], abs=0.5)
    assert "deadline: 168 h" in page.locator("#hours .chart svg").text_content()
    hollow = page.evaluate("""() => [...document.querySelectorAll("#hours g[data-mark=dot] circle")]
      .map(dot => dot.getAttribute("fill"))""")
    misses = [not choice["meets"] for choice in choices]
    assert [fill == hollow[misses.index(True)] for fill in hollow] == misses


def test_each_version_is_drawn_at_its_errors(address: str, new_page: Any) -> None:
    page = new_page()
    visit(page, address, "profiles")
    errors = [
        httpx.get(f"{address}/v1/profiles/default/versions/{n}", timeout=60).json()["calibration"][
            "unseen"
        ]
        for n in (3, 2)
    ]
    values = [each[name] for name in ("error_before", "error_after") for each in errors]
    pixels = [across for across, _ in page.evaluate(_DOTS, "#errors")]
    slope, offset = statistics.linear_regression(values, pixels)
    assert slope > 0
    assert pixels == pytest.approx([offset + slope * value for value in values], abs=0.5)


def test_a_version_is_activated_and_rolled_back_in_the_browser(
    new_page: Any, tmp_path: Path
) -> None:
    with starting(f"sqlite:///{tmp_path}/versions.db") as service:
        service.read_address()
        service.wait_until_ready()
        with httpx.Client(base_url=service.address, timeout=60) as client:
            reported_runs(client.post)
            calibrated(client.post)
        page = new_page()
        page.goto(f"{service.address}/profiles?version=2")
        page.get_by_role("button", name="Activate").click()
        page.wait_for_selector("h1:has-text('Predictions use version 2')")
        page.select_option("#version", "1")
        page.get_by_role("button", name="Activate").click()
        page.wait_for_selector("h1:has-text('Predictions use version 1')")


def test_each_published_run_is_drawn_as_measured_over_predicted(
    address: str, new_page: Any
) -> None:
    page = new_page()
    visit(page, address, "evidence")
    runs = httpx.get(
        f"{address}/v1/evidence?model=deepseek-v3&exact=true&limit=12", timeout=60
    ).json()["items"]
    expected = [
        (run["predicted"]["step_time_s"], run["measured"]["step_time_s"])
        for run in runs
        if run["measured"]["step_time_s"]
    ]
    dots = page.evaluate(_DOTS, "#ratios")
    assert len(dots) == len(expected)
    # Both axes are logarithms, so that pixels are linear in them.
    across = [math.log(predicted) for predicted, _ in expected]
    up = [math.log(measured / predicted) for predicted, measured in expected]
    for pixels, values in zip(zip(*dots, strict=True), (across, up), strict=True):
        slope, offset = statistics.linear_regression(values, pixels)
        for pixel, value in zip(pixels, values, strict=True):
            assert pixel == pytest.approx(offset + slope * value, abs=0.5)


def test_each_run_is_drawn_where_it_was_measured_and_predicted(address: str, new_page: Any) -> None:
    page = new_page()
    visit(page, address, "runs")
    reports = httpx.get(f"{address}/v1/reports?limit=200", timeout=60).json()["items"]
    expected = [
        (report["prediction"]["step_time_s"], report["measured"]["step_time_s"])
        for report in reports
        if report["measured"]
    ]
    dots = page.evaluate(_DOTS, "#agreement")
    assert len(dots) == len(expected)
    logarithms = [[math.log(one) for one in pair] for pair in expected]
    for pixels, values in zip(zip(*dots, strict=True), zip(*logarithms, strict=True), strict=True):
        slope, offset = statistics.linear_regression(values, pixels)
        for pixel, value in zip(pixels, values, strict=True):
            assert pixel == pytest.approx(offset + slope * value, abs=0.5)


def test_the_csv_of_the_runs_has_their_figures(address: str, new_page: Any, tmp_path: Path) -> None:
    page = new_page()
    visit(page, address, "runs")
    with page.expect_download() as waited:
        page.locator("#agreement").get_by_role("button", name="Download the table").click()
    waited.value.save_as(tmp_path / "runs.csv")
    head, *rows = csv.reader((tmp_path / "runs.csv").open())
    reports = httpx.get(f"{address}/v1/reports?limit=200", timeout=60).json()["items"]
    assert len(rows) == len(reports)
    columns = {"Predicted (s)": "step_time_s", "Low (s)": "step_time_low_s",
               "High (s)": "step_time_high_s"}  # fmt: skip
    for row, report in zip(rows, reports, strict=True):
        for name, member in columns.items():
            shown = float(row[head.index(name)])
            assert shown == pytest.approx(report["prediction"][member], rel=0.01)


def test_a_change_of_level_is_marked_where_it_began(address: str, new_page: Any) -> None:
    page = new_page()
    visit(page, address, "runs")
    series = httpx.get(f"{address}/v1/profiles/default/drift", timeout=60).json()["series"]
    changes = [change for one in series for change in one["changes"]]
    marks = page.locator("#over-time g[data-mark=rule] line[stroke-dasharray], "
                         "#over-time g[data-mark=rule][stroke-dasharray] line")  # fmt: skip
    assert changes
    assert marks.count() == len(changes)


def test_a_file_is_uploaded_as_a_log(address: str, new_page: Any, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(MEGATRON.replace("3101.0", "3111.0"))
    page = new_page()
    page.goto(f"{address}/runs/logs")
    page.set_input_files("#log_file", log)
    page.fill("#cluster", "h100")
    page.select_option("#stack", "megatron")
    page.get_by_role("button", name="Read and store").click()
    page.wait_for_selector("text=The log was read, and the report is stored.")
    page.get_by_role("link", name="See the report").click()
    page.wait_for_selector("h2:has-text('What its log says')")


def test_a_hostile_log_is_shown_as_text(address: str, new_page: Any) -> None:
    page = new_page()
    page.goto(f"{address}/runs/logs")
    page.fill("#log", HOSTILE)
    page.fill("#source", HOSTILE)
    page.get_by_role("button", name="Read and store").click()
    page.wait_for_selector("[role=alert]")
    assert page.locator("img").count() == 0
    assert page.input_value("#log") == HOSTILE


def test_a_dot_leads_to_its_row(address: str, new_page: Any) -> None:
    page = new_page()
    visit(page, address, "evidence")
    page.locator("#ratios g[data-mark=dot] circle").first.dispatch_event("click")
    assert page.url.endswith("#run-0")
    assert page.locator("tr:target").count() == 1


def test_the_keyboard_alone_asks_a_question(address: str, new_page: Any) -> None:
    page = new_page()
    page.goto(f"{address}/ask")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    typed = {"model": "llama-3.1-8b", "cluster": "h100", "chips": "64", "batch": "128"}
    for _ in range(60):
        name = page.evaluate("document.activeElement.name || document.activeElement.textContent")
        if name in typed:
            page.keyboard.type(typed.pop(name))
            page.keyboard.press("Escape")  # closes the list of names
        if (
            not typed
            and name == "Ask"
            and page.evaluate("document.activeElement.tagName") == "BUTTON"
        ):
            page.keyboard.press("Enter")
            break
        page.keyboard.press("Tab")
    page.wait_for_selector("h1:has-text('a step')")
    assert "model=llama-3.1-8b" in page.url
    assert "config=" not in page.url  # fields that say nothing are not in it


def test_the_keyboard_alone_checks_a_script(address: str, new_page: Any) -> None:
    page = new_page()
    page.goto(f"{address}/check")
    for _ in range(60):
        name = page.evaluate("document.activeElement.name || document.activeElement.textContent")
        tag = page.evaluate("document.activeElement.tagName")
        if name == "script":
            page.keyboard.insert_text(EXAMPLE)
        elif name == "cluster":
            page.keyboard.type("h100")
            page.keyboard.press("Escape")
        elif (name, tag) == ("Check", "BUTTON"):
            page.keyboard.press("Enter")
            break
        page.keyboard.press("Tab")
    page.wait_for_selector("h1:has-text('Go, with warnings')")
    assert page.locator(".diff .added").inner_text().startswith("+")


def test_without_scripts_forms_work_and_tables_say_it_all(
    address: str, new_page: Any, answer: dict[str, Any]
) -> None:
    page = new_page(java_script_enabled=False)
    page.goto(address + ASK)
    page.locator("#time-terms summary").click()
    step = answer["layouts"][0]["prediction"]["step_time_s"]
    assert page.locator("#time-terms .total").inner_text().split() == [
        "step",
        f"{step:.3g}",
        "100%",
    ]
    page.goto(f"{address}/check?example")
    page.get_by_role("button", name="Check", exact=True).click()
    assert page.locator("h1").inner_text() == "Go, with warnings"
    page.goto(address + VISITS["frontier"])
    page.get_by_role("link", name="show the table").click()
    assert page.locator("#points tbody tr").count() == 30


@pytest.mark.parametrize("name", ["model", "cluster", "with_tp"])
def test_a_hostile_name_is_shown_as_text(address: str, new_page: Any, name: str) -> None:
    page = new_page()
    query = httpx.QueryParams({**dict(httpx.URL(ASK).params), name: HOSTILE})
    page.goto(f"{address}/ask?{query}")
    assert page.locator("img").count() == 0
    assert HOSTILE[:20] in page.locator("main").inner_text()


def test_a_hostile_script_is_shown_as_text(address: str, new_page: Any) -> None:
    page = new_page()
    page.goto(f"{address}/check?example")
    page.fill("#script", EXAMPLE.replace("--bf16", "--bf16 --job-name '</script><img src=x>'"))
    page.get_by_role("button", name="Check", exact=True).click()
    page.wait_for_selector(".lines")
    assert page.locator("img").count() == 0
    assert "</script><img src=x>" in page.locator(".lines").inner_text()


def test_a_picture_and_its_table_can_be_taken_away(
    address: str, new_page: Any, answer: dict[str, Any], tmp_path: Path
) -> None:
    page = new_page()
    visit(page, address, "ask")
    with page.expect_download() as waited:
        page.locator("#time-terms").get_by_role("button", name="Download the table").click()
    waited.value.save_as(tmp_path / "terms.csv")
    rows = list(csv.reader((tmp_path / "terms.csv").open()))
    assert rows[0] == ["Term", "Seconds", "Share", "Rests on"]
    terms = [value for value in answer["layouts"][0]["prediction"]["time"].values() if value]
    assert len(rows) == len(terms) + 2
    with page.expect_download() as waited:
        page.locator("#time-terms").get_by_role(
            "button", name="Download the picture as SVG"
        ).click()
    waited.value.save_as(tmp_path / "terms.svg")
    alone = new_page()
    alone.goto((tmp_path / "terms.svg").as_uri())
    assert alone.evaluate("document.documentElement.tagName") == "svg"


@pytest.mark.parametrize(
    "name", ["ask-form", "ask", "frontier", "choose", "runs", "profiles", "evidence"]
)
def test_a_page_is_light(address: str, new_page: Any, name: str) -> None:
    page = new_page()
    client = page.context.new_cdp_session(page)
    client.send("Network.enable")
    sizes: list[float] = []
    client.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    visit(page, address, name)
    print(f"{name}: {sum(sizes) / 1000:.0f} kB in {len(sizes)} answers")
    assert sum(sizes) <= _MOST_BYTES


def test_nothing_is_asked_of_other_hosts(address: str, new_page: Any) -> None:
    page = new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name in VISITS:
        visit(page, address, name)
    assert asked
    assert all(url.startswith((address, "blob:", "data:")) for url in asked)


def test_the_document_of_a_page_is_the_answer_of_the_api(
    address: str, new_page: Any, answer: dict[str, Any]
) -> None:
    page = new_page()
    visit(page, address, "ask")
    assert json.loads(page.locator("#data").text_content())["answer"] == answer


def test_a_session_draws_every_picture_where_keys_are_required(
    new_page: Any, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/keys.db"
    with starting(url, require_api_keys=True) as service:
        service.read_address()
        service.wait_until_ready()
        store = Store(database.connect(url))
        key = api_keys.create(store, "research", ["recommend"])
        page = new_page()
        page.goto(service.address + ASK)
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_selector("#pipeline svg")
        assert page.evaluate("document.cookie") == ""  # no script can read the session
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_selector("h1:has-text('Sign in')")
