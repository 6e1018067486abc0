from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from shardwright.client.errors import problem_of
from shardwright.client.settings import ClientSettings
from shardwright.hooks import checking
from shardwright.hooks.policy import HookPolicy
from tests.shardwright.hooks.services import ServiceProcess, running


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service in a process of its own."""
    with running(tmp_path_factory.mktemp("service")) as process:
        yield process


@pytest.fixture
def policy() -> HookPolicy:
    """With time for an application that answers its first question, beside other tests."""
    return HookPolicy(service=ClientSettings(url="http://testserver"), budget_s=60)


@pytest.fixture
def asked(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The questions that hooks ask of an application in this process, with its answers."""
    exchanges: list[Any] = []

    def post(_: ClientSettings, path: str, body: Any, **__: Any) -> Any:
        response = client.post(path, json=body)
        exchanges.append((body, response.json()))
        if not response.is_success:
            raise problem_of(response.json(), response.status_code, None)
        return response.json()

    monkeypatch.setattr(checking, "post", post)
    return exchanges
