from __future__ import annotations

import numba
import pytest

from models.compilation import processor
from models.compilation.processor import target_shared_processor_level

RECENT = {**dict.fromkeys(processor._X86_64_V3, True), "avx512f": True}


def targeted(monkeypatch: pytest.MonkeyPatch, features: dict[str, bool], chosen: str | None) -> str:
    monkeypatch.setattr(numba.config, "CPU_NAME", chosen)
    monkeypatch.setattr(numba.config, "CPU_FEATURES", None)
    monkeypatch.setattr(processor, "get_host_cpu_features", lambda: features)
    target_shared_processor_level()
    return numba.config.CPU_NAME


def test_a_recent_processor_stands_for_all_recent_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert targeted(monkeypatch, RECENT, None) == "x86-64-v3"
    assert numba.config.CPU_FEATURES == ""


@pytest.mark.parametrize("features", [{**RECENT, "avx2": False}, {"neon": True}, {}])
def test_any_other_stands_for_itself(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, bool]
) -> None:
    assert targeted(monkeypatch, features, None) is None


def test_a_processor_that_was_chosen_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert targeted(monkeypatch, RECENT, "generic") == "generic"
