"""Commands that ask an application in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner, Result

from shardwright.cli import session
from shardwright.cli.main import app
from shardwright.client.client import Client
from shardwright.client.settings import ClientSettings


def run_against(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Returns a function that runs a command, which asks the application of `client`."""
    settings = ClientSettings(url="http://testserver")

    def connected(_: ClientSettings) -> Client:
        return Client(settings, transport=client._transport)

    monkeypatch.setattr(session, "connected", connected)

    def run(*arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(app, [*arguments], **options)

    return run


def shown(text: str) -> str:
    """Returns a text of the terminal in one line."""
    return " ".join(text.split())
