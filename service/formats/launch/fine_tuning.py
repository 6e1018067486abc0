"""Fine-tuning, 16-bit parameters and images in launch configurations: the formats that cannot
express them, and what a script must do besides.

A *format* is one framework's way of being launched, such as the flags of Megatron-LM. The text of
an Inexpressible says what the format's program lacks, and what to ask for instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from models.spec.adapters import Lora
from models.spec.encoder import Encoder
from models.spec.workload import Trained, Workload
from service.formats.launch.job import Inexpressible, Job, LaunchConfiguration
from service.formats.launch.trainer.adapters import flags_for

Write = Callable[[Job], LaunchConfiguration]
OF_SCRIPTS = ("deepspeed", "accelerate")
"""Formats beside which the caller's own script makes the model and the optimizer."""
_WITH_ADAPTERS = ("torchtitan", "megatron-bridge")
"""Other formats whose programs train adapters."""
_WITHOUT_MASTERS = ("torchtitan", "maxtext", "deepspeed", "accelerate")
"""Formats that can train 16-bit parameters without an fp32 copy."""
_WITH_IMAGES = ("megatron-bridge", *OF_SCRIPTS)
"""Formats whose programs train vision-language models."""
_WITH_CAPACITY = ("megatron", "megatron-bridge", "maxtext")
"""Formats with a setting for how many tokens an expert takes. AutoEP of DeepSpeed, torchtitan and
the experts of transformers drop none."""


def with_fine_tuning(name: str, write: Write) -> Write:
    """Returns the writer of the format `name` with support for fine-tuning. It raises
    Inexpressible, about that format, for fine-tuning that the format's program cannot do and for
    what `write` refuses. Otherwise it adds notes on what the caller's own script must do."""

    def write_with_notes(job: Job) -> LaunchConfiguration:
        try:
            _require_trainable(name, job)
            configuration = write(job)
        except Inexpressible as refusal:
            refusal.in_format(name)  # the same error, whose message now names the format
            raise
        encoder = job.problem.architecture.encoder
        notes = [*_notes_on_training(name, job.problem.workload), *_notes_on_images(encoder)]
        return replace(configuration, notes=(*configuration.notes, *notes))

    return write_with_notes


def _require_trainable(name: str, job: Job) -> None:
    """Raises Inexpressible for adapters, partly trained models, 16-bit parameters, capacities of
    experts or images that the program of the format `name` cannot train."""
    workload = job.problem.workload
    encoder = job.problem.architecture.encoder
    if workload.lora:
        _require_adapters(name, job, workload.lora)
    for field, value in _fields_of_script(workload):
        _require_able(
            name, field, value, able=OF_SCRIPTS, otherwise=f"without {field.rpartition('.')[2]}"
        )
    if not workload.master_weights:
        _require_able(
            name, "workload.master_weights", False, able=_WITHOUT_MASTERS, otherwise="with true"
        )
    if job.has_capacity:
        factor = workload.capacity_factor
        field = "workload.capacity_factor"
        _require_able(name, field, factor, able=_WITH_CAPACITY, otherwise="without capacity_factor")
    if encoder:
        tokens = encoder.tokens_per_sequence
        field = "model.encoder.tokens_per_sequence"
        _require_able(name, field, tokens, able=_WITH_IMAGES, otherwise="without model.encoder")


def _fields_of_script(workload: Workload) -> Iterator[tuple[str, object]]:
    """Yields the fields of a workload, with their values, that only the caller's own training
    script can bring about: the parts that are trained, a reference model, another head, and an
    optimizer with moments of low rank, such as GaLore."""
    if workload.trained:
        yield "workload.trained", dataclasses.asdict(workload.trained)
    if workload.reference:
        yield "workload.reference", dataclasses.asdict(workload.reference)
    if workload.head != "vocabulary":
        yield "workload.head", workload.head
    if workload.moment_rank is not None:
        yield "workload.moment_rank", workload.moment_rank


def _require_able(
    name: str, field: str, value: object, able: Collection[str], otherwise: str
) -> None:
    """Raises Inexpressible for the field unless the format `name` is in `able`, the formats
    whose programs can do it. `otherwise` is the other way to ask, such as "without lora"."""
    if name not in able:
        cure = f"its program does not do that, those of {', '.join(able)} do; ask for one of these"
        raise Inexpressible(field, value, f"{cure}, or {otherwise}")


def _require_adapters(name: str, job: Job, lora: Lora) -> None:
    """Raises Inexpressible where the format cannot make adapters, or not with such weights or
    modules."""
    able = (*_WITH_ADAPTERS, *OF_SCRIPTS)
    _require_able(name, "workload.lora.rank", lora.rank, able=able, otherwise="without lora")
    if name not in OF_SCRIPTS and lora.base_bits < 16:
        cure = f"frozen weights have 16 bits; ask with 16, or for {' or '.join(OF_SCRIPTS)}"
        raise Inexpressible("workload.lora.base_bits", lora.base_bits, cure)
    if name not in OF_SCRIPTS and lora.modules:
        cure = f"ask without modules, for all of targets, or for {' or '.join(OF_SCRIPTS)}"
        raise Inexpressible("workload.lora.modules", [*lora.modules], cure)
    if name == "torchtitan" and "experts" in lora.targets and job.problem.architecture.is_moe:
        cure = "LoRAConverter makes no adapters of routed experts; ask without experts"
        raise Inexpressible("workload.lora.targets", [*lora.targets], cure)


def _notes_on_images(encoder: Encoder | None) -> Iterator[str]:
    """Yields the note on which parts of a vision-language model to train; none without an
    encoder."""
    if encoder is None:
        return
    line = f"Train the vision-language model on {encoder.tokens_per_sequence} tokens of images"
    line += " a sequence, the encoder with the embedding"
    if not encoder.projector_trained:
        line += "; freeze the encoder and its projector"
    elif not encoder.trained:
        line += "; freeze the encoder, and train its projector"
    yield line + "."


def _notes_on_training(name: str, workload: Workload) -> Iterator[str]:
    """Yields notes on what the training script must do for fine-tuning, which no setting of the
    format does."""
    if workload.packing:
        yield "Pack documents into sequences, with attention that does not cross them."
    if name in OF_SCRIPTS and (lora := workload.lora):
        yield (
            f"Give the model adapters of rank {lora.rank} on"
            f" {', '.join(lora.modules or lora.targets)}, as"
            f" peft.LoraConfig(r={lora.rank}, target_modules=…) does (with TRL:"
            f" {flags_for(lora)})."
        )
        if lora.base_bits < 16:
            yield _QUANTIZED.get(lora.base_bits, _QUANTIZED_BY_OTHERS)
    if trained := workload.trained:
        yield _note_on_trained(trained)
    if reference := workload.reference:
        copy = "a frozen copy of the model" if reference.own_weights else "no copy of the model"
        yield (
            f"Run {reference.forwards:g} forward passes of every sequence without gradients, with"
            f" {copy} for them, as the trainers of TRL for preferences do."
        )
    if workload.head == "score":
        yield "Load the model with AutoModelForSequenceClassification and num_labels=1."
    if workload.moment_rank is not None:
        yield (
            f"Project gradients to rank {workload.moment_rank}, as optim='galore_adamw' with"
            f" optim_args='rank={workload.moment_rank}' does."
        )


def _note_on_trained(trained: Trained) -> str:
    """Returns the note that says which of the model's own parameters to train and which to
    freeze."""
    parts = []
    if trained.layers is None:
        parts.append("all layers")
    elif trained.layers:
        parts.append(f"layers {', '.join(map(str, trained.layers[:_MOST_LISTED]))}")
        if len(trained.layers) > _MOST_LISTED:
            parts[-1] += f" and {len(trained.layers) - _MOST_LISTED} more"
    parts += ["the embedding"] if trained.embedding else []
    parts += ["the head"] if trained.head else []
    return f"Train {', '.join(parts) or 'nothing'} of the model's own parameters; freeze the rest."


_QUANTIZED_BY_OTHERS = "Load a checkpoint whose weights have so few bits, such as one of AQLM."
_MOST_LISTED = 16  # layers that a note names

_QUANTIZED = {
    4: "Load the model with BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4',"
    " bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=torch.bfloat16) as"
    " quantization_config; without the last, FSDP does not shard its weights.",
    8: "Load the model with BitsAndBytesConfig(load_in_8bit=True) as quantization_config.",
}
"""By the bits of frozen weights, how transformers loads them."""
