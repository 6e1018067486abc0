"""The two distributions, as wheels that are built here and installed where nothing else is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.service.processes import starting

pytestmark = pytest.mark.long

_PARTS = ("shardwright", "models", "service", "migrations", "server")
_FILES = ("pyproject.toml", "README.md", "LICENSE")
_MOST_MB = 40
_MACHINE_CODE = Path("models/__pycache__") / f"machine-code-{sys.implementation.cache_tag}"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each distribution, by its name."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheels")
    for part in _PARTS:
        ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
        shutil.copytree(ROOT / part, tree / part, symlinks=True, ignore=ignored)
    for file in _FILES:
        shutil.copy(ROOT / file, tree / file)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out)]
    subprocess.run([*pip, ".", "./server"], cwd=tree, check=True)
    return {file.name.partition("-")[0]: file for file in out.glob("*.whl")}


def environment(folder: Path) -> Path:
    """The Python of a new environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def install(python: Path, *arguments: str) -> None:
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments], check=True)


def test_the_client_alone_is_small_and_brings_no_packages_with_plain_names(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    python = environment(tmp_path / "client")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "client")}))
    before = _megabytes(packages)
    install(python, str(wheels["shardwright"]))
    listed = subprocess.check_output([python, "-m", "pip", "list", "--format=json"], text=True)
    names = {each["name"].lower() for each in json.loads(listed)}
    assert {"shardwright", "httpx", "typer", "rich"} <= names
    assert not {"numpy", "numba", "fastapi", "sqlalchemy"} & names
    grown = _megabytes(packages) - before
    print(f"{len(names)} packages, {grown:.1f} MB: {', '.join(sorted(names))}")
    assert grown <= _MOST_MB
    for module in ("models", "service", "migrations"):
        found = subprocess.run([python, "-c", f"import {module}"], cwd=tmp_path, check=False,
                               capture_output=True)  # fmt: skip
        assert found.returncode == 1
    command = python.with_name("shardwright")
    assert subprocess.check_output([command, "--version"], text=True).strip()
    served = subprocess.run([command, "serve"], capture_output=True, text=True, check=False)
    assert served.returncode == 1
    assert "shardwright[server]" in served.stderr


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def test_an_installed_server_starts_on_an_empty_database_and_answers_the_command_line(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    """On the packages of this environment: those that it needs take minutes to install."""
    python = environment(tmp_path / "server")
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "server")}))
    install(python, "--no-deps", *map(str, wheels.values()))
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    if (ROOT / _MACHINE_CODE).exists():  # it is that of the same sources
        shutil.copytree(ROOT / _MACHINE_CODE, packages / _MACHINE_CODE)
    command = (str(python), "-m", "service", "--port", "0")
    with starting(f"sqlite:///{tmp_path}/new.db", command=command, folder=tmp_path) as service:
        service.read_address()
        service.wait_until_ready(within_s=900)  # where the models have to be compiled
        asked = {**os.environ, "SHARDWRIGHT_URL": service.address}
        listing = [python.with_name("shardwright"), "profiles"]
        answer = subprocess.check_output(listing, env=asked, text=True, cwd=tmp_path)
        page = service.request("GET", "/ask").text
        files = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
        assert (packages / "service/pages/static/vendor/plot.LICENSE").exists()
        assert {"pages.css", "forms.js"} <= {Path(file).name for file in files}
        assert all(service.request("GET", file).status_code == 200 for file in files)
    assert json.loads(answer)[0]["active_version"] == 1
