"""Takes pictures of every page: `python -m tests.pages.pictures [NAME ...]`.

They lie in docs/pictures. Look at them before you commit them: no test sees what is ugly.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import AbstractContextManager

from playwright.sync_api import sync_playwright

from tests.pages.visits import SCHEMES, VISITS, WIDTHS, context, launch, visit
from tests.paths import ROOT
from tests.service.processes import Service, starting

FOLDER = ROOT / "docs" / "pictures"


def main(names: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, _serving(folder) as service:
        service.read_address()
        service.wait_until_ready()
        take(service.address, names or [*VISITS])


def _serving(folder: str) -> AbstractContextManager[Service]:
    return starting(f"sqlite:///{folder}/pictures.db")


def take(address: str, names: list[str]) -> None:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        for name in names:
            for width in WIDTHS:
                for scheme in SCHEMES:
                    visited = context(browser, width, scheme)
                    page = visited.new_page()
                    visit(page, address, name)
                    file = FOLDER / f"{name}-{width}-{scheme}.png"
                    page.screenshot(path=file, full_page=True)
                    print(file.relative_to(ROOT))
                    visited.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
