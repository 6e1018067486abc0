"""What no setting of a launch configuration says of fine-tuning and of images, and a script must
do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from models.spec.encoder import Encoder
from models.spec.workload import Workload
from service.formats.launch.job import Inexpressible, Job, LaunchConfiguration

Write = Callable[[Job], LaunchConfiguration]
OF_SCRIPTS = ("deepspeed", "accelerate")
"""Formats beside which the caller's own script makes the model and the optimizer."""
_OF_TEXT = ("megatron", "maxtext", "torchtitan")
"""Formats whose programs train language models on text alone."""


def with_fine_tuning(name: str, write: Write) -> Write:
    """The writer of a format, which refuses what only a script of the caller's own can do, and
    otherwise adds what that has to do."""

    def written(job: Job) -> LaunchConfiguration:
        workload, encoder = job.problem.workload, job.problem.architecture.encoder
        if name not in OF_SCRIPTS:
            _require_plain(name, workload)
        if name in _OF_TEXT and encoder:
            cure = "its program trains language models on text; ask without model.encoder"
            raise Inexpressible(name, "model.encoder", encoder.tokens_per_sequence, cure)
        configuration = write(job)
        notes = [*_notes(workload), *_notes_on_images(encoder)]
        return replace(configuration, notes=(*configuration.notes, *notes))

    return written


def _require_plain(name: str, workload: Workload) -> None:
    cure = "its pre-training program trains all parameters, with an fp32 copy of each"
    if workload.lora:
        raise Inexpressible(name, "workload.lora.rank", workload.lora.rank, cure)
    if not workload.master_weights:
        raise Inexpressible(name, "workload.master_weights", False, cure)


def _notes_on_images(encoder: Encoder | None) -> Iterator[str]:
    if encoder is None:
        return
    line = f"Train the vision-language model on {encoder.tokens_per_sequence} tokens of images"
    line += " a sequence, the encoder with the embedding"
    if not encoder.projector_trained:
        line += "; freeze the encoder and its projector"
    elif not encoder.trained:
        line += "; freeze the encoder, and train its projector"
    yield line + "."


def _notes(workload: Workload) -> Iterator[str]:
    if workload.packing:
        yield "Pack documents into sequences, with attention that does not cross them."
    if lora := workload.lora:
        bits = "" if lora.base_bits == 16 else f" over weights of {lora.base_bits} bits"
        yield (
            f"Give the model adapters of rank {lora.rank}{bits} on {', '.join(lora.targets)}, as"
            " peft.LoraConfig does."
        )
    if not workload.master_weights:
        yield "Keep parameters and moments in 16 bits, without an fp32 copy."
