from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.shardwright.hooks.services import ServiceProcess, running


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service in a process of its own."""
    with running(tmp_path_factory.mktemp("service")) as process:
        yield process
