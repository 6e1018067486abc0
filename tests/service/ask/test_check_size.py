"""An answer of a check is cut where it would be too long, what is least needed first."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from service.ask.check_size import MAX_BYTES, shortened

SHORT: dict[str, Any] = {
    "switches": [{"name": "one"}, {"name": "two"}],
    "launch_read": None,
    "assumptions": ["a"],
    "fits": None,
    "warnings": [],
    "broken_rules": [{"name": "rule"}],
}


def test_a_short_answer_stays_as_it_is() -> None:
    assert shortened(deepcopy(SHORT)) == SHORT


def test_what_is_least_needed_goes_first() -> None:
    long = {**deepcopy(SHORT), "assumptions": ["a" * 1000] * 20}
    found = shortened(long)
    assert found["switches"] == []
    assert 0 < len(found["assumptions"]) < 20
    assert found["broken_rules"] == SHORT["broken_rules"]
    assert len(json.dumps(found, separators=(",", ":"))) <= MAX_BYTES
