"""The compilation of everything, where nothing is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

COMPILE = """
from models.search.warm_up import warm_up
from service.runtime import compilation, cost_model

work, compilation.WORK = compilation.WORK, 1e9
shown = []
cost_model.compile_cost_model(warm_up, shown.append)
print(shown[-1].share * 1e9 / work)
"""


@pytest.mark.long
def test_the_progress_of_a_cold_compilation_ends_where_it_says(tmp_path: Path) -> None:
    """Within a tenth, so that the time left is told about as well."""
    for part in ("models", "service", "shardwright"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=ignored)
    own = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE]
    said = subprocess.check_output(command, cwd=tmp_path, env=own, text=True)
    assert 0.9 <= float(said.splitlines()[-1]) <= 1.1
