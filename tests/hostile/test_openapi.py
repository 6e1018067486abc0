"""Requests that nobody in their right mind would send, made by schemathesis from the OpenAPI
document: each operation by itself, and chains of operations that use what earlier ones have made.

No answer may be a server error, have an undocumented status, header or body, let in somebody
without a key, or accept what the schema forbids.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from service import api_keys
from service.store import Store, database
from tests.service.processes import Service, serving

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
SCOPES = ["recommend", "report", "admin"]
REQUEST_S = 120
"""How long an answer may take. A search may ask for a minute."""
MAX_MIB = 2048
"""What the process of the service may take at its highest: a search of the largest size and more
(the operator's guide)."""


def assaulted(database_url: str, folder: Path, *options: str) -> str:
    """What schemathesis found, as it prints it."""
    engine = database.connect(database_url)
    key = api_keys.create(Store(engine), "hostile", SCOPES)
    engine.dispose()
    with serving(database_url, require_api_keys=True, log_level="WARNING") as service:
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION)]
        command += ["run", f"{service.address}/openapi.json", "--no-color"]
        command += ["--header", f"Authorization: Bearer {key}"]
        command += ["--request-timeout", str(REQUEST_S), "--generation-database", "none"]
        found = subprocess.run(
            [*command, *options],
            cwd=folder,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert found.returncode == 0, found.stdout
        assert peak_mib(service) < MAX_MIB
        assert service.request("GET", "/readyz").status_code == 200
        assert "Traceback" not in service.errors()
    return found.stdout


def peak_mib(service: Service) -> float:
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


@pytest.mark.hostile
@pytest.mark.parametrize(("phases", "factor"), [("examples,coverage,fuzzing", 1), ("stateful", 20)])
def test_hostile_requests_are_answered_as_documented(
    database_url: str, tmp_path: Path, phases: str, factor: int
) -> None:
    """Chains are short and quick, and few of them get far: so there are more."""
    seed = os.environ.get("HOSTILE_SEED") or str(random.randrange(2**32))
    examples = int(os.environ.get("HOSTILE_EXAMPLES") or 10)
    print(f"HOSTILE_SEED={seed} HOSTILE_EXAMPLES={examples}")
    options = ["--seed", seed, "--max-examples", str(factor * examples), "--phases", phases]
    print(assaulted(database_url, tmp_path, *options))


@pytest.mark.long
@pytest.mark.parametrize(("phases", "examples"), [("examples,fuzzing", 1), ("stateful", 40)])
def test_a_few_hostile_requests_are_answered_as_documented(
    database_url: str, tmp_path: Path, phases: str, examples: int
) -> None:
    """Few enough for each run of the long tests, and the same in all."""
    some = ["--seed", "0", "--max-examples", str(examples), "--phases", phases]
    assaulted(database_url, tmp_path, *some)
