"""The command that starts a training of transformers, in a text of the shell."""

from __future__ import annotations

from dataclasses import dataclass

from service.formats.shell.command import Command, split_command
from service.formats.shell.files import LaunchFiles
from service.formats.shell.programs import base_name, program_at

_STARTERS = ("accelerate", "accelerate-launch", "accelerate.commands.launch", "deepspeed",
    "torchrun", "torch.distributed.run", "torch.distributed.launch")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A command: the launcher with its flags, and the program with its arguments."""

    command: Command
    launcher: str | None
    """accelerate, deepspeed or torchrun; None where the program starts its ranks itself."""
    launcher_words: tuple[str, ...]
    """The words between launcher and program, which are options; none without a launcher."""
    program: str
    """A script, a module behind -m, or the tool: `axolotl`, `trl`."""
    arguments: tuple[str, ...]
    """They begin with the command of a tool, such as train of `axolotl train config.yml`."""


def started_program(text: str, files: LaunchFiles) -> Started | None:
    """Returns the launcher and the program that a text starts; None where it starts none. Raises
    Invalid where it starts several different ones."""
    command = split_command(text, files)
    if command.program is None:
        return None
    words = (*command.before, *command.program.split(" "), *command.words)
    if program_at(words) is None:  # no script, module or known tool
        return None
    # The program may be a tool with a verb of its own: "axolotl train".
    program, _, verb = command.program.partition(" ")
    names = [base_name(word) for word in command.before]
    starter = next((index for index, name in enumerate(names) if name in _STARTERS), None)
    return Started(
        command=command,
        launcher=None if starter is None else _launcher_kind(command.before[starter]),
        launcher_words=() if starter is None else command.before[starter + 1 :],
        program=program,
        arguments=(verb, *command.words) if verb else command.words,
    )


def _launcher_kind(word: str) -> str:
    """Returns the kind of a launcher: "accelerate", "deepspeed" or, for all others, "torchrun"."""
    if "accelerate" in word:
        return "accelerate"
    return "deepspeed" if base_name(word) == "deepspeed" else "torchrun"
