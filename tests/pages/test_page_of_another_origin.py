"""The page of the guide for dashboard authors, in a browser, from an origin of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from service import api_keys
from service.store import Store, database
from tests.docs.examples import ADDRESS
from tests.docs.pages import blocks
from tests.paths import ROOT
from tests.service.asking import REPORT, changed
from tests.service.processes import serving

pytestmark = pytest.mark.pages

_GUIDE = ROOT / "docs/guides/dashboard-author.md"
_MOST_LINES = 25
_CIRCLES = """() => [...document.querySelectorAll("svg circle")].map(circle =>
  [circle.cx.baseVal.value, -circle.cy.baseVal.value, circle.getAttribute("fill")])"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """A test says nothing of what it serves."""


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[str]:
    """Where the files of a folder are served, as a web server of others would."""
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path / "site"))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def _page() -> str:
    (page,) = [block.text for block in blocks(_GUIDE.read_text()) if block.language == "html"]
    assert ADDRESS in page
    assert len(page.splitlines()) <= _MOST_LINES
    return page


def test_it_shows_what_was_measured_over_what_was_predicted_and_new_reports(
    tmp_path: Path, origin: str, new_page: Any
) -> None:
    url = f"sqlite:///{tmp_path}/service.db"
    with serving(url, require_api_keys=True, cors_origins=origin) as service:
        store = Store(database.connect(url))
        key = api_keys.create(store, "dashboards", ("recommend", "report"))
        store.close()
        headers = {"Authorization": f"Bearer {key}"}
        api = httpx.Client(base_url=service.address, headers=headers, timeout=60)
        for seconds in (1.9, 2.0, 40.0):
            slow = changed(REPORT, "measured", {"step_time_s": seconds})
            api.post("/v1/reports", json=slow).raise_for_status()
        (tmp_path / "site").mkdir()
        text = _page().replace(ADDRESS, service.address)
        (tmp_path / "site" / "index.html").write_text(text)
        page = new_page()
        page.goto(origin)
        page.get_by_label("Key").fill("sw_wrong_key")
        page.get_by_role("button", name="Show").click()
        page.get_by_text("The key is not known").wait_for()
        page.get_by_label("Key").fill(key)
        page.get_by_role("button", name="Show").click()
        page.get_by_text("3 runs").wait_for()
        drawn = page.evaluate(_CIRCLES)
        reports = api.get("/v1/reports").json()["items"]
        predicted_s = reports[0]["prediction"]["step_time_s"]
        scale = drawn[0][0] / predicted_s
        for (x, y, colour), report in zip(drawn, reports, strict=True):
            assert x == pytest.approx(report["prediction"]["step_time_s"] * scale, abs=0.1)
            assert y == pytest.approx(report["measured"]["step_time_s"] * scale, rel=0.02, abs=0.1)
            assert (colour == "firebrick") == (report["flag"] is not None)
        api.post("/v1/reports", json=REPORT).raise_for_status()
        page.wait_for_function("document.querySelectorAll('svg circle').length === 4")
