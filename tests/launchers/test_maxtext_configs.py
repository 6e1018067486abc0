"""The YAML files that are kept of MaxText's package are those of the package itself."""

from __future__ import annotations

import pytest

from tests.launchers import maxtext_configs
from tests.launchers.judging import PYTHON

pytestmark = [
    pytest.mark.launchers,
    pytest.mark.skipif(not PYTHON.exists(), reason="make test-launchers makes the environment"),
]


def test_the_files_of_the_package_are_those_of_the_release() -> None:
    assert maxtext_configs.FILE.read_text() == maxtext_configs.configs()
