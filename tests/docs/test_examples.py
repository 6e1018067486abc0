"""Every example of the documentation runs against a live service and prints what the page shows."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import httpx
import pytest

from tests.docs import examples
from tests.docs.pages import blocks, name_of, pages
from tests.docs.update import with_outputs
from tests.paths import ROOT

pytestmark = pytest.mark.skipif(
    not shutil.which("curl") or not shutil.which("bash"), reason="the examples need curl and bash"
)
WITH_EXAMPLES = [
    page for page in pages() if any(block.is_example for block in blocks(page.read_text()))
]
README = ROOT / "README.md"
OTHER_PAGES = [page for page in WITH_EXAMPLES if page != README]
LONG_PAGES = {
    f"docs/guides/{name}.md"
    for name in (
        "capacity-planner",
        "ci",
        "command-line",
        "dashboard-author",
        "fine-tuning",
        "launcher-author",
        "operator",
        "profile-owner",
    )
}
"""Pages with sweeps, searches, calibrations and commands that bring a service with them: some
seconds each."""
_REQUEST = re.compile(r"(?<!command )\bcurl (.*)")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.long if name_of(page) in LONG_PAGES else ())
        for page in OTHER_PAGES
    ],
    ids=name_of,
)
def test_examples_print_what_the_page_shows(page: Path, sqlite_files, tmp_path: Path) -> None:
    text = page.read_text()
    assert with_outputs(text, sqlite_files.prepared(), tmp_path) == text, "run `make docs`"


def test_the_readme_works_a_second_time_and_leaves_nothing_that_counts(
    sqlite_files, tmp_path: Path
) -> None:
    text, url = README.read_text(), sqlite_files.prepared()
    assert with_outputs(text, url, tmp_path) == text, "run `make docs`"
    assert with_outputs(text, url, tmp_path) == text
    assert_nothing_counts(url)


@pytest.mark.long
def test_pages_leave_nothing_that_counts(sqlite_files, tmp_path: Path) -> None:
    """Every page runs on one database, and the README on it after each of them."""
    readme, url = README.read_text(), sqlite_files.prepared()
    assert with_outputs(readme, url, tmp_path) == readme
    for page in OTHER_PAGES:
        with_outputs(page.read_text(), url, tmp_path)
        assert_nothing_counts(url)
        assert with_outputs(readme, url, tmp_path) == readme, f"after {name_of(page)}"
    assert_nothing_counts(url)


def assert_nothing_counts(url: str) -> None:
    """Check that no report counts and that predictions are made as on a fresh service."""
    with examples.served(url) as address:
        profile = httpx.get(f"{address}/v1/profiles/default").json()
        reports = httpx.get(f"{address}/v1/reports").json()
    assert profile["active_version"] == 1
    assert profile["policy"]["mode"] == "manual"
    assert reports["items"] == []


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_a_request_that_fails_says_so(page: Path) -> None:
    """Without --fail-with-body a reader would not see that the service refused an example."""
    for block in blocks(page.read_text()):
        if not block.is_example:
            continue
        for options in _REQUEST.findall(block.text):
            assert options.startswith("-sS ")
            assert ("--fail-with-body" in options) is not block.is_refused


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_examples_say_once_where_the_service_is(page: Path) -> None:
    """So that a reader with another port changes one line."""
    texts = [block.text for block in blocks(page.read_text()) if block.is_example]
    lines = [line for text in texts for line in text.splitlines() if examples.ADDRESS in line]
    says = ("$SHARDWRIGHT", 'environ["SHARDWRIGHT"]', "shardwright ")
    asks = any(each in text for text in texts for each in says)
    names = {re.sub(r"=.*", "", line) for line in lines}
    assert names <= {"export SHARDWRIGHT", "export SHARDWRIGHT_URL"}
    assert len(lines) == asks


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_no_example_takes_what_is_on_for_1(page: Path) -> None:
    """In Python True equals 1: who leaves out values that are 1 leaves out knobs that are on."""
    for block in blocks(page.read_text()):
        assert not re.search(r"not in [(\[{](?=[^)\]}]*\b[01]\b)", block.text), block.text


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_no_example_is_overlooked(page: Path) -> None:
    """Every fence is read as the beginning or the end of a block; indented ones are not."""
    text = page.read_text()
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(list(blocks(text)))
    assert not re.search(r"^ +```(bash|python|sh|console)", text, re.MULTILINE)


def test_a_block_that_is_not_run_says_why() -> None:
    for page in pages():
        for block in blocks(page.read_text()):
            if block.comment.startswith("not run"):
                assert len(block.comment) > len("not run: "), f"{name_of(page)}: {block.text}"
