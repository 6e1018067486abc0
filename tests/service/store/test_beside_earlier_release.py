"""An earlier release goes on beside this one: it reads what this one has stored.

`earliest_beside.txt` names the commit of the earliest release that does. Its code is taken from the
repository's own history.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.databases import prepare
from tests.paths import ROOT
from tests.service.asking import ON_BOTH
from tests.service.processes import starting
from tests.service.store.stored_kinds import Written, finished, refused

COMMIT = (Path(__file__).parent / "earliest_beside.txt").read_text().strip()
_KEPT = Path("models/__pycache__")
"""Where machine code is kept. Where the models have not changed, the earlier release finds its own
there."""


@pytest.fixture(scope="module")
def earlier_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the earlier release."""
    has_commit = ["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"]
    try:
        known = subprocess.run(has_commit, cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("NO GIT: the code of the earlier release cannot be had")
    if known.returncode:
        pytest.skip(f"NO COMMIT {COMMIT[:12]}: the history is shallow, or this is no repository")
    folder = tmp_path_factory.mktemp("earlier")
    packed = folder / "code.tar"
    parts = ["models", "service", "migrations", "pyproject.toml"]
    archive = ["git", "archive", f"--output={packed}", COMMIT, *parts]
    subprocess.run(archive, cwd=ROOT, check=True)
    shutil.unpack_archive(packed, folder)
    if (ROOT / _KEPT).exists():
        shutil.copytree(ROOT / _KEPT, folder / _KEPT, dirs_exist_ok=True)
    return folder


@pytest.mark.faults  # the code of another commit compiles for minutes
@ON_BOTH
def test_the_earlier_release_reads_what_this_one_has_stored(
    earlier_code: Path, empty_database_url: str
) -> None:
    with starting(empty_database_url, folder=earlier_code) as earlier:
        earlier.read_address()
        earlier.wait_until_ready(within_s=900)  # where its models have to be compiled
        prepare(empty_database_url)
        with TestClient(create_app(Settings(database_url=empty_database_url))) as client:
            written = Written(client)
            finished(client, written)
            assert not refused(client, written)
        with httpx.Client(base_url=earlier.address, timeout=120) as asking:
            assert not refused(asking, written), earlier.errors()
