"""The component of torchx and the plugin of NeMo-Run, in dry runs of the real packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.shardwright.hooks.environments import ask, needs
from tests.shardwright.hooks.jobs import BETTER_FLAG, ILLEGAL, MEGATRON
from tests.shardwright.hooks.overhead import PATIENT_S
from tests.shardwright.hooks.services import ServiceProcess

pytestmark = pytest.mark.hooks
_CHIPS = '[chips]\n"aws_p5.48xlarge" = "b300"\n'


def _torchx(folder: Path, script: str) -> Any:
    arguments = script.partition("pretrain_gpt.py")[2].replace("\\\n", "")
    return ask("torchx", given=arguments, SHARDWRIGHT_HOOKS=f"{folder}/hooks.toml")


def _nemo_run(folder: Path, script: str) -> Any:
    experiment = folder / "experiment"
    experiment.mkdir()
    text = "\n".join(line for line in script.splitlines() if not line.startswith("#SBATCH"))
    policy = f"{folder}/hooks.toml"
    return ask("nemo_run", given=text, folder=experiment, SHARDWRIGHT_HOOKS=policy)


BOTH = pytest.mark.parametrize(
    "launch",
    [
        pytest.param(_torchx, marks=needs("torchx")),
        pytest.param(_nemo_run, marks=needs("nemo_run")),
    ],
)


def _configure(folder: Path, url: str, more: str = "") -> None:
    budget = f"budget_s = {PATIENT_S}\n"
    (folder / "hooks.toml").write_text(f'url = "{url}"\n{budget}{more}{_CHIPS}')


@BOTH
def test_a_job_is_built_with_a_warning_and_the_better_flag(
    service: ServiceProcess, tmp_path: Path, launch: Callable[..., Any]
) -> None:
    _configure(tmp_path, service.url)
    launched = launch(tmp_path, MEGATRON)
    assert launched["said"].startswith("shardwright: go, with warnings: ")
    assert BETTER_FLAG in launched["said"]
    assert "sbatch" in launched["script"]
    assert "SHARDWRIGHT_ID" not in launched["script"]


@BOTH
def test_a_job_knows_its_check_where_it_may_be_changed(
    service: ServiceProcess, tmp_path: Path, launch: Callable[..., Any]
) -> None:
    _configure(tmp_path, service.url, "patch = true\n")
    assert "SHARDWRIGHT_ID=check-" in launch(tmp_path, MEGATRON)["script"]


@BOTH
def test_an_illegal_job_is_refused_only_where_that_is_enforced(
    service: ServiceProcess, tmp_path: Path, launch: Callable[..., Any]
) -> None:
    _configure(tmp_path, service.url, 'enforce = ["illegal"]\n')
    assert "--tensor-model-parallel-size 3" in launch(tmp_path, ILLEGAL)["refusal"]


@BOTH
def test_a_job_is_built_where_the_service_hangs(
    service: ServiceProcess, tmp_path: Path, launch: Callable[..., Any]
) -> None:
    _configure(tmp_path, service.url, 'enforce = ["illegal"]\n')
    with service.frozen():
        launched = launch(tmp_path, ILLEGAL)
    assert "goes on unchanged" in launched["said"]
    assert "sbatch" in launched["script"]
