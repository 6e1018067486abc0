"""The environments that `make test-hooks` makes, one a client, and programs that run in them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

_FOLDER = ROOT / "build" / "hooks"
_CLIENTS = Path(__file__).parent / "clients"
_LONGEST_S = 180.0  # imports of SkyPilot and NeMo take half a minute on a busy machine


def python_of(client: str) -> Path:
    return _FOLDER / client / "bin" / "python"


def needs(client: str) -> pytest.MarkDecorator:
    """Skips a test by the name of the client that it needs."""
    reason = f"{client}: make test-hooks makes its environment"
    return pytest.mark.skipif(not python_of(client).exists(), reason=reason)


def ask(
    client: str, *arguments: str, given: str = "", folder: Path | None = None, **environment: str
) -> Any:
    """Returns what the program of a client prints, from JSON."""
    ended = subprocess.run(
        [python_of(client), _CLIENTS / f"{client}_client.py", *arguments],
        input=given,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])
