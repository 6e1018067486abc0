"""The launch formats, by name: which framework each is for, who writes it and who reads it.

A *format* is one framework's way of being told what to run. A *writer* turns a layout into its
settings, and a *reader* turns a launch into a question and a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, Protocol

from models.spec import catalogue
from models.spec.problem import Problem
from service.formats.launch.accelerate import writer as accelerate_writer
from service.formats.launch.deepspeed import reader as deepspeed_reader
from service.formats.launch.deepspeed import writer as deepspeed_writer
from service.formats.launch.fine_tuning import OF_SCRIPTS, with_fine_tuning
from service.formats.launch.job import NO_CHANGES, Changes, Job, LaunchConfiguration, LaunchReading
from service.formats.launch.maxtext import reader as maxtext_reader
from service.formats.launch.maxtext import writer as maxtext_writer
from service.formats.launch.megatron import reader as megatron_reader
from service.formats.launch.megatron import writer as megatron_writer
from service.formats.launch.megatron_bridge import reader as megatron_bridge_reader
from service.formats.launch.megatron_bridge import writer as megatron_bridge_writer
from service.formats.launch.torchtitan import earlier_releases as torchtitan_names
from service.formats.launch.torchtitan import reader as torchtitan_reader
from service.formats.launch.torchtitan import writer as torchtitan_writer
from service.formats.launch.trainer import reader as trainer_reader
from service.formats.shell.files import NO_FILES, LaunchFiles

Starter = Literal["torchrun", "accelerate", "python"]
"""The program that starts the training program on a node: torchrun, a process a device; accelerate
launch; or Python itself, one process."""


class Read(Protocol):
    """Reads a launch text by the rules of a release (`version`), with some settings changed, and
    with the files that were sent beside it."""

    def __call__(
        self,
        text: str,
        version: str | None,
        *,
        changes: Changes = NO_CHANGES,
        files: LaunchFiles = NO_FILES,
    ) -> LaunchReading: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFormat:
    """One framework's way of being told what to run."""

    name: str
    framework: str
    release: str
    """Configurations are written for this release of the framework."""
    stacks: tuple[str, ...]
    """The stacks whose layouts it says."""
    write: Callable[[Job], LaunchConfiguration]
    read: Read
    other_stack_fields: Callable[[Problem], Collection[str]] = lambda problem: ()
    """Returns the fields of the stack that settings other than those of its switches express."""
    is_of_script: bool
    """True where a script of the caller's own makes the model and trains it."""
    name_in: Callable[[str, str | None], str] = lambda name, release: name
    """Returns the name that another release has for a setting of `release`; None means `release`
    itself."""
    words: Callable[[Mapping[str, Any]], list[str]] | None = None
    """Settings as the words of a command line; None where they are a document."""
    starter: Starter = "torchrun"
    program: tuple[str, ...] = ()
    """The words that name the training program; none where it is the caller's own script."""
    options: tuple[str, ...] = ()
    """Placeholders that are options of that program, --name value, and no settings."""
    configures: str | None = None
    """The object in Python whose attributes settings are; None where they are arguments or a
    document."""
    last: str | None = None
    """The setting that stands behind all other arguments, if any."""


def _format_of(writer: ModuleType, reader: ModuleType, *stacks: str, **others: Any) -> LaunchFormat:
    """Returns the launch format that a writer's and a reader's module make up. `stacks` are the
    stacks that it launches; `others` are fields that neither module defines."""
    optional = ("other_stack_fields", "words")  # functions that not every writer has
    of_writer = {name: getattr(writer, name) for name in optional if hasattr(writer, name)}
    return LaunchFormat(
        name=writer.NAME,
        framework=writer.FRAMEWORK,
        release=writer.RELEASE,
        stacks=stacks,
        write=with_fine_tuning(writer.NAME, writer.write),
        read=reader.read,
        is_of_script=writer.NAME in OF_SCRIPTS,
        **of_writer,
        **others,
    )


_ALL = (
    _format_of(
        megatron_writer, megatron_reader, "megatron", "primus-turbo", program=("pretrain_gpt.py",)
    ),
    _format_of(
        torchtitan_writer,
        torchtitan_reader,
        "torchtitan",
        program=("-m", "torchtitan.train"),
        last=torchtitan_writer.RECOMPUTE,
        name_in=torchtitan_names.name_in,
    ),
    _format_of(
        megatron_bridge_writer,
        megatron_bridge_reader,
        "megatron-bridge",
        program=("run_recipe.py",),
        options=("recipe", "dataset"),
        configures="cfg",
    ),
    _format_of(
        maxtext_writer,
        maxtext_reader,
        "maxtext",
        starter="python",
        program=("-m", "maxtext.trainers.pre_train.train", "src/maxtext/configs/base.yml"),
    ),
    _format_of(deepspeed_writer, deepspeed_reader, "deepspeed"),
    _format_of(accelerate_writer, trainer_reader, "fsdp", "trl", starter="accelerate"),
)
FORMATS: Mapping[str, LaunchFormat] = {format_.name: format_ for format_ in _ALL}
_TOOLS = ("transformers", "trl", "axolotl", "llama-factory", "ms-swift")
TOOLS = (*_TOOLS, "llamafactory", "swift")  # with other spellings
"""Tools that start the Trainer of transformers, whose files the reader of accelerate takes. They
are read, and resolve to FSDP or DeepSpeed by what they say; launches are written for these two."""
READ_NAMES = (*FORMATS, *_TOOLS)
"""The names by which a launch may call its format."""


def format_named(name: str) -> LaunchFormat | None:
    """Returns the format with this name, or the one of the tool or stack with this name or
    alias; None where there is none."""
    if name in FORMATS:
        return FORMATS[name]
    if name.lower().replace("_", "-") in TOOLS:
        return FORMATS[accelerate_writer.NAME]  # whose reader takes the files of all these tools
    stack = catalogue.stacks().get(name)
    return None if stack is None else format_of_stack(stack.id)


def format_of_stack(stack_id: str) -> LaunchFormat | None:
    """Returns the format that layouts of a stack are launched with; None where it has none yet."""
    return next((format_ for format_ in _ALL if stack_id in format_.stacks), None)
