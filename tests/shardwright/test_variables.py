from __future__ import annotations

import re

from shardwright.variables import OF_CALLERS
from tests.paths import ROOT


def test_every_variable_that_the_client_or_a_hook_reads_is_known() -> None:
    files = [path for path in (ROOT / "shardwright").rglob("*") if path.is_file()]
    texts = [path.read_text() for path in files if path.suffix not in (".pyc", ".pyo")]
    named = {name for text in texts for name in re.findall(r"SHARDWRIGHT_[A-Z_]+", text)}
    assert named == OF_CALLERS
