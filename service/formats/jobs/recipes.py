"""Recipes: YAML files that hold the arguments of a program as a mapping, under a name such as
MODEL_ARGS, beside its environment and what its container image is made of."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from service.formats.jobs.job_text import JobText, as_list, as_mapping, environment_of

_ARGUMENTS = ("ARGS", "MODEL_ARGS", "TRAINING_ARGS", "MEGATRON_ARGS", "DATA_ARGS", "args")
_VARIABLES = ("ENV_VARS", "ENV", "ENVIRONMENT", "env_vars")


def is_recipe(document: Any) -> bool:
    """Returns True for an object with the arguments of a program, as under MODEL_ARGS."""
    fields = as_mapping(document)
    return any(isinstance(fields.get(name), (Mapping, list)) for name in _ARGUMENTS)


def job_of(document: Mapping[str, Any]) -> JobText:
    """Returns the job of a recipe: the arguments and variables of all blocks that have some.
    Other blocks, such as the Dockerfile of DEPENDENCIES, do not matter to the launch."""
    words = [word for name in _ARGUMENTS for word in _argument_words(document.get(name))]
    variables = [environment_of(document.get(name)) for name in _VARIABLES]
    return JobText(
        text=" ".join(map(_quoted_for_shell, words)),
        environment={
            name: value for assignments in variables for name, value in assignments.items()
        },
    )


def _argument_words(block: Any) -> Iterable[str]:
    """Yields the words of a block of arguments: --num-layers 32 --bf16 for {"num_layers": 32,
    "bf16": true}. A false argument is left out, and mappings inside count as part of the block."""
    for item in as_list(block):
        yield str(item)
    for name, value in as_mapping(block).items():
        flag = f"--{str(name).lstrip('-').replace('_', '-')}"
        if isinstance(value, Mapping):
            yield from _argument_words(value)
        elif value is True or value in ("", None):
            yield flag
        elif value is not False:
            yield flag
            yield from map(str, as_list(value) or [value])


def _quoted_for_shell(word: str) -> str:
    """Returns a word quoted for a shell. A word of harmless characters stays as it is, so that
    the shell replaces a variable in it, such as ${TP}."""
    return word if re.fullmatch(r"[\w./:=,+@%^~$\{\}-]+", word, re.ASCII) else shlex.quote(word)
