"""The image and docker-compose.yml, read as Docker reads them, and what they start as processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml

from service.runtime.graceful_stop import LAST_S
from service.settings import Settings
from tests.paths import ROOT
from tests.service.processes import Service, starting

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
OURS = [name for name, service in SERVICES.items() if "build" in service]
SERVING = [name for name in OURS if "ports" in SERVICES[name]]


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.*)$", DOCKERFILE, re.MULTILINE)


def image_environment() -> dict[str, str]:
    words = [word for line in instructions("ENV") for word in shlex.split(line)]
    return dict(word.split("=", 1) for word in words)


def environment(service: str) -> dict[str, str]:
    """Of a container, on a machine where PostgreSQL's password is set."""
    variables = {**image_environment(), **SERVICES[service]["environment"]}
    return {name: value.replace("${POSTGRES_PASSWORD:-}", "x") for name, value in variables.items()}


def command(instruction: str) -> list[str]:
    (line,) = instructions(instruction)
    words: list[str] = json.loads(line[line.index("[") :])
    return [sys.executable if word == "python" else word for word in words]


@pytest.mark.parametrize("name", [*OURS, "postgres"])
def test_a_container_may_do_no_more_than_it_must(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert "/tmp" in service["tmpfs"]
    assert service["mem_limit"]
    assert "healthcheck" in service or name in OURS


@pytest.mark.parametrize("name", SERVING)
def test_a_container_has_time_to_stop(name: str) -> None:
    seconds = float(SERVICES[name]["stop_grace_period"].removesuffix("s"))
    assert seconds > Settings().stop_grace_s + LAST_S


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_open_to_this_machine_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_every_volume_is_one_that_is_declared() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).is_dir()


def test_the_image_does_not_run_as_root_and_keeps_its_data_in_a_volume() -> None:
    (user,) = instructions("USER")
    (volume,) = instructions("VOLUME")
    (folder,) = instructions("WORKDIR")
    assert int(user) > 0
    database = Path(folder, image_environment()["SHARDWRIGHT_DATABASE_URL"].split("///")[1])
    assert database.parent == Path(volume)


def test_all_that_the_image_copies_is_sent_to_docker() -> None:
    sent = (ROOT / ".dockerignore").read_text().split()
    defaults = dict(line.split("=", 1) for line in instructions("ARG"))
    for line in instructions("COPY"):
        assert f"!{Template(line.split()[0]).substitute(defaults)}" in sent


@pytest.mark.parametrize("name", SERVING)
def test_what_a_container_is_told_are_settings(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for variable, value in environment(name).items():
        monkeypatch.setenv(variable, value)
    settings = Settings()
    assert settings.host == "0.0.0.0"
    assert settings.require_api_keys or settings.proxy_checks_callers


def check_health(service: Service, port: str) -> int:
    variables = {**os.environ, "SHARDWRIGHT_PORT": port}
    return subprocess.run(command("HEALTHCHECK"), env=variables, check=False).returncode


@pytest.mark.long
def test_the_command_of_the_image_serves_and_its_check_sees_that(tmp_path: Path) -> None:
    variables = {
        name.removeprefix("SHARDWRIGHT_").lower(): value
        for name, value in image_environment().items()
        if name.startswith("SHARDWRIGHT_") and not name.endswith("_URL")
    }
    url = f"sqlite:///{tmp_path / 'x.db'}"
    with starting(url, command=tuple(command("CMD")), port=0, **variables) as service:
        service.read_address()
        port = service.address.rpartition(":")[2]
        service.address = f"http://127.0.0.1:{port}"
        service.wait_until_ready()
        assert service.request("GET", "/v1/reports").status_code == 401
        assert check_health(service, port) == 0
        service.kill()
        assert check_health(service, port) != 0


@pytest.mark.skipif(shutil.which("docker") is None, reason="there is no docker")
def test_docker_compose_reads_the_file() -> None:
    compose = ["docker", "compose"]
    if subprocess.run([*compose, "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker has no compose here")
    subprocess.run([*compose, "config", "--quiet"], cwd=ROOT, check=True)
