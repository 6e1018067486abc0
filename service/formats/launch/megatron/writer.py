"""Writes a layout as the arguments of Megatron-LM (pretrain_gpt.py), for megatron-core 0.19.2.

The text of an Inexpressible says why no argument does what was asked for, and what to ask for
instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.spec.switches import switches_of
from service.formats.launch.facts import placeholders
from service.formats.launch.job import Inexpressible, Job, LaunchConfiguration
from service.formats.launch.machines import slurm_options
from service.formats.launch.megatron import job_arguments
from service.formats.launch.megatron import model as megatron_model
from service.formats.launch.megatron.patterns import has_pattern
from service.formats.megatron.flags import RELEASE, flag_of_argument, switches_off

NAME = "megatron"
_PROGRAM = "pretrain_gpt.py"
_HYBRID_SCRIPT = (
    "the program of your checkout of Megatron-LM that trains hybrid models, such as"
    " pretrain_hybrid.py, or pretrain_mamba.py"
)
"""The package megatron-core has no programs, and their names have changed."""
FRAMEWORK = "Megatron-LM (megatron-core)"

_FP8_GATHER, _FP4_GATHER = "--fp8-param-gather", "--fp4-param-gather"
"""One switch: parameters are gathered in the format of GEMMs, whichever that is."""
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192.0,
}
"""The numbers of Llama 3's rope scaling that Megatron has written into its code
(core/models/common/embeddings/rotary_pos_embedding.py, _apply_scaling)."""
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096.0}
"""The numbers of yarn that latent attention has no flags for (MLATransformerConfig)."""


def write(job: Job) -> LaunchConfiguration:
    """Returns the arguments that run a job. Raises Inexpressible where none do."""
    model = job.problem.architecture
    job_arguments.require_expressible(job)
    arguments = {
        **job_arguments.layout_arguments(job),
        **job_arguments.recompute_arguments(job),
        **job_arguments.PRECISIONS[job.problem.workload.precision],
        **job_arguments.balancing_arguments(job),
        **job_arguments.memory_arguments(job),
        **megatron_model.model_arguments(job),
        "max_position_embeddings": _num_positions(job),
        "layernorm_epsilon": job.details.norm_epsilon,
        **_rotary_arguments(job),
    }
    return LaunchConfiguration(
        format=NAME,
        framework=FRAMEWORK,
        version=RELEASE,
        settings={**as_flags(arguments), **_flags_of_switches(job)},
        script=_HYBRID_SCRIPT if has_pattern(model) else "",
        environment=job_arguments.environment(job),
        placeholders=_placeholders(job),
        list_placeholders=("--data-path",),
        placeholder_defaults={"--load": "--save"},  # a restarted job loads what it saved
        slurm=slurm_options(job.machines),
        notes=tuple(_notes(job)),
    )


def _flags_of_switches(job: Job) -> dict[str, Any]:
    """Returns the flags of the stack's switches. Raises Inexpressible where one is on that is no
    flag of Megatron-LM but a key in another framework's file, as with Primus-Turbo."""
    stack = job.problem.stack
    flags: dict[str, Any] = {}
    for name, value in job_arguments.switches(job).items():
        if name.startswith("--"):
            flags[name] = value
        elif value:
            field = next(switch.field for switch in switches_of(stack) if name in switch.arguments)
            cure = f"{name} is a key of the file of {stack.id}; ask with false, or for megatron"
            raise Inexpressible(f"stack.{field}", getattr(stack, field), cure)
    # Parameters in NVFP4 are gathered by a flag of their own.
    if job.problem.workload.precision == "nvfp4" and flags.pop(_FP8_GATHER, False):
        flags[_FP4_GATHER] = True
    return flags


other_stack_fields = job_arguments.other_stack_fields


def words(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings as the words of a command line: ["--bf16", "--seq-length", "4096"]."""
    listed: list[str] = []
    for name, value in settings.items():
        listed.append(name)
        if isinstance(value, (list, tuple)):
            listed += map(str, value)
        elif value is not True:
            listed.append(str(value))
    return listed


def as_flags(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments as flags: {"--bf16": True, "--num-layers": 32}. A boolean becomes a flag
    only where that flag sets this value, since most only switch on. None is left out, and a
    window is joined by a comma."""
    flags: dict[str, Any] = {}
    for name, value in arguments.items():
        flag = flag_of_argument()[name]
        if name == "window_size":
            flags[flag] = ",".join(map(str, value))
        elif isinstance(value, bool):
            if value != switches_off(flag):
                flags[flag] = True
        elif value is not None:
            flags[flag] = value
    return flags


def _num_positions(job: Job) -> int:
    """Returns the number of positions: those that the model learns, or its context length, which
    is at least the sequence length."""
    learned = job.problem.architecture.learned_positions
    return learned or max(job.problem.workload.seq_len, job.details.context_length or 0)


def _rotary_arguments(job: Job) -> dict[str, Any]:
    """Returns the arguments of rotary positions: their base, which Megatron takes as a whole
    number, their share of a head, and their scaling. Latent attention sets the share by its own
    sizes."""
    if not _has_rotary(job):
        return {}
    theta = job.details.rope_theta
    share = job.details.rotary_share
    arguments: dict[str, Any] = _rope_scaling(job)
    if theta is not None and theta.is_integer():
        arguments["rotary_base"] = int(theta)
    if share not in (None, 1) and not any(
        attention.is_mla for attention in job.problem.architecture.attentions
    ):
        arguments["rotary_percent"] = share
    return arguments


def _rope_scaling(job: Job) -> dict[str, Any]:
    """Returns the arguments that scale rotary positions to a longer context. Returns none where
    the model does not, and where Megatron has no equivalent."""
    scaling = job.details.rope_scaling
    if scaling is None:
        return {}
    # Numbers that have no flag must be those that Megatron has in its code (_LLAMA3, _YARN).
    if scaling.kind == "llama3" and scaling.has_numbers(**_LLAMA3):
        factor = scaling.number("factor", 8.0)
        return {"use_rope_scaling": True, "rope_scaling_factor": factor}
    is_latent = all(attention.is_mla for attention in job.problem.architecture.attentions)
    if scaling.kind == "yarn" and is_latent and scaling.has_numbers(**_YARN):
        return {
            "rope_type": "yarn",
            "rotary_scaling_factor": scaling.number("factor", 1.0),
            "mscale": scaling.number("mscale", 1.0),
            "mscale_all_dim": scaling.number("mscale_all_dim", 0.0),
        }
    return {}


def _has_rotary(job: Job) -> bool:
    return job.details.has_positions and not job.problem.architecture.learned_positions


def _placeholders(job: Job) -> dict[str, str]:
    """Returns the flags that the caller must fill in, each with a sentence on what to put there."""
    model = job.problem.architecture
    has_loss = model.is_moe and job.problem.workload.load_balancing != "bias"
    return placeholders(
        NAME,  # the keywords say which groups of placeholders the job needs
        rotary=_has_rotary(job) and "rotary_base" not in _rotary_arguments(job),
        norms=job.details.norm_epsilon is None,
        indexer=any(attention.indexer for attention in model.attentions),
        loss=has_loss,
    )


def _notes(job: Job) -> Iterator[str]:
    """Yields what the caller must know beyond the arguments."""
    program = (
        _HYBRID_SCRIPT if has_pattern(job.problem.architecture) else f"{_PROGRAM} of Megatron-LM"
    )
    yield f"Arguments of {program}; placeholders are yours to fill in."
    scaling = job.details.rope_scaling
    if scaling is not None and _has_rotary(job) and not _rope_scaling(job):
        yield (
            f"The model stretches rotary positions ({scaling.shown}), and no argument of"
            f" {FRAMEWORK} {RELEASE} does the same: these arguments leave them as they are. Step"
            " time and memory do not depend on it; the loss does."
        )
    yield from megatron_model.model_notes(job.problem.architecture, job.layout.tp)
    yield from job_arguments.notes(job)
