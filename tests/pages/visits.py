"""The pages as they are visited: by tests, and for the pictures of the documentation."""

from __future__ import annotations

import shutil
from urllib.parse import urlencode

from playwright.sync_api import Browser, BrowserContext, Page, Playwright

from service.pages.examples import EXAMPLES
from tests.service.learning.test_report_logs import MEGATRON

WIDTHS = (1400, 390)
SCHEMES = ("light", "dark")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
"""That of the system. Playwright's own would be a download of 300 MB beside it."""

QUESTION = dict(EXAMPLES["ask"][1][1])
ASK = f"/ask?{urlencode(QUESTION)}"
TORUS = {
    "model": "llama-3.1-70b", "cluster": "v5p", "chips": "512", "seq_len": "4096", "batch": "512",
    "stack": "maxtext", "precision": "bf16",
}  # fmt: skip
VISITS = {
    "ask-form": "/ask",
    "ask": ASK,
    "ask-compared": f"{ASK}&with_pp=1",
    "ask-refused": f"/ask?{urlencode({**QUESTION, 'chips': '8'})}",
    "ask-torus": f"/ask?{urlencode(TORUS)}",
    "check-form": "/check",
    "check": "/check?example",
    "frontier-form": "/frontier",
    "choose-form": "/choose",
    "choose": f"/choose?{urlencode(EXAMPLES['choose'][0][1])}",
    "runs": "/runs",
    "runs-empty": "/runs?since=2100-01-01",
    "run": "/runs?stack=megatron&since=2026-10-20",
    "log-form": "/runs/logs",
    "log": "/runs/logs",
    "profiles": "/profiles",
    "evidence": "/evidence?model=deepseek-v3&exact=true&limit=12",
    "evidence-empty": "/evidence?text=no+such+run",
    "frontier": f"/frontier?{urlencode(EXAMPLES['frontier'][0][1])}",
}
"""Pages by name. Those of `check` and `log` are forms, which `visit` sends; `run` is the first of a
list."""


def launch(playwright: Playwright) -> Browser:
    # Containers seldom let a browser make the namespaces of its sandbox; it visits our pages only.
    return playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


def context(browser: Browser, width: int, scheme: str, **options: object) -> BrowserContext:
    return browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, **options
    )


def visit(page: Page, address: str, name: str) -> None:
    """Opens a page and waits until its pictures are drawn."""
    page.goto(address + VISITS[name])
    if name == "check":
        page.get_by_role("button", name="Check", exact=True).click()
    if name == "run":
        page.locator("#run-list a").first.click()
    if name == "log":
        page.fill("#log", MEGATRON)
        page.fill("#cluster", "h100")
        page.select_option("#stack", "megatron")
        page.get_by_role("button", name="Read and store").click()
        page.wait_for_selector("h2:has-text('What was read')")
    if name == "runs":
        page.wait_for_selector("#over-time svg")
    if name == "frontier":
        page.wait_for_selector("#reasons li")
    if name == "choose":
        page.wait_for_selector("#dollars svg")
    if name == "profiles":
        page.wait_for_selector("#errors svg")
    if name == "evidence":
        page.wait_for_selector("#ratios svg")
    if name == "ask-torus":
        page.wait_for_selector("#memory-terms svg")
    if name in ("ask", "ask-compared"):
        page.wait_for_selector("#pipeline svg")
    page.wait_for_load_state("networkidle")
