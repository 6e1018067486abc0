"""The script that the guide for CI has: what it lets pass, and that it checks all before it
fails."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from shardwright.cli.exit_codes import ExitCode
from tests.paths import ROOT

_PAGE = (ROOT / "docs" / "guides" / "ci.md").read_text()
_SCRIPT = re.compile(r"^cat > check.sh <<'EOF'\n(.*?)^EOF$", re.DOTALL | re.MULTILINE)
_FAILING = {
    ExitCode.WRONG_QUESTION,
    ExitCode.WILL_NOT_FIT,
    ExitCode.ILLEGAL,
    ExitCode.WARNINGS,
}


def _checked(folder: Path, command: str, *scripts: str) -> subprocess.CompletedProcess[str]:
    """The end of the guide's script, with another command in the place of `shardwright`."""
    found = _SCRIPT.search(_PAGE)
    assert found
    stub = folder / "shardwright"
    stub.write_text(f"#!/bin/sh\n{command}\n")
    stub.chmod(0o755)
    return subprocess.run(
        ["bash", "-e", "-c", found[1], "check.sh", *scripts],
        env={**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("code", ExitCode)
def test_only_jobs_that_will_not_run_and_wrong_checks_fail(tmp_path: Path, code: ExitCode) -> None:
    stub = f'[ "$1" = --version ] || exit {code.value}'
    ended = _checked(tmp_path, stub, "a.sh")
    assert (ended.returncode != 0) == (code in _FAILING)
    assert ("passes" in ended.stdout) == (code not in _FAILING and code != ExitCode.OK)


def test_every_script_is_checked_before_it_fails(tmp_path: Path) -> None:
    stub = '[ "$1" = --version ] || { echo "checks $2"; [ "$2" != bad.sh ] || exit 4; }'
    ended = _checked(tmp_path, stub, "bad.sh", "good.sh")
    assert ended.returncode != 0
    assert "checks good.sh" in ended.stdout


@pytest.mark.parametrize("code", [1, 126, 127])
def test_a_broken_install_fails(tmp_path: Path, code: int) -> None:
    """Python ends with 1 where a module is missing, as a check does without a service."""
    assert _checked(tmp_path, f"exit {code}", "a.sh").returncode == code
