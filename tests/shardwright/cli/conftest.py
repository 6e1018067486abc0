from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.shardwright.cli.commands import run_against


@pytest.fixture
def run(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command against an application in this process."""
    return run_against(client, monkeypatch)
