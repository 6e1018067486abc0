"""The command that starts a training of transformers, in a text of the shell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from models.errors import Invalid
from service.formats.launch.ranks import Ranks, options, ranks_of, slurm_variables
from service.formats.launch.shell_script import PATH, read_script, sbatch_words
from service.formats.launch.shell_words import unwrapped
from service.formats.launch.trainer.files import Files

_TOOLS = ("axolotl", "llamafactory-cli", "lmf", "trl", "swift", "megatron")
_TRAINS = ("train", "sft", "pt", "rlhf", "dpo", "grpo", "kto", "reward", "rloo", "orpo", "cpo")
_STARTERS = ("accelerate", "accelerate-launch", "accelerate.commands.launch", "deepspeed",
    "torchrun", "torch.distributed.run", "torch.distributed.launch")  # fmt: skip
_PROGRAM = re.compile(r"[^-\s]\S*\.py", re.ASCII)
_PYTHON = re.compile(r"python[\d.]*", re.ASCII)
_HEREDOC = re.compile(r"<<-?[ \t]*['\"]?([A-Za-z_]\w{0,40})['\"]?", re.ASCII)
_WRITTEN = re.compile(r">{1,2}[ \t]*([^\s<>&|;]{1,200})", re.ASCII)
_SHELL_VARIABLE = re.compile(r"(?<![\\\w\"'/.])\$\{?(\w+)\}?(?![\w\"'/.])", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A command: the launcher with its flags, and the program with its arguments."""

    launcher: str | None
    """accelerate, deepspeed or torchrun; None where the program starts its ranks itself."""
    launcher_words: tuple[str, ...]
    program: str
    """A script, a module behind -m, or the tool: `axolotl`, `trl`."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    ranks: Ranks
    in_branches: tuple[str, ...] = ()
    """Assignments that may or may not have run."""


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Files that a script writes, before those that were sent."""

    sent: Files
    texts: Mapping[str, str] = field(default_factory=dict)

    def find(self, name: str) -> str | None:
        """Returns the text of a file; None where it was neither written nor sent."""
        own = name.rpartition("/")[2]
        written = {path.rpartition("/")[2]: text for path, text in self.texts.items()}
        return self.texts.get(name) or written.get(own) or self.sent.find(name)


def written_files(text: str, sent: Files) -> WrittenFiles:
    """The files that a text writes with heredocs, beside those that were sent."""
    texts: dict[str, str] = {}
    name = end = None
    lines: list[str] = []
    for line in text.splitlines():
        if end is None:
            mark = _HEREDOC.search(line)
            target = _WRITTEN.search(line)
            if mark and target:
                name, end, lines = target.group(1), mark.group(1), []
        elif line.strip() == end:
            written = _SHELL_VARIABLE.sub(r'"$\1"', "\n".join(lines))
            texts[str(name)] = re.sub(r"\\([\\$`])", r"\1", written)
            end = None
        else:
            lines.append(line)
    return WrittenFiles(sent, texts)


def started(text: str) -> Started | None:
    """The command of a text that trains; None where the text starts nothing. Raises Invalid where
    it starts several that differ."""
    slurm = options(sbatch_words(text))
    variables = {**slurm_variables(slurm), "@": list[str](), "*": list[str]()}
    script = read_script(_without_heredocs(text), variables)
    commands = [each for each in unwrapped(script) if _place(each.words) is not None]
    launched = [each for each in commands if _starter_at(each.words) is not None] or commands
    if len({tuple(each.words) for each in launched}) > 1:
        programs = sorted({each.words[_place(each.words) or 0] for each in launched})
        rule = f"starts {len(launched)} commands ({', '.join(programs[:5])}): send the one that"
        raise Invalid(PATH, None, f"{rule} trains")
    if not launched:
        return None
    command = launched[-1]
    at = _place(command.words) or 0
    before = list(command.words[:at])
    environment = {**script.exported, **command.environment, **_assigned(before)}
    starter = _starter_at(command.words)
    return Started(
        launcher=None if starter is None else _launcher(command.words[starter]),
        launcher_words=() if starter is None else tuple(command.words[starter + 1 : at]),
        program=command.words[at],
        arguments=tuple(command.words[at + 1 :]),
        environment=environment,
        ranks=ranks_of(slurm, before, environment),
        in_branches=tuple(script.in_branches),
    )


def _without_heredocs(text: str) -> str:
    kept: list[str] = []
    end: str | None = None
    for line in text.splitlines():
        if end is not None:
            end = None if line.strip() == end else end
            continue
        mark = _HEREDOC.search(line)
        end = mark.group(1) if mark else None
        kept.append(_HEREDOC.sub("", line))
    return "\n".join(kept)


def _assigned(words: Sequence[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words if re.match(r"[A-Z_]\w*=", word, re.ASCII))
    return {name: value for name, _, value in pairs}


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _launcher(word: str) -> str:
    if "accelerate" in word:
        return "accelerate"
    return "deepspeed" if _base(word) == "deepspeed" else "torchrun"


def _starter_at(words: Sequence[str]) -> int | None:
    place = _place(words)
    found = [at for at, word in enumerate(words[:place]) if _base(word) in _STARTERS]
    return found[0] if found else None


def _place(words: Sequence[str]) -> int | None:
    """The place of the program that a command starts: a script, the module behind -m, or a tool
    with a command that trains."""
    is_started = False
    for at, word in enumerate(words):
        name = _base(word)
        following = words[at + 1] if at + 1 < len(words) else ""
        if name in _TOOLS and following in _TRAINS:
            return at
        if _PYTHON.fullmatch(name) or name in _STARTERS:
            is_started = True
        elif word == "-m" and is_started and following not in _STARTERS and following:
            return at + 1
        elif is_started and (_PROGRAM.fullmatch(word) or _is_program_variable(word)):
            return at
    return None


def _is_program_variable(word: str) -> bool:
    return bool(re.fullmatch(r"\$\{?\w*(?:SCRIPT|PROGRAM)\w*\}?", word, re.ASCII))
