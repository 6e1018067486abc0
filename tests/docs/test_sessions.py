"""The pages about hooks show what the hooks say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import examples
from tests.docs.pages import name_of, pages
from tests.docs.sessions import has_sessions, with_sessions
from tests.shardwright.hooks.jobs import MEGATRON

_PAGES = [page for page in pages() if has_sessions(page.read_text())]


@pytest.mark.parametrize("page", _PAGES, ids=name_of)
def test_sessions_show_what_the_hooks_say(page: Path, sqlite_files) -> None:
    text = page.read_text()
    with examples.served(sqlite_files.prepared()) as address:
        assert with_sessions(text, address) == text, "run `make docs`"


def test_the_pages_of_four_schedulers_have_sessions() -> None:
    assert {page.stem for page in _PAGES} == {"slurm", "kubernetes", "skypilot", "dstack"}


def test_the_job_of_the_session_is_the_one_that_the_hooks_are_asked_about() -> None:
    (page,) = (page for page in _PAGES if page.stem == "slurm")
    assert f"$ cat job.sh\n{MEGATRON}$ time sbatch job.sh\n" in page.read_text()
