"""Takes pictures of the pages: `python -m tests.pages.pictures [NAME ...]`. Each is taken wide in
light colours and narrow in dark ones, which shows both without twice the files.

They lie in docs/pictures. Look at them before you commit them: no test sees what is ugly.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import AbstractContextManager

import httpx
from playwright.sync_api import sync_playwright

from tests.pages.visits import SCHEMES, WIDTHS, context, launch, visit
from tests.paths import ROOT
from tests.service.pages.reported_runs import calibrated, reported_runs
from tests.service.processes import Service, starting

_SHOWN = ("ask-form", "ask", "check", "frontier", "choose", "runs", "run", "profiles",
          "evidence")  # fmt: skip
_FIGURES = {
    "ask": "[aria-labelledby=where]",
    "frontier": "[aria-labelledby=title]",
    "runs": "[aria-labelledby=against]",
}
"""The part of a page that README and guides show."""
FOLDER = ROOT / "docs" / "pictures"


def main(names: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, _serving(folder) as service:
        service.read_address()
        service.wait_until_ready()
        with httpx.Client(base_url=service.address, timeout=60) as client:
            reported_runs(client.post)
            calibrated(client.post)
        take(service.address, names or [*_SHOWN])


def _serving(folder: str) -> AbstractContextManager[Service]:
    return starting(f"sqlite:///{folder}/pictures.db")


def take(address: str, names: list[str]) -> None:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        for name in names:
            for width, scheme in zip(WIDTHS, SCHEMES, strict=True):
                visited = context(browser, width, scheme)
                page = visited.new_page()
                visit(page, address, name)
                file = FOLDER / f"{name}-{width}-{scheme}.png"
                page.screenshot(path=file, full_page=True)
                print(file.relative_to(ROOT))
                if width == WIDTHS[0] and name in _FIGURES:
                    page.locator(_FIGURES[name]).screenshot(path=FOLDER / f"{name}-figure.png")
                visited.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
