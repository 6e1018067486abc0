"""A batch job of Slurm as it is submitted, and the question about it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from shardwright.cli.job_files import files_beside
from shardwright.hooks.checking import check_request
from shardwright.hooks.policy import HookPolicy
from shardwright.secrets import mask_secrets, names_secret

_GPUS = re.compile(
    r"(?:gres[:/])?(?:gpu[:=/])?(?:(?P<type>[A-Za-z][\w.-]*)[:=])?(?P<count>\d+)", re.ASCII
)
"""The words of --gpus-per-node and --gres: 8, h100:8, gpu:8 and gpu:h100:8."""
_NODE_OPTIONS = ("gpus-per-node", "gres", "tres-per-node")
_HEADER = re.compile(r"^#SBATCH[ \t]+([^#\n]*)", re.MULTILINE)
_USED = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)
_ASSIGNED = re.compile(
    r"^\s*(?:(?:export|declare|local|readonly)\s+)?([A-Za-z_]\w*)=", re.ASCII | re.MULTILINE
)
_MOST_CHARACTERS = 2**16  # what the service reads of a script
_FLAGS = frozenset("hHIkOQsVvW")  # short options of sbatch that take no value
_SWITCHES = re.compile(
    "contiguous|disable-stdout-job-summary|exclusive|get-user-env|help|hold|ignore-pbs"
    "|kill-on-bad|no-kill|no-requeue|overcommit|oversubscribe|parsable|quiet|reboot|requeue"
    "|spread-job|test-only|usage|use-min-nodes|verbose|version|wait"
)
"""Long options of sbatch (22.05 to 25.11) that take no value, or only one behind "="."""
_LONG_NAMES = {"N": "nodes", "G": "gpus", "p": "partition", "C": "constraint"}
"""The long names of the short options that say where a job runs."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """The options of a job, by their long names, and its script with its arguments."""

    options: Mapping[str, str]
    argv: Sequence[str] = ()

    @classmethod
    def of_command(cls, words: Sequence[str]) -> Self:
        """Returns the job of an sbatch command line. Its options replace those in the script's
        #SBATCH lines."""
        options, argv = _options_and_words(words)
        job = cls(options, argv)
        header_lines = _HEADER.findall(job.script() or "")
        script_options, _ = _options_and_words(
            [word for line in header_lines for word in shlex.split(line)]
        )
        return cls({**script_options, **options}, argv)

    def script(self) -> str | None:
        """Returns the text of the script; None where it comes through a pipe, which can be read
        only once."""
        if "wrap" in self.options:
            return self.options["wrap"]
        if not self.argv:
            return None
        with Path(self.argv[0]).open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_CHARACTERS)

    def check_request(
        self, script: str, folder: Path, policy: HookPolicy, environment: Mapping[str, str]
    ) -> dict[str, Any]:
        """Returns the request that checks the job. Files in the folder that the script names are
        sent with it, and those variables of the environment that it uses."""
        launch = {
            "arguments": mask_secrets(script),
            "files": files_beside(script, folder),
            "environment": _used_variables(script, environment),
        }
        return check_request(launch, chip=self._chip(policy), num_chips=self._num_chips())

    def _chip(self, policy: HookPolicy) -> str | None:
        """Returns the chip of the job: the one that the site's table has for its type of GPU,
        partition or constraint, or else that type of GPU; None where none of these is given."""
        gpu_options = [self._gpus(name) for name in (*_NODE_OPTIONS, "gpus")]
        types = [gpus["type"] for gpus in gpu_options if gpus and gpus["type"]]
        places = (self.options.get("partition"), self.options.get("constraint"))
        return policy.chip_of([*types, *places]) or next(iter(types), None)

    def _num_chips(self) -> int | None:
        """Returns the number of chips that the options ask for; None where they do not say."""
        in_all = self._gpus("gpus")
        if in_all:
            return int(in_all["count"])
        nodes = self.options.get("nodes", "")
        per_node = next(filter(None, map(self._gpus, _NODE_OPTIONS)), None)
        return int(nodes) * int(per_node["count"]) if per_node and nodes.isdecimal() else None

    def _gpus(self, option: str) -> re.Match[str] | None:
        """Returns the type and count of GPUs that an option asks for, as groups of a match; None
        where it asks for none."""
        return _GPUS.fullmatch(self.options.get(option, ""))


def _options_and_words(words: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """Returns the options at the start of a command line by their long names, and the words after
    them: ["-N", "2", "job.sh"] gives ({"nodes": "2"}, ["job.sh"])."""
    options: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word == "--":
            return options, [*rest]
        if not word.startswith("-"):
            return options, [word, *rest]
        name, value = _option(word, rest)
        options[name] = value
    return options, []


def _option(word: str, rest: Iterator[str]) -> tuple[str, str]:
    """Returns the long name and the value of an option. Takes the value from `rest` where it is the
    next word."""
    if word.startswith("--"):
        name, is_joined, value = word[2:].partition("=")
        takes_next = not is_joined and not _SWITCHES.fullmatch(name)
        return name, next(rest, "") if takes_next else value
    letter, value = word[1:2], word[2:]
    takes_next = not value and letter not in _FLAGS
    return _LONG_NAMES.get(letter, letter), next(rest, "") if takes_next else value


def _used_variables(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that a script uses and does not set. Secrets and Slurm's
    own variables are left out."""
    names = set(_USED.findall(text)) - set(_ASSIGNED.findall(text))
    return {
        name: mask_secrets(environment[name])
        for name in sorted(names)
        if name in environment and not names_secret(name) and not name.startswith("SLURM_")
    }
