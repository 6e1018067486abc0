"""Launch configurations as texts: what is read back of each is what was written."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from models.spec import catalogue
from models.spec.hardware import Cluster
from models.spec.switches import changed
from service.formats.launch.formats import FORMATS, format_of_stack
from service.formats.launch.job import Inexpressible, LaunchConfiguration
from service.formats.launch.machines import Machines, slurm_options
from service.formats.launch.rendering import as_python, as_shell, as_yaml, command_words
from tests.service.formats.launch.jobs import job_of, layout_read, problem_of

_VENDORS = {"maxtext": "tpu-v5p"}


def configuration(name: str, nodes: tuple[str, ...] = ()) -> LaunchConfiguration:
    format_ = FORMATS[name]
    problem = problem_of(format_.stacks[0], chip=_VENDORS.get(name, "h100"))
    job = job_of(problem, dp_shard=16, zero_stage=problem.stack.zero_stages[-1])
    written = format_.write(replace(job, nodes=nodes))
    answer = {"SHARDWRIGHT_ID": "it's $HOME"}
    return replace(written, environment={**written.environment, **answer})


NAMES = pytest.mark.parametrize("name", [*FORMATS])


def _wanted_variables(script: str) -> list[str]:
    return re.findall(r'^: "\$\{(\w+):?\?', script, re.MULTILINE)


_RECORD = 'printf "%s\\0" "${0##*/}" "$@" >> calls; echo >> calls\n'
_STUBS = {
    **dict.fromkeys(("torchrun", "accelerate", "python3"), _RECORD),
    "scontrol": "printf '%s\\n' n1 n2\n",
    # A task on each of two nodes, which are in the order of the host file where it counts.
    "srun": f"""
{_RECORD}
nodes=(n1 n2)
for option in "$@"; do
  if [ "${{option}}" = --distribution=arbitrary ]; then mapfile -t nodes < "${{SLURM_HOSTFILE}}"; fi
done
while [ "${{1#-}}" != "$1" ]; do shift; done
for task in "${{!nodes[@]}}"; do
  echo "${{nodes[task]}}" >> nodes
  SLURM_PROCID="${{task}}" "$@"
done
""",
}


def run(script: str, folder: Path, *arguments: str, **variables: str) -> list[list[str]]:
    """The words of every command that a script starts, with its launchers replaced by some that
    write down how they were called."""
    (folder / "bin").mkdir(exist_ok=True)
    for command, text in _STUBS.items():
        stub = folder / "bin" / command
        stub.write_text(f"#!/bin/bash\n{text}")
        stub.chmod(0o755)
    path = f"{folder / 'bin'}:/usr/bin:/bin"
    environment = {"PATH": path, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", **variables}
    subprocess.run(
        ["bash", "-c", script, "job.sh", *arguments],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )
    calls = (folder / "calls").read_text().split("\0\n")
    return [call.split("\0") for call in calls if call]


@NAMES
def test_the_script_starts_the_job_with_the_arguments(name: str, tmp_path: Path) -> None:
    made = configuration(name)
    script = as_shell(made)
    wanted = _wanted_variables(script)
    calls = run(script, tmp_path, **dict.fromkeys(wanted, "a value"))
    job = calls[-1]
    for word in command_words(made):
        assert word in job
    if FORMATS[name].words is not None:
        # One is a list of two words.
        assert sum("a value" in word for word in job) == len(
            {*made.placeholders} - {*made.list_placeholders}
        )
        assert ("value" in job) == bool(made.list_placeholders)
    document = {"deepspeed": "deepspeed-7.json", "accelerate": "accelerate-7.yaml"}.get(name)
    assert (document is None) == (FORMATS[name].words is not None)
    if document is not None:
        assert document in job


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("megatron", "--node-rank={}"),
        ("torchtitan", "--node-rank={}"),
        ("megatron-bridge", "--node-rank={}"),
        ("deepspeed", "--node-rank={}"),
        ("accelerate", "--machine_rank {}"),
    ],
)
@pytest.mark.parametrize("nodes", [(), ("n9", "n3")])
def test_every_node_has_the_rank_of_its_task(
    name: str, rank: str, nodes: tuple[str, ...], tmp_path: Path
) -> None:
    made = configuration(name, nodes=nodes)
    script = as_shell(made)
    calls = run(script, tmp_path, **dict.fromkeys(_wanted_variables(script), "1"))
    agents = [" ".join(call) for call in calls if call[0] in ("torchrun", "accelerate")]
    assert len(agents) == 2
    first = nodes[0] if nodes else "n1"
    for task, agent in enumerate(agents):
        assert rank.format(task) in agent
        assert first in agent
    assert (tmp_path / "nodes").read_text().split() == [*(nodes or ("n1", "n2"))]
    if nodes:
        assert made.slurm["nodelist"] == "n9,n3"


def test_jax_is_told_where_its_processes_meet(tmp_path: Path) -> None:
    problem = problem_of("maxtext")
    made = FORMATS["maxtext"].write(job_of(problem, dp_shard=16, zero_stage=3))
    script = as_shell(made)
    recorder = "env | grep -E '^JAX_|^NNODES|^NODE_RANK' | sort | tr '\\n' ' ' >> processes"
    stand_in = f"python3() {{ {recorder}; }}; export -f python3\n"
    run(
        stand_in + script.replace("exec python3", "python3"),
        tmp_path,
        **dict.fromkeys(_wanted_variables(script), "1"),
    )
    written = (tmp_path / "processes").read_text()
    meeting = "JAX_COORDINATOR_IP=n1 JAX_COORDINATOR_PORT=29500 NNODES=2 NODE_RANK="
    assert written == f"{meeting}0 {meeting}1 "


@pytest.mark.parametrize("name", [name for name in FORMATS if FORMATS[name].words is not None])
def test_arguments_may_be_left_out_and_added(name: str, tmp_path: Path) -> None:
    made = configuration(name)
    script = as_shell(made)
    wanted = dict.fromkeys(_wanted_variables(script), "")
    job = run(script, tmp_path, "--more", "two words", **wanted)[-1]
    assert job[-2:] == ["--more", "two words"] or job[-1].startswith("activation-checkpoint:")
    assert job[job.index("--more") + 1] == "two words"
    for placeholder in made.placeholders:
        assert not any(word.partition("=")[0].lstrip("-") == placeholder for word in job)


def test_a_job_resumes_from_where_it_saves(tmp_path: Path) -> None:
    script = as_shell(configuration("megatron"))
    assert "LOAD" not in _wanted_variables(script)
    job = run(script, tmp_path, **dict.fromkeys(_wanted_variables(script), "/folder"))[-1]
    assert job[job.index("--load") + 1] == "/folder"


def test_the_data_set_may_be_several_words(tmp_path: Path) -> None:
    script = as_shell(configuration("megatron"))
    wanted = dict.fromkeys(_wanted_variables(script), "1")
    job = run(script, tmp_path, **{**wanted, "DATA_PATH": "0.3 /data/a 0.7 /data/b"})[-1]
    at = job.index("--data-path")
    assert job[at + 1 : at + 5] == ["0.3", "/data/a", "0.7", "/data/b"]


@NAMES
def test_the_script_stops_where_something_is_to_be_filled_in(name: str, tmp_path: Path) -> None:
    script = as_shell(configuration(name))
    for variable in _wanted_variables(script)[:1]:
        stopped = subprocess.run(
            ["bash"], input=script, text=True, capture_output=True, check=False, cwd=tmp_path
        )
        assert stopped.returncode != 0
        assert variable in stopped.stderr


@pytest.mark.parametrize(
    ("name", "file"), [("deepspeed", "deepspeed-7.json"), ("accelerate", "accelerate-7.yaml")]
)
def test_the_script_writes_the_document(name: str, file: str, tmp_path: Path) -> None:
    made = configuration(name)
    script = as_shell(made)
    run(script, tmp_path, **dict.fromkeys(_wanted_variables(script), "7"))
    document = yaml.safe_load((tmp_path / file).read_text())
    for setting in made.placeholders:
        *steps, last = setting.split(".")
        inner = document
        for step in steps:
            inner = inner[step]
        assert inner.pop(last) == 7
    if name == "deepspeed":
        assert document.pop("optimizer") == {"type": "AdamW", "params": {}}
    expected = {key: made.settings[key] for key in made.settings if key != "optimizer"}
    assert document == expected


@pytest.mark.parametrize("name", ["deepspeed", "accelerate"])
def test_two_jobs_in_one_folder_write_two_documents(name: str, tmp_path: Path) -> None:
    script = as_shell(configuration(name))
    wanted = dict.fromkeys(_wanted_variables(script), "7")
    for job in ("7", "8"):
        run(script, tmp_path, **{**wanted, "SLURM_JOB_ID": job})
    documents = [*tmp_path.glob("*.json"), *tmp_path.glob("*.yaml")]
    assert sorted(path.stem for path in documents) == [f"{name}-7", f"{name}-8"]


@NAMES
def test_the_environment_is_exported(name: str, tmp_path: Path) -> None:
    script = as_shell(configuration(name)).partition("set -euo pipefail")[2]
    exports = [line for line in script.splitlines() if line.startswith("export ")]
    shown = "\n".join([*exports, 'printf "%s" "${SHARDWRIGHT_ID}"'])
    found = subprocess.run(["bash", "-c", shown], text=True, capture_output=True, check=True)
    assert found.stdout == "it's $HOME"


@NAMES
def test_slurm_gets_its_options_before_the_first_command(name: str) -> None:
    made = configuration(name)
    script = as_shell(made).splitlines()
    assert script[0] == "#!/bin/bash"
    options = [line for line in script if line.startswith("#SBATCH")]
    assert script[1 : 1 + len(options)] == options
    values = {option: "" if value is True else f"={value}" for option, value in made.slurm.items()}
    assert options == [f"#SBATCH --{option}{value}" for option, value in values.items()]
    assert ("exclusive" in made.slurm) == bool(made.slurm)
    assert ("time, account and partition" in as_shell(made).lower()) == bool(made.slurm)


class _Attributes:
    """Takes any attribute, however deep."""

    def __getattr__(self, name: str) -> _Attributes:
        self.__dict__[name] = inner = _Attributes()
        return inner

    def assigned(self, prefix: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in vars(self).items():
            is_inner = isinstance(value, _Attributes)
            found |= value.assigned(f"{prefix}{name}.") if is_inner else {prefix + name: value}
        return found


@NAMES
def test_yaml_and_python_hold_the_same_settings(name: str) -> None:
    made = configuration(name)
    assert yaml.safe_load(as_yaml(made)) == dict(made.settings)
    module: dict[str, Any] = {}
    exec(as_python(made), module)  # noqa: S102 - our own text
    assert module["ARGUMENTS"] == command_words(made)
    assert module["PLACEHOLDERS"] == made.placeholders
    assert module["ENVIRONMENT"] == made.environment
    assert module.get("CONFIG", made.settings) == made.settings
    if (owner := FORMATS[name].configures) is not None:
        configured = _Attributes()
        module["configure"](configured)
        assert configured.assigned() == made.settings, owner
    assert all(len(line) <= 100 for line in as_yaml(made).splitlines() if line.startswith("#"))


TEXT = st.text(st.characters(exclude_characters="\0\r\n:", exclude_categories=("Cs", "Cc")))


@given(value=TEXT, what=TEXT, note=TEXT.filter(str.strip))
def test_any_text_survives_the_shell(value: str, what: str, note: str) -> None:
    made = replace(
        configuration("accelerate"),
        settings={"document": value},
        environment={"A": value},
        placeholders={"lr": what},
        script_arguments={"run_name": value},
        notes=(note,),
    )
    script = as_shell(made)
    before, _, command = script.rpartition("END\n")
    assert shlex.split(command.replace("\\\n", " "))[-2:] == [value, "$@"]
    checked = f"{before}END\n".replace('cat > "${CONFIG}"', "cat") + 'printf "%s" "${A}"'
    found = subprocess.run(
        ["bash", "-c", checked],
        env={"LR": "0.1", "SCRIPT": "x", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
    )
    document, _, variable = found.stdout.decode().rpartition("\nlr: 0.1\n")
    assert yaml.safe_load(document) == {"document": value}
    assert variable == value


def test_variables_have_the_short_names_of_settings_that_no_two_share() -> None:
    made = replace(
        configuration("deepspeed"),
        placeholders={"optimizer.lr": "a", "scheduler.lr": "b", "data.path": "c", "x.y-z": "d"},
    )
    wanted = _wanted_variables(as_shell(made))
    assert wanted == ["OPTIMIZER_LR", "SCHEDULER_LR", "VALUE_PATH", "Y_Z", "SCRIPT"]


def test_a_program_that_has_no_settled_name_is_a_variable() -> None:
    made = replace(configuration("megatron"), script="the program of your checkout")
    script = as_shell(made)
    assert '"${SCRIPT:?the program of your checkout}"' in script
    reading = FORMATS["megatron"].read(script, None)
    assert (reading.reservations, reading.num_devices) == ((), 16)
    assert "SCRIPT" not in as_shell(configuration("megatron"))


@NAMES
def test_a_script_is_understood_before_its_placeholders_are_filled_in(name: str) -> None:
    reading = FORMATS[name].read(as_shell(configuration(name)), None)
    assert reading.reservations == ()


@pytest.mark.parametrize("stack", sorted({one.id for one in catalogue.stacks().values()}))
def test_a_stack_has_one_format_or_none(stack: str) -> None:
    own = [format_ for format_ in FORMATS.values() if stack in format_.stacks]
    assert len(own) <= 1
    assert format_of_stack(stack) == (own[0] if own else None)


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (catalogue.cluster("h100", 16), Machines(2, 8, 1)),
        (catalogue.cluster("h100", 4), Machines(1, 4, 1, is_whole=False)),
        (catalogue.cluster("h100", 12), Machines(3, 4, 1, is_whole=False)),
        (catalogue.cluster("gb200", 144), Machines(36, 4, 18)),
        (catalogue.cluster("gb300", 144), Machines(36, 4, 18)),
        (catalogue.cluster("tpu-v5p", 64), Machines(16, 4, 16)),
    ],
)
def test_machines_are_those_of_the_cluster(cluster: Cluster, expected: Machines) -> None:
    assert Machines.of(cluster) == expected


def test_a_segment_keeps_the_nodes_of_a_rack_together() -> None:
    assert slurm_options(Machines.of(catalogue.cluster("gb200", 144))) == {
        "nodes": 36,
        "ntasks-per-node": 1,
        "gpus-per-node": 4,
        "exclusive": True,
        "segment": 18,
    }
    assert "segment" not in slurm_options(Machines.of(catalogue.cluster("gb200", 72)))
    assert json.dumps(slurm_options(Machines.of(catalogue.cluster("h100", 8))))


def test_switches_that_are_no_flags_of_megatron_are_named() -> None:
    problem = problem_of("primus-turbo", "mixtral-8x7b", chip="mi300x")
    with pytest.raises(Inexpressible, match="use_turbo_grouped_mlp"):
        FORMATS["megatron"].write(job_of(problem, dp_shard=16, ep=8))
    dense = problem_of("primus-turbo", chip="mi300x")
    assert FORMATS["megatron"].write(job_of(dense, dp_shard=16)).settings


@NAMES
def test_the_script_is_read_as_it_is(name: str) -> None:
    format_ = FORMATS[name]
    problem = problem_of(format_.stacks[0], chip=_VENDORS.get(name, "h100"))
    job = job_of(problem, dp_shard=16, zero_stage=problem.stack.zero_stages[-1])
    reading = format_.read(as_shell(format_.write(job)), None)
    assert layout_read(reading, problem) == job.layout
    assert reading.num_devices == 16


def notes_of(stack: str, model: str = "llama-3-8b", chip: str = "h100", **knobs: Any) -> str:
    problem = problem_of(stack, model, chip=chip)
    format_ = next(each for each in FORMATS.values() if stack in each.stacks)
    written = format_.write(job_of(problem, **knobs))
    return " ".join(written.notes)


def test_notes_say_what_no_setting_does() -> None:
    slice_ = notes_of("maxtext", chip="tpu-v5p", dp_shard=16, zero_stage=3)
    assert "every host of the slice" in slice_
    assert "4 hosts, where a host has 4 chips" in slice_
    assert "dropped" not in notes_of("megatron-bridge", "qwen3-30b-a3b", dp_shard=16, ep=8)
    assert "fsdp_version is 1" in notes_of("fsdp", dp_shard=16, zero_stage=2, recompute="full")
    trainer = notes_of("deepspeed", dp_shard=16, zero_stage=3, micro_batch=2)
    assert "--per_device_train_batch_size 2 --gradient_accumulation_steps 2" in trainer


def test_a_graph_of_a_whole_sparse_step_is_written_with_what_it_needs() -> None:
    problem = problem_of("megatron-bridge", "qwen3-30b-a3b")
    problem = replace(problem, stack=changed(problem.stack, {"moe_graphs": "full"}))
    written = FORMATS["megatron-bridge"].write(job_of(problem, dp_shard=16, ep=8))
    assert written.settings["model.cuda_graph_impl"] == "full_iteration"
    assert written.settings["model.moe_expert_rank_capacity_factor"] == 1.5
    assert written.settings["model.moe_flex_dispatcher_backend"] == "hybridep"
    assert written.settings["model.moe_paged_stash"] is True
    assert "rank capacity factor of 1.5 are dropped" in " ".join(written.notes)


def test_a_job_on_part_of_nodes_shares_them() -> None:
    problem = problem_of("megatron", num_chips=4)
    made = FORMATS["megatron"].write(job_of(problem, dp_shard=4))
    assert "exclusive" not in made.slurm
    assert "--cpus-per-task" in as_shell(made)


def test_an_example_of_a_recipe_is_of_the_model() -> None:
    problem = problem_of("megatron-bridge", "qwen3-8b")
    recipe = FORMATS["megatron-bridge"].write(job_of(problem, dp_shard=16)).placeholders["recipe"]
    assert "qwen3-8b" in recipe
    assert "llama" not in recipe
