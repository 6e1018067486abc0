"""Every example of the documentation runs against a live service and prints what the page shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs import examples
from tests.docs.pages import blocks, name_of, pages
from tests.docs.update import settings_of, with_outputs
from tests.paths import ROOT

pytestmark = pytest.mark.skipif(
    not shutil.which("curl") or not shutil.which("bash"), reason="the examples need curl and bash"
)
WITH_EXAMPLES = [
    page for page in pages() if any(block.is_example for block in blocks(page.read_text()))
]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name_of)
def test_examples_print_what_the_page_shows(page: Path, sqlite_files, tmp_path: Path) -> None:
    text = page.read_text()
    assert with_outputs(text, sqlite_files.prepared(), tmp_path) == text, (
        "run `make docs` and read what it changes"
    )


def test_the_readme_works_a_second_time_and_leaves_the_profile_as_it_was(
    sqlite_files, tmp_path: Path
) -> None:
    text, url = (ROOT / "README.md").read_text(), sqlite_files.prepared()
    found = [block for block in blocks(text) if block.is_example]
    with examples.served(url, **settings_of(text)) as address:
        first = examples.run(found, address, url, tmp_path)
        again = examples.run(found, address, url, tmp_path)
    assert again == first


def test_a_block_that_is_not_run_says_why() -> None:
    for page in pages():
        for block in blocks(page.read_text()):
            if block.comment.startswith("not run"):
                assert len(block.comment) > len("not run: "), f"{name_of(page)}: {block.text}"
