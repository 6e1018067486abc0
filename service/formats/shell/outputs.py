"""Works out what commands in the $( ) of a launch script print, for the few of which that is known
without running them: counts of a job's nodes and GPUs, sums, `echo` and `cut`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from service.formats.shell.arithmetic import value_of

_COUNTS_LINES = re.compile(r"\|\s*wc\s+-l\s*$|\bwc\s+-l\s*<|\bgrep\s+-c\b")
_HOST_LISTS = ("scontrol show hostname", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_UNIQUE = re.compile(r"\bsort\s+-u\b|\buniq\b")


def output_of(
    command: str, look_up: Callable[[str], str | None], replace_variables: Callable[[str], str]
) -> str | None:
    """Returns what a command prints; None where only running it would tell.

    `look_up` returns the value of a variable, and `replace_variables` a text with their values.
    Commands that count the hosts or GPUs of a job print what its scheduler was asked for.
    """
    if re.fullmatch(r"[A-Z_][A-Z0-9_]*", command):  # $(NNODES), as Kubernetes writes a variable
        return look_up(command)
    count = _count_of_job(command, look_up)
    if count is not None:
        return count
    words = _words(replace_variables(command))
    # A $ that is left belongs to a variable without a known value.
    if not words or "$" in command and any("$" in word for word in words):
        return None
    if words[0] == "expr":
        number = value_of(" ".join(words[1:]))
        return None if number is None else str(number)
    if words[0] in ("echo", "printf") and words[-2:] == ["|", "bc"]:
        number = value_of(" ".join(words[1:-2]))
        return None if number is None else str(number)
    if words[0] in ("echo", "printf") and words[2:4] == ["|", "cut"]:
        return _cut(words[1], words[4:])
    if words[0] == "echo" and not {"|", "&&", ";", "<", ">"} & {*words}:
        return " ".join(word for word in words[1:] if word not in ("-n", "-e"))
    return None


def _count_of_job(command: str, look_up: Callable[[str], str | None]) -> str | None:
    """Returns the number of nodes, ranks or GPUs that a command counts, as `nvidia-smi -L | wc
    -l` does; None for any other command."""
    if not _COUNTS_LINES.search(command):
        return None
    if any(mark in command for mark in _HOST_LISTS):
        return look_up("SLURM_NNODES")
    if "PBS_NODEFILE" in command:  # it lists each node once for each rank
        return look_up("PBS_NUM_NODES" if _UNIQUE.search(command) else "PBS_NP")
    if "nvidia-smi" in command:
        return look_up("SLURM_GPUS_ON_NODE") or look_up("PBS_NGPUS")
    return None


def _cut(text: str, options: list[str]) -> str | None:
    """Returns the field of a text that `cut -d X -f N` prints; None for other options."""
    match = re.fullmatch(r"-d ?(.) -f ?(\d{1,3})", " ".join(options))
    if match is None or "\n" in text:
        return None
    fields = text.split(match[1])
    return fields[int(match[2]) - 1] if 1 <= int(match[2]) <= len(fields) else ""


def _words(command: str) -> list[str]:
    """Returns the words and operators of a command; none where a quote is not closed."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    try:
        return [*lexer]
    except ValueError:
        return []
