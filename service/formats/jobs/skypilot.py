"""Tasks of SkyPilot, and of dstack: the commands of `run`, on nodes with the accelerators of
`resources`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from service.formats.jobs.job_text import (
    JobText,
    as_list,
    as_mapping,
    environment_of,
    positive_integer,
    slurm_header,
)
from service.formats.shell.tpu_slices import slices_of

_ACCELERATORS = re.compile(r"([A-Za-z][\w.-]{0,60}?)(?::(\d{1,4}))?", re.ASCII)


def is_task(document: Any) -> bool:
    """Returns True for an object that is a task of SkyPilot or of dstack."""
    fields = as_mapping(document)
    if fields.get("type") == "task" and as_list(fields.get("commands")):  # of dstack
        return True
    has_run = isinstance(fields.get("run"), str)  # other YAML may have it, without the names below
    return has_run and bool({"resources", "num_nodes", "envs", "setup"} & fields.keys())


def job_of(document: Mapping[str, Any]) -> JobText:
    """Returns the job of a task, with the variables in which SkyPilot or dstack gives the number
    of nodes and of devices on each."""
    if "commands" in document:  # a task of SkyPilot has `run` instead
        return _job_of_dstack_task(document)
    nodes = positive_integer(document.get("num_nodes")) or 1
    chip, gpus = _chip_and_count(_first_resources(document).get("accelerators"))
    set_by_sky = {"SKYPILOT_NUM_NODES": str(nodes)}
    if gpus:
        set_by_sky["SKYPILOT_NUM_GPUS_PER_NODE"] = str(gpus)
    as_written = {
        "nodes": f"num_nodes: {nodes}",
        "gpus-per-node": f"accelerators: {chip}:{gpus}",
    }
    return JobText(
        text=str(document["run"]),
        environment={**set_by_sky, **environment_of(document.get("envs"))},
        header=slurm_header("SkyPilot", nodes=nodes, gpus=gpus, chip=chip, as_written=as_written),
        files={
            str(name): str(text)
            for name, text in as_mapping(document.get("file_mounts")).items()
            if isinstance(text, str) and "\n" in text  # a text, where others are paths or buckets
        },
    )


def _first_resources(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the resources that a task asks for; of several alternatives, the first."""
    resources = as_mapping(document.get("resources"))
    others = [*as_list(resources.get("any_of")), *as_list(resources.get("ordered"))]
    return {**resources, **as_mapping(others[0])} if others else resources


def _job_of_dstack_task(document: Mapping[str, Any]) -> JobText:
    """Returns the job of a dstack task: its `commands`, on `nodes` with the GPUs in `resources`.
    These stand in a header of Slurm, in which nodes and GPUs of every scheduler are read."""
    nodes = positive_integer(document.get("nodes")) or 1
    chip, gpus = _chip_and_count(as_mapping(document.get("resources")).get("gpu"))
    # `env` is a list of NAME=VALUE or a mapping; `environment_of` reads the mapping.
    pairs = [str(assignment).partition("=") for assignment in as_list(document.get("env"))]
    assigned = {name: value for name, equals, value in pairs if equals}
    set_by_dstack = {"DSTACK_NODES_NUM": str(nodes)}
    if gpus:
        set_by_dstack["DSTACK_GPUS_PER_NODE"] = str(gpus)
        set_by_dstack["DSTACK_GPUS_NUM"] = str(gpus * nodes)
    return JobText(
        text="\n".join(map(str, document["commands"])),
        environment={**set_by_dstack, **environment_of(document.get("env")), **assigned},
        header=slurm_header(
            "dstack",
            nodes=nodes,
            gpus=gpus,
            chip=chip,
            as_written={"nodes": f"nodes: {nodes}", "gpus-per-node": f"gpu: {chip}:{gpus}"},
        ),
    )


def _chip_and_count(value: Any) -> tuple[str | None, int | None]:
    """Returns the chip and the number of chips on a node: ("H100", 8) for H100:8 or {H100: 8}, and
    ("v6e", 8) for tpu-v6e-8, a slice. A list of alternatives counts as its first. Returns (None,
    None) for anything else."""
    if isinstance(value, Mapping) and "name" in value:  # of dstack
        return _chip_and_count(f"{value['name']}:{value.get('count', 1)}")
    if isinstance(value, Mapping):
        chip, count = next(iter(value.items()), (None, None))
        return _chip_and_count(chip if count is None else f"{chip}:{count}")
    if as_list(value):
        return _chip_and_count(value[0])
    match = _ACCELERATORS.fullmatch(str(value or ""))
    if match is None:
        return None, None
    count = int(match[2] or 1)
    slices = slices_of({"tpu_type": match[1].removeprefix("tpu-")})
    return (match[1], count) if slices is None else (slices.chip, slices.num_chips * count)
