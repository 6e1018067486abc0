"""`shardwright report --mlflow`, on a run in a store of the real MLflow."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT
from tests.shardwright.hooks.environments import ask, needs, python_of
from tests.shardwright.hooks.jobs import MEGATRON
from tests.shardwright.hooks.services import ServiceProcess, running

pytestmark = [pytest.mark.hooks, needs("mlflow")]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running(tmp_path_factory.mktemp("service")) as process:
        yield process


def _reported(service: ServiceProcess, folder: Path, parameters: Any, *options: str) -> Any:
    """The report of a run with these parameters, as the command prints it."""
    uri = f"sqlite:///{folder}/mlflow.db"
    store = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true"}
    run_id = ask("mlflow", given=json.dumps(parameters), **store)
    command = [python_of("mlflow"), "-m", "shardwright", "report", "--mlflow", run_id, "--json"]
    given = {**os.environ, **store, "PYTHONPATH": str(ROOT), "SHARDWRIGHT_URL": service.url}
    ended = subprocess.run(
        [*command, *options], cwd=folder, env=given, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def _report_is_of_the_run(stored: Any) -> bool:
    return (
        stored["outcome"] == "ok"
        and stored["measured"]["step_time_s"] == pytest.approx(300)
        and stored["memory"]["reserved_gib"] == pytest.approx(180)
    )


def test_a_run_is_reported_beside_what_is_predicted_of_its_job(
    service: ServiceProcess, tmp_path: Path
) -> None:
    job = tmp_path / "job.sh"
    job.write_text(MEGATRON)
    assert _report_is_of_the_run(_reported(service, tmp_path, {}, f"--job={job}"))


def test_parameters_that_a_run_logged_say_what_ran(service: ServiceProcess, tmp_path: Path) -> None:
    """As a program logs its arguments: by their names, underscores and all."""
    flags = re.findall(r"--([\w-]+)(?: ([^-\s]\S*))?", MEGATRON.partition("pretrain_gpt.py")[2])
    parameters = {name.replace("-", "_"): value or True for name, value in flags}
    stored = _reported(service, tmp_path, parameters, "--on=b300", "--chips=8")
    assert _report_is_of_the_run(stored)
