from __future__ import annotations

import gc

import hypothesis
import pytest
from threadpoolctl import threadpool_limits

# How fast a machine is, is not tested. The suite draws the same examples every time; `make explore`
# draws new ones.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.register_profile("new", deadline=None, print_blob=True)
hypothesis.settings.load_profile("same")

# A test makes thousands of objects, and most go with their last reference. With Python's 700, the
# collector looks for cycles often enough to take a tenth of the suite's time.
_OBJECTS_BEFORE_CYCLES_ARE_SOUGHT = 20_000


def pytest_configure(config: pytest.Config) -> None:
    """Prepares a process that runs tests. One that only deals them out to workers has no use for
    the service, whose import takes seconds in which no worker has started."""
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        gc.disable()  # what is imported and collected stays until the process ends
        config.pluginmanager.import_plugin("tests.databases")
        threadpool_limits(1, user_api="blas")  # the suite has every core already


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(_OBJECTS_BEFORE_CYCLES_ARE_SOUGHT)
    gc.enable()
