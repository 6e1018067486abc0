"""The client and the OpenAPI document say the same."""

from __future__ import annotations

import pytest

from shardwright.client.routes import AsyncRoutes, Routes
from tests.openapi import openapi
from tests.shardwright.generate import files, routes


@pytest.mark.long
def test_the_files_of_the_client_are_what_the_command_writes() -> None:
    for path, text in files().items():
        assert path.read_text() == text, f"{path.name}: run `make client`"


def test_both_clients_have_a_method_for_each_route() -> None:
    names = {route.name for route in routes(openapi())}
    assert len(names) > 40
    for kind in (Routes, AsyncRoutes):
        assert names <= {*vars(kind)}
