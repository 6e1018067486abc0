from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from service.runtime import malloc_trim


def resident_mib() -> float:
    words = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    return int(words[0]) / 1024


@pytest.mark.skipif(
    sys.platform != "linux" or malloc_trim._MALLOC_TRIM is None,
    reason="the C library gives nothing back",
)
def test_what_is_freed_goes_back_to_the_system() -> None:
    """Blocks too small to be mapped by themselves, below one that stays."""
    blocks = [np.ones(12_000) for _ in range(2000)]
    stays = np.ones(12_000)
    full = resident_mib()
    del blocks
    malloc_trim.trim()
    assert resident_mib() < full - 100
    assert stays.sum() == 12_000
