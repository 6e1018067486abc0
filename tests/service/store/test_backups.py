"""The commands of the operator's guide bring a lost database back."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text

from service import api_keys
from service.app import create_app
from service.settings import Settings
from service.store import Store, database
from tests.docs.pages import blocks
from tests.paths import ROOT
from tests.service.asking import ON_BOTH, PREDICTION, assert_problem
from tests.service.conftest import TestClient

GUIDE = ROOT / "docs" / "guides" / "operator.md"
REPORTED = {"outcome": "ok", "measured": {"step_time_s": 2.0}}


def run(part: str, database_url: str, folder: Path) -> None:
    """Run the one example of the guide that has this in it."""
    (example,) = (block.text for block in blocks(GUIDE.read_text()) if part in block.text)
    libpq_url = database_url.replace("+psycopg", "")
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", example],
        env={**os.environ, "SHARDWRIGHT_DATABASE_URL": libpq_url},
        cwd=folder,
        check=True,
        capture_output=True,
    )


def lose(databases: Any, url: str) -> None:
    """Drop the database; on a server an empty one of the same name takes its place."""
    databases.drop(url)
    if not url.startswith("sqlite"):
        with databases.admin.connect() as connection:
            connection.execute(text(f'create database "{make_url(url).database}"'))


@pytest.mark.long
@ON_BOTH
def test_a_lost_database_comes_back(databases: Any, database_url: str, tmp_path: Path) -> None:
    is_sqlite = database_url.startswith("sqlite")
    if not is_sqlite and not shutil.which("pg_dump"):
        pytest.skip("NO pg_dump")
    settings = Settings(database_url=database_url, require_api_keys=True)
    with TestClient(create_app(settings)) as client:
        store = client.app.state.services.store
        key = api_keys.create(store, "team-a", ["recommend", "report"])
        asking = {"Authorization": f"Bearer {key}"}
        made = client.post("/v1/predictions", json=PREDICTION, headers=asking)
        link = {"prediction_id": made.json()["id"]}
        report = client.post("/v1/reports", json={**link, **REPORTED}, headers=asking)
        assert report.status_code == 201, report.text
        locations = [answer.headers["location"] for answer in (made, report)]
        before = [client.get(location, headers=asking).json() for location in locations]
        run("live.backup(copy)" if is_sqlite else "pg_dump", database_url, tmp_path)
        late = client.post("/v1/reports", json={**link, **REPORTED}, headers=asking)

    lose(databases, database_url)
    lost = Store(database.connect(database_url))
    assert lost.revision() == ""
    lost.close()

    if is_sqlite:
        databases.drop(database_url)  # of which looking made an empty file
        file = Path(make_url(database_url).database or "")
        for suffix in ("-wal", "-shm"):
            (tmp_path / f"shardwright.db{suffix}").write_bytes(b"of what was lost")
        run("cp backup.db", database_url, tmp_path)
        assert sorted(path.name for path in tmp_path.glob("shardwright.db*")) == ["shardwright.db"]
        shutil.move(tmp_path / "shardwright.db", file)
    else:
        run("pg_restore", database_url, tmp_path)
    with TestClient(create_app(settings)) as client:
        assert client.get("/readyz").status_code == 200
        assert [client.get(location, headers=asking).json() for location in locations] == before
        assert_problem(client.get(late.headers["location"], headers=asking), "not-found")
        again = client.post("/v1/reports", json={**link, **REPORTED}, headers=asking)
        assert again.status_code == 201
