from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.pages.visits import CHROMIUM, context, launch
from tests.service.pages.reported_runs import calibrated, reported_runs
from tests.service.processes import starting

NewPage = Callable[..., "Page"]

if CHROMIUM is not None:
    from playwright.sync_api import Browser, Page, sync_playwright


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service of its own, to which runs were reported."""
    folder = tmp_path_factory.mktemp("pages")
    with starting(f"sqlite:///{folder}/pages.db") as service:
        service.read_address()
        service.wait_until_ready()
        with httpx.Client(base_url=service.address, timeout=60) as client:
            reported_runs(client.post)
            calibrated(client.post)
        yield service.address


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: install Debian's package chromium")
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def new_page(browser: Browser) -> Iterator[NewPage]:
    """Pages in contexts of their own. Whatever the browser complains of fails the test."""
    complaints: list[str] = []
    contexts = []

    def make(width: int = 1400, scheme: str = "light", **options: object) -> Page:
        made = context(browser, width, scheme, **options)
        contexts.append(made)
        page = made.new_page()
        page.on("console", lambda message: _note(complaints, message.type, message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
        return page

    yield make
    for made in contexts:
        made.close()
    assert not complaints


def _note(complaints: list[str], kind: str, text: str) -> None:
    # Chromium writes an error for every answer above 399, which a refused question is meant to be.
    if kind in ("error", "warning") and "Failed to load resource" not in text:
        complaints.append(text)
