"""Writes a layout as overrides of a recipe of Megatron-Bridge, for 0.6.2.

A *recipe* is a function that returns a whole configuration. It sets values of its own, so that what
a layout does not use is switched off by name. The text of an Inexpressible says why no override
does what was asked for, and what to ask for instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from models.spec.architecture import Architecture
from models.spec.encoder import Encoder
from service.formats.launch.facts import placeholders
from service.formats.launch.job import Inexpressible, Job, LaunchConfiguration
from service.formats.launch.machines import slurm_options
from service.formats.launch.megatron import job_arguments
from service.formats.launch.megatron import model as megatron_model
from service.formats.launch.megatron.patterns import has_pattern
from service.formats.launch.megatron_bridge.adapters import adapter_fields, adapters_in_python
from service.formats.launch.megatron_bridge.fields import (
    RELEASE,
    field_of_argument,
    precisions,
    table,
)
from service.formats.megatron.layer_pattern import layer_switches

NAME = "megatron-bridge"
FRAMEWORK = "Megatron-Bridge"

_PRECISION_NAMES = {
    "fp16": "fp16_mixed",
    "bf16": "bf16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
_PARAM_GATHER = "mixed_precision.fp8_param_gather"
_REUSES_GRADIENTS = "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag"
"""Gathered parameters in mxfp8 need this (training/config.py, validate)."""
_GRADIENTS_IN_FP32 = "ddp.grad_reduce_in_fp32"
_GRAPHS = "model.cuda_graph_impl"
_OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")
_LIST_ARGUMENTS = ("moe_layer_freq", "window_attn_skip_freq", "linear_attention_freq")
"""Arguments that are expressions of lists on the command line, and lists here."""
_UNSEEN_BY_HYDRA = "peft."
"""Fields of an object that Hydra does not see, because a recipe becomes a document without it. The
recipe keeps the object (training/utils/omegaconf_utils.py)."""
_PACKS, _PACKING = "dataset.enable_offline_packing", "dataset.offline_packing_specs"
_ONE_WORD_ARGUMENTS = ("cp_comm_type", "moe_router_load_balancing_type")
"""Arguments that are lists of one on the command line, and a word here."""
_DTYPES = {"bf16": "bfloat16"}
_PLAIN = re.compile(r"[\w./:+-]+", re.ASCII)


def write(job: Job) -> LaunchConfiguration:
    """Returns the overrides of a recipe that run a job. Raises Inexpressible where none do."""
    job_arguments.require_expressible(job)
    if has_pattern(job.problem.architecture) and job.layout.virtual_stages > 1:
        cure = "HybridModelProvider has no virtual stages; ask with schedule 1f1b, or for megatron"
        raise Inexpressible("layout.virtual_stages", job.layout.virtual_stages, cure)
    switches = job_arguments.switches(job)
    arguments = {
        **job_arguments.layout_arguments(job),
        **job_arguments.recompute_arguments(job),
        **job_arguments.balancing_arguments(job),
        **job_arguments.memory_arguments(job),
    }
    if "pipeline_model_parallel_layout" in arguments and job.layout.virtual_stages > 1:
        # The configuration of overlaps looks for it before that layout is read (comm_overlap.py).
        arguments["num_virtual_stages_per_pipeline_rank"] = job.layout.virtual_stages
    if arguments.get("use_megatron_fsdp") and arguments.get("use_tp_pp_dp_mapping"):
        cure = "with Megatron-FSDP the pipeline is outermost; ask with pp last, or zero_stage 1"
        raise Inexpressible("layout.placement", list(job.layout.placement), cure)
    return LaunchConfiguration(
        format=NAME,
        framework=FRAMEWORK,
        version=RELEASE,
        settings={
            **table().facts["off"],  # what recipes may switch on; the lines below override it
            **dict(_fields_of_arguments(arguments)),
            "dataset.seq_length": job.problem.workload.seq_len,
            **_precision_fields(job, switches),
            **_model_fields(job),
            **_fine_tuning_fields(job, switches),
            **_switch_fields(switches),
        },
        environment=job_arguments.environment(job),
        placeholders=_placeholders(job),
        # A restarted job loads what it saved.
        placeholder_defaults={"checkpoint.load": "checkpoint.save"},
        slurm=slurm_options(job.machines),
        notes=tuple(_notes(job, switches)),
    )


other_stack_fields = job_arguments.other_stack_fields


def words(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings as Hydra overrides: "model.bf16=true". Fields that Hydra does not see in
    the recipe are added with a + in front."""
    return [
        f"{'+' if name.startswith(_UNSEEN_BY_HYDRA) else ''}{name}={_hydra_text(value)}"
        for name, value in settings.items()
    ]


def _hydra_text(value: Any) -> str:
    """Returns a value as Hydra reads it: null, true, [1,2] or a word, which is quoted where it
    is not plain."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_hydra_text, value))}]"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else f"'{text}'"


def _fields_of_arguments(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the arguments of Megatron-LM as fields of Megatron-Bridge with their values. Some
    arguments switch a second field on."""
    for argument, value in arguments.items():
        if argument in _ONE_WORD_ARGUMENTS:  # a list of one for Megatron-LM, a word here
            yield field_of_argument(argument), value[0]
        elif argument in ("exp_avg_dtype", "exp_avg_sq_dtype"):
            yield field_of_argument(argument), _DTYPES[value]
        else:
            yield field_of_argument(argument), value
        if argument == "cpu_offloading_num_layers":
            yield "model.cpu_offloading", True
        if argument == "use_distributed_optimizer":
            yield "optimizer.use_distributed_optimizer", value
        if argument == "optimizer_cpu_offload":
            yield "optimizer.optimizer_offload_fraction", 1.0  # all of the state


def _model_fields(job: Job) -> dict[str, Any]:
    """Returns the fields of the model's sizes. They are written although the recipe sets them, so
    that even a recipe of another model trains this one."""
    model = job.problem.architecture
    arguments = megatron_model.model_arguments(job)
    heads = arguments["num_attention_heads"]
    ties = not arguments.pop("untie_embeddings_and_output_weights")
    arguments.pop("squared_relu", None)  # here it is a function, which only the recipe can set
    arguments.pop("group_query_attention", None)  # here it follows from num_query_groups
    for name in _LIST_ARGUMENTS:  # "([0]*3+[1]*58)" for Megatron-LM is a list of 61 numbers here
        if isinstance(arguments.get(name), str):
            is_on_by_layer = layer_switches(arguments[name].replace(" ", ""), model.num_layers)
            arguments[name] = [int(is_on) for is_on in is_on_by_layer]
    if model.encoder:
        del arguments["position_embedding_type"]  # the recipe has one that covers images
    if not arguments.get("multi_latent_attention"):  # without groups each head is one
        arguments["num_query_groups"] = arguments.pop("num_query_groups", heads)
    return {
        **dict(_fields_of_arguments(arguments)),
        "model.share_embeddings_and_output_weights": ties,
        "model.should_pad_vocab": True,  # tensor parallelism divides the padded size only
        # Megatron writes a hybrid model as a pattern with a letter for each layer. That pattern
        # also has the layers of multi-token prediction, so the recipe's pattern of these goes.
        **({"model.mtp_hybrid_override_pattern": None} if has_pattern(model) else {}),
        **(_freezing_fields(model.encoder) if model.encoder else {}),
    }


def _freezing_fields(encoder: Encoder) -> dict[str, bool]:
    """Returns the fields that freeze parts of a vision-language model."""
    return {
        "model.freeze_language_model": False,
        "model.freeze_vision_model": not encoder.trained,
        "model.freeze_vision_projection": not encoder.projector_trained,
    }


def _fine_tuning_fields(job: Job, switches: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of LoRA adapters and of the fine-tuning around them
    (training/config.py); none for other training. Raises Inexpressible for packed sequences in
    micro-batches of several."""
    workload = job.problem.workload
    if workload.lora is None:
        return {}
    fields = adapter_fields(job.problem.architecture, workload.lora)
    if job.layout.cp > 1:  # its fine-tuning refuses context parallelism otherwise
        fields |= {"model.calculate_per_token_loss": True, "ddp.average_in_collective": False}
    if workload.packing is None:
        return {**fields, _PACKS: False, _PACKING: None}
    if job.layout.micro_batch > 1:
        cure = "packed sequences are trained one at a time; ask with micro_batch 1"
        raise Inexpressible("layout.micro_batch", job.layout.micro_batch, cure)
    fields |= {_PACKS: True, f"{_PACKING}.packed_sequence_size": workload.seq_len}
    if switches.get(_GRAPHS, "none") != "none":  # a graph needs tensors of one size
        fields[f"{_PACKING}.pad_cu_seqlens"] = True
    return fields


def _precision_fields(job: Job, switches: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the number formats: mixed_precision by name where a named one is
    exactly what the job asks for, else field by field."""
    precision = job.problem.workload.precision
    if precision == "fp32":
        # Providers of hybrid models have bf16 unless they are told (models/hybrid_provider.py).
        names = ("model.bf16", "model.fp16", "optimizer.bf16", "optimizer.fp16")
        return {"mixed_precision": None, **dict.fromkeys(names, False)}
    name = _PRECISION_NAMES[precision]
    if _named_precision_suffices(job, switches):
        return {"mixed_precision": name}
    # Whether parameters are gathered in the low precision too: by default as the named one does.
    gathers = switches.get(_PARAM_GATHER, precisions()[name].get("fp8_param_gather") == "True")
    formats = job_arguments.PRECISIONS[precision]
    # Both 16-bit formats are off unless `formats` switches one on.
    formats_on = {"bf16": False, "fp16": False, **formats}
    fields = {f"mixed_precision.{field}": is_on for field, is_on in formats_on.items()}
    fields["mixed_precision.grad_reduce_in_fp32"] = switches.get(_GRADIENTS_IN_FP32, True)
    if precision == "fp8":
        # The named fp8 leaves these layers in bf16; the job has all layers in fp8.
        fields["mixed_precision.first_last_layers_bf16"] = False
    if precision == "nvfp4":
        fields["mixed_precision.fp4_param_gather"] = gathers
    elif formats.get("fp8"):
        fields[_PARAM_GATHER] = gathers
        if precision == "mxfp8":
            fields[_REUSES_GRADIENTS] = gathers
    return fields


def _named_precision_suffices(job: Job, switches: Mapping[str, Any]) -> bool:
    """Returns True where the named mixed precision sets exactly what the switches ask for."""
    precision = job.problem.workload.precision
    usual = precisions()[_PRECISION_NAMES[precision]]
    reduces_in_fp32 = usual.get("grad_reduce_in_fp32") != "False"  # True by default
    gathers = usual.get("fp8_param_gather") == "True"  # False by default
    return (
        precision != "fp8"  # whose name leaves the first and the last layer in bf16
        and switches.get(_GRADIENTS_IN_FP32, reduces_in_fp32) == reduces_in_fp32
        and switches.get(_PARAM_GATHER, gathers) == gathers
    )


def _switch_fields(switches: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the software choices `switches`, such as an overlap. Those of data
    parallelism are set in comm_overlap too, which overwrites them (training/comm_overlap.py)."""
    # _PARAM_GATHER is a field of mixed_precision, all of which _precision_fields sets.
    fields = {name: value for name, value in switches.items() if name != _PARAM_GATHER}
    for name in _OVERLAPS:
        if f"ddp.{name}" in fields:
            fields[f"comm_overlap.{name}"] = fields[f"ddp.{name}"]
    return fields


def _placeholders(job: Job) -> dict[str, str]:
    """Returns the settings that the caller must fill in, each with a sentence on what to put
    there."""
    model: Architecture = job.problem.architecture
    has_loss = model.is_moe and job.problem.workload.load_balancing.endswith("_loss")
    has_adapters = job.problem.workload.lora is not None
    trains = "makes and trains adapters of" if has_adapters else "trains"
    recipe = (
        f"the recipe that {trains} {model.name} (megatron.bridge.recipes), which these override"
    )
    return {
        "recipe": recipe,
        **placeholders(
            NAME,  # the keywords say which groups of placeholders the job needs
            loss=has_loss,
            indexer=any(attention.indexer for attention in model.attentions),
            adapters=has_adapters,
        ),
    }


def _notes(job: Job, switches: Mapping[str, Any]) -> Iterator[str]:
    """Yields what the caller must know beyond the overrides."""
    yield (
        "Overrides of a recipe: scripts take them as they are, and Python as cfg.model.… = …. The"
        " recipes of NeMo 2 have the same names in trainer.strategy and model.config."
    )
    if any(name.startswith("comm_overlap.") for name in _switch_fields(switches)):
        yield (
            "Recipes for performance have a CommOverlapConfig; where a recipe has none, set"
            " cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False) before overrides apply."
        )
    # Otherwise the overrides set mixed_precision to a name, and need no object to override.
    if job.problem.workload.precision != "fp32" and not _named_precision_suffices(job, switches):
        yield (
            "Recipes for performance have a MixedPrecisionConfig; where a recipe has the name of"
            " one, set cfg.mixed_precision = bf16_mixed() before overrides apply."
        )
    if lora := job.problem.workload.lora:
        yield (
            "Overrides with + change the LoRA that a recipe has; where it has none, set"
            f" cfg.peft = {adapters_in_python(job.problem.architecture, lora)} of"
            " megatron.bridge.peft.lora in Python."
        )
    if switches.get(_GRAPHS) == "transformer_engine":
        yield (
            f"{_GRAPHS}=transformer_engine asks for the random numbers of Transformer Engine: set"
            " rng.te_rng_tracker=true and model.use_te_rng_tracker=true too, where the recipe does"
            " not."
        )
    yield from megatron_model.model_notes(job.problem.architecture, job.layout.tp)
    yield from job_arguments.notes(job)
