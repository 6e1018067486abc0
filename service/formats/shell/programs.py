"""Finds the program that a command of a launch script starts, behind launchers and containers, and
whether it trains.
An *agent* is a launcher, such as torchrun, that runs once on a node and starts all of its ranks. A
command *wraps* another where it takes that command, or a text of the shell, as its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LAUNCHERS = {
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed",
    "mpirun", "mpiexec", "srun", "sbatch", "salloc", "flux", "qsub", "aprun", "jsrun", "torchx",
}  # fmt: skip
AGENTS = {"torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed"}
"""Launchers that start all ranks of a node."""
_STARTS_ANYTHING = {
    "mpirun", "mpiexec", "srun", "sbatch", "salloc", "flux", "qsub", "aprun", "jsrun",
}  # fmt: skip
"""Launchers that start any program; the others start Python."""
_NODE_RANKS = ("node_rank", "machine_rank")
NODE_OPTIONS = (*_NODE_RANKS, "relative", "r", "nodelist", "w")
"""Options of launchers that say which node of a job a command is started on."""
_LAUNCHER_MODULES = ("torch.distributed.", "accelerate.commands.", "deepspeed.launcher.")
SHELLS = {"sh", "bash", "zsh", "dash", "ksh"}
_MOST_OPTIONS = 24  # words of a shell's options in front of its text; scripts have a few
_TRAINERS = {
    "axolotl": ("train", "fine-tune", "finetune"),
    "llamafactory-cli": ("train",),
    "lmf": ("train",),
    "swift": ("sft", "pt", "rlhf"),
    "megatron": ("sft", "pt", "rlhf"),
    "trl": ("sft", "dpo", "grpo", "kto", "reward", "rloo", "orpo", "cpo"),
    "litgpt": ("pretrain", "finetune", "finetune_lora", "finetune_full"),
    "tune": ("run",),
    "nemo": ("llm",),
}
"""Programs with commands of their own, and those of them that train."""
REMOTE = {"ssh", "pdsh", "clush", "dsh"}
"""Programs whose last word is a command of a shell elsewhere."""
_TEXT_OPTIONS = ("--command", "--wrap", "--COMMAND")
"""Options of xpk, gcloud, sbatch and MaxText's runners whose value is a command of a shell."""
_STARTS_TEXTS = {"xpk.py", "multihost_runner.py", "multihost_job.py"}
"""Programs in Python with such an option."""
_FILE_TOOLS = {
    "cat", "chmod", "chown", "cp", "dirname", "du", "file", "grep", "head", "install", "ls", "ln",
    "md5sum", "mv", "realpath", "rm", "rsync", "scp", "sed", "tail", "touch", "wc",
}  # fmt: skip
"""Programs that take the names of scripts and start none."""
_SETTERS = ("--env", "-e", "--export", "-x", "-v")
"""Options of containers, srun, sbatch, mpirun and qsub whose value sets variables."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_BETWEEN_VARIABLES = re.compile(rf",(?={_ASSIGNMENT.pattern})", re.ASCII)
_PYTHON = re.compile(r"python[\d.]*", re.ASCII)
_PROGRAM = re.compile(r"[^-\s]\S*\.(?:py|pyc|sh|slurm|sbatch|pbs)|[^-\s]\.(?:py|sh)")
_NAMED_PROGRAM = re.compile(r"\$\w*(?:SCRIPT|PROGRAM)\w*", re.ASCII | re.IGNORECASE)
"""A variable that the text does not define, and whose name says that it is the program."""
_TRAINS = {
    "train", "pretrain", "pretraining", "training", "trainer", "finetune", "finetuning", "sft",
    "dpo", "grpo", "ppo", "rlhf", "recipe", "clm", "lora",
}  # fmt: skip
_DOES_NOT_TRAIN = {
    "prep", "preprocess", "preprocessing", "prepare", "convert", "conversion", "download",
    "tokenize", "eval", "evaluate", "evaluation", "analyse", "analyze", "analysis", "export",
    "merge", "check", "inference", "infer", "generate", "setup", "install", "preflight",
    "cleanup", "plot", "upload", "serve", "sanity", "split", "consolidate", "compile",
    "checker", "benchmark", "microbenchmark", "microbenchmarks", "server", "decode",
}  # fmt: skip
"""Words in the name of a program that say that it trains, or that it does something else."""
_DOES_FIRST = {
    "convert", "download", "eval", "evaluate", "export", "install", "merge", "prepare",
    "preprocess", "tokenize", "upload",
}  # fmt: skip
"""Verbs at the beginning of a name that say that it does not train, whatever follows."""
_TRAINS_DESPITE_ITS_NAME = {"setup_experiment.py"}
"""Programs that start a training, whatever the words of their names: Megatron-Bridge's launcher."""
_BETWEEN_WORDS = re.compile(r"[^a-z]+")
# Ranks of likelihood: only their order matters, and a negative one means that it does not train.
_TELLS_A_TRAINER = 6  # a training tool's own subcommand is surer than any name
_IS_NAMED_SO = 2  # a name is surer than a launcher, which counts 1
_DOES_OTHER = -4  # whatever launches it
_STARTS_NOTHING = -8


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A text of the shell that stands in a command as one word, as behind `sh -c`."""

    before: tuple[str, ...]
    """The words that start it, without the shell."""
    text: str
    arguments: tuple[str, ...] = ()


def base_name(path: str) -> str:
    return path.rpartition("/")[2]


def is_python(word: str) -> bool:
    return _PYTHON.fullmatch(base_name(word)) is not None


def program_at(words: Sequence[str]) -> int | None:
    """Returns the index of the program among the words of a command: 4 for `torchrun
    --nproc_per_node 8 -m train`. It is a Python file, the module behind `-m`, a shell script, a
    subcommand of a training tool, or a variable named for a program. None where the command
    starts none, as `python -c` does."""
    starts_python = False
    starts_program = False
    if words and base_name(words[0]) in _FILE_TOOLS:  # `cp train.py DIR` only names a program
        return None
    for index, word in enumerate(words):
        name = base_name(word)
        following = words[index + 1] if index + 1 < len(words) else ""
        if is_python(word) or name in LAUNCHERS:
            starts_python = name not in _STARTS_ANYTHING  # srun and mpirun start anything
            starts_program = True
        elif word in ("-m", "--module") and starts_python and following:
            # Behind `-m torch.distributed.run` the program comes later.
            if not following.startswith((*_LAUNCHER_MODULES, "-")):
                return index + 1
        elif word == "-c" and starts_python and is_python(words[index - 1]):
            return None
        elif following in _TRAINERS.get(name, ()):  # `axolotl train`
            return index + 1
        # The program is behind `./wrap.sh python` and behind `xpk.py --command`.
        elif _is_wrapper_script(words, index) or name in _STARTS_TEXTS:
            starts_program = True
        elif _PROGRAM.fullmatch(word) or (starts_program and _NAMED_PROGRAM.fullmatch(word)):
            return index
    return None


def _is_wrapper_script(words: Sequence[str], index: int) -> bool:
    """Returns True where the word at `index` is a script that runs the words behind it, as
    `./wrap.sh python train.py` does."""
    if not words[index].endswith(".sh") or index + 1 == len(words):
        return False
    name = base_name(words[index + 1])
    return is_python(name) or name in LAUNCHERS or name.endswith(".py")


def wrapped_shell_text(words: Sequence[str]) -> Wrapped | None:
    """Returns the shell text that a command has as one of its words, behind `sh -c`, `ssh host` or
    an option of a launcher; None where there is none in front of its program."""
    end = program_at(words)
    for index, word in enumerate(words[:end]):
        if base_name(word) in SHELLS:
            behind_shell = _text_behind_shell(words, index)
            if behind_shell is not None:
                return behind_shell
        for option in _TEXT_OPTIONS:
            if word == option and index + 1 < len(words):
                return Wrapped(tuple(words[:index]), words[index + 1])
            if word.startswith(f"{option}="):
                return Wrapped(tuple(words[:index]), word.partition("=")[2])
    # ssh HOST "cd /work && python train.py"
    if base_name(words[0]) in REMOTE and len(words) > 2 and " " in words[-1]:
        return Wrapped(tuple(words[:-1]), words[-1])
    return None


def _text_behind_shell(words: Sequence[str], index: int) -> Wrapped | None:
    """Returns the text that the shell at `index` runs by its option `-c`, with its arguments;
    None where that shell runs a file."""
    takes_text = False
    is_value = False
    for place, word in enumerate(words[index + 1 : index + _MOST_OPTIONS], start=index + 1):
        is_option = word.startswith(("-", "+"))
        if not is_option and not is_value:
            # The word behind the text is its $0, and no argument.
            behind = tuple(words[place + 2 :])
            return Wrapped(tuple(words[:index]), word, behind) if takes_text else None
        takes_text |= re.fullmatch(r"-[a-z]{0,20}c[a-z]{0,20}", word) is not None
        # `-o pipefail` has its value in the next word.
        is_value = is_option and re.fullmatch(r"[-+][a-z]{0,20}[oO]", word) is not None
    return None


def shell_file_at(words: Sequence[str]) -> int | None:
    """Returns the index of the shell script that a command runs, 1 for `bash train.sh`; None
    where it runs none."""
    index = program_at(words)
    starts_python = index is not None and base_name(words[index]).endswith((".py", ".pyc"))
    # Words behind the program are its arguments.
    for place, word in enumerate(words[: len(words) if index is None else index + 1]):
        # Where a Python program is started, only a script that wraps it runs; others are arguments.
        if starts_python and not _is_wrapper_script(words, place):
            continue
        is_script = re.search(r"\.(?:sh|bash|slurm|sbatch|pbs|job|lsf)$", word) is not None
        if is_script and not word.startswith("-"):
            return place
        before = base_name(words[place - 1]) if place else ""
        # Behind a shell or a scheduler a word is a script even without such an ending.
        if before in (*SHELLS, "sbatch", "qsub") and not word.startswith("-") and "$" not in word:
            return place
    return None


def without_node_words(words: Sequence[str]) -> tuple[str, ...]:
    """Returns a command without the words that differ between nodes: the host that it is sent
    to, and the rank of the node. Commands that are then equal are one training, which a script
    starts node by node."""
    launcher_places = (index for index, word in enumerate(words) if base_name(word) in LAUNCHERS)
    words = words[next(launcher_places, 0) :]  # without `ssh HOST` in front of the launcher
    program = program_at(words) or 0
    common: list[str] = []
    for place, (before, word) in enumerate(zip(["", *words], words, strict=False)):
        # Behind the program the short names may be options of its own.
        names = NODE_OPTIONS if place < program else _NODE_RANKS
        is_rank = word.startswith("-") and option_name(word) in names
        # In `--node_rank 1` the rank is the next word.
        is_flag = before.startswith("-") and "=" not in before
        is_value_of_rank = is_flag and option_name(before) in names
        if not is_rank and not is_value_of_rank:
            common.append(word)
    return tuple(common)


def assigned_variables(words: Sequence[str]) -> dict[str, str]:
    """Returns the variables that words in front of a program set for it: those of `env TP=4`, of
    `docker run -e TP=4`, and of `srun --export=ALL,TP=4`, in which commas divide them."""
    assigned: dict[str, str] = {}
    for before, word in zip(["", *words], words, strict=False):
        option, _, value = word.partition("=")
        if option in _SETTERS:
            texts = _BETWEEN_VARIABLES.split(value)
        else:
            texts = _BETWEEN_VARIABLES.split(word) if before in _SETTERS else [word]
        pairs = (text.partition("=") for text in texts if _ASSIGNMENT.match(text))
        assigned |= {name: content for name, _, content in pairs}
    return assigned


def option_name(word: str) -> str:
    """Returns the name of an option: node_rank for --node-rank=1."""
    return word.partition("=")[0].lstrip("-").replace("-", "_")


def launchers(words: Sequence[str]) -> list[str]:
    """Returns the names of the launchers in front of the program, outermost first: ["srun",
    "torchrun"]."""
    names = [base_name(word) for word in words[: program_at(words)]]
    return [name for name in names if name in LAUNCHERS]


def likelihood(words: Sequence[str]) -> int:
    """Returns a rank by which commands of a script are compared: the greater, the likelier the
    command trains. It is negative where its program is named for something else. Launchers of
    training programs count, and the name of the program counts more."""
    index = program_at(words)
    if index is None:
        return _STARTS_NOTHING
    program = words[index]
    if index and program in _TRAINERS.get(base_name(words[index - 1]), ()):  # axolotl train
        return _TELLS_A_TRAINER
    if base_name(program) in _TRAINS_DESPITE_ITS_NAME:
        return _IS_NAMED_SO
    path = re.sub(r"\.(?:py|sh)$", "", program).lower()
    words_of_path = {*_BETWEEN_WORDS.split(path)}
    words_of_name = {*_BETWEEN_WORDS.split(base_name(path))}
    # "eval" for tools/eval_sft.py and for the module tools.eval_sft.
    first_word = _BETWEEN_WORDS.split(re.split(r"[./]", path)[-1])[0]
    does_other = bool(words_of_name & _DOES_NOT_TRAIN) and not words_of_name & _TRAINS
    # eval_sft evaluates, and prepare_and_train does both.
    does_other |= first_word in _DOES_FIRST and "and" not in words_of_name
    if does_other or "compile" in words_of_name:  # compile_for_training, too, only compiles
        return _DOES_OTHER
    return (_IS_NAMED_SO if words_of_path & _TRAINS else 0) + (1 if launchers(words) else 0)
