from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.runtime import malloc_trim
from tests.service.asking import LARGEST, QUESTION, changed
from tests.service.processes import Service, serving
from tests.waiting import wait_for


def resident_mib(process: int | str = "self") -> float:
    words = Path(f"/proc/{process}/status").read_text().split("VmRSS:")[1].split()
    return int(words[0]) / 1024


gives_back = pytest.mark.skipif(
    sys.platform != "linux" or malloc_trim._MALLOC_TRIM is None,
    reason="the C library gives nothing back",
)


@gives_back
def test_what_is_freed_goes_back_to_the_system() -> None:
    """Blocks too small to be mapped by themselves, below one that stays."""
    blocks = [np.ones(12_000) for _ in range(2000)]
    stays = np.ones(12_000)
    full = resident_mib()
    del blocks
    malloc_trim.trim()
    assert resident_mib() < full - 100
    assert stays.sum() == 12_000


@gives_back
@pytest.mark.long
def test_the_largest_searches_give_their_memory_back(database_url: str) -> None:
    with serving(database_url) as service:
        ask(service, QUESTION, 64)
        before = resident_mib(service.process.pid)
        for times in (4, 5, 6):
            ask(service, LARGEST, times * LARGEST["cluster"]["num_chips"])
        wait_for(lambda: resident_mib(service.process.pid) <= before + 100)


def ask(service: Service, question: dict[str, Any], global_batch: int) -> None:
    body = changed(question, "workload.global_batch", global_batch)
    service.request("POST", "/v1/recommendations", json=body).raise_for_status()
