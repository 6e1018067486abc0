"""A launch configuration as callers give it, and what was read of it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from service.formats.jobs.opening import open_job
from service.formats.launch.formats import FORMATS, format_named
from service.formats.shell.files import LaunchFiles
from service.json_pointers import TAG_PREFIX
from service.schemas.wire import Document, Wire
from shardwright.secrets import mask_secrets

Format = Literal["megatron", "megatron-bridge", "torchtitan", "maxtext", "deepspeed", "accelerate"]
MAX_CHARACTERS = 2**16
"""Most characters of the arguments of a launch, and of its files together. A script with all its
configurations has some thousand, and reading takes longer the more there are."""
_MOST_FILES = 64  # a launch names some; each is kept for the reading
_FLAG_WITH_VALUE = re.compile(r"-{1,2}[\w.-]+\s")
"""The beginning of an item that is a flag and its value as somebody would type them."""
_VARIABLE = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)
_IN_KUBERNETES = re.compile(r"\$\((\w+)\)", re.ASCII)
_OWN_VARIABLES = "SHARDWRIGHT_"

FileName = Annotated[str, StringConstraints(min_length=1, max_length=400)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHARACTERS)]


def _union_tag(value: object) -> str:
    """Returns the tag of the form in which arguments are written: an object, a list or a text."""
    if isinstance(value, Mapping):
        return f"{TAG_PREFIX}document"
    return f"{TAG_PREFIX}list" if isinstance(value, list) else f"{TAG_PREFIX}text"


Arguments = Annotated[
    Annotated[Text, Tag(f"{TAG_PREFIX}text")]
    | Annotated[list[Text], Field(max_length=4096), Tag(f"{TAG_PREFIX}list")]
    | Annotated[dict[str, Any], Field(min_length=1), Tag(f"{TAG_PREFIX}document")],
    Discriminator(_union_tag),
]


def _format_name(name: object) -> object:
    """Returns the name of a launch format, also for the name of a stack or tool that is started
    with it. A name that is not known is returned as it is, for the schema to refuse."""
    format_ = format_named(name) if isinstance(name, str) else None
    return name if format_ is None else format_.name


class LaunchForm(Wire):
    """A launch configuration in the framework's own words. The `launch` of an answer is one."""

    format: Annotated[Format | None, BeforeValidator(_format_name)] = None
    """Its name, or that of a stack that has one, such as `fsdp` or `nemo`. Without it the format is
    told by the program that is launched, or by the names of the settings."""
    arguments: Arguments | None = None
    """The arguments as typed: a shell line, a dump of arguments, YAML or JSON as text; the
    arguments as a list; or the JSON document itself."""
    settings: Annotated[dict[str, Any], Field(min_length=1, max_length=4096)] | None = None
    """Instead of `arguments`, or beside those of an answer: settings by their names, as an answer
    has them."""
    files: Annotated[dict[FileName, str], Field(max_length=_MOST_FILES)] = {}
    """Texts of files that the launch names, by name: its script, YAML, TOML, a DeepSpeed document,
    a file that it sources. Files that the script writes itself (cat > FILE <<END) need not be
    here."""
    environment: Annotated[dict[str, str], Field(max_length=256)] = {}
    """Environment variables that the launch is started with. They go before what a script sets, and
    that before its defaults."""
    version: Annotated[str, StringConstraints(min_length=1, max_length=40)] | None = None
    """The release of the framework, such as 0.16.1, whose defaults hold for what is not said.
    Without it the newest that is known."""
    framework: str | None = None
    """A member of an answer that is sent back. It is ignored: `format` says it."""
    placeholders: dict[str, Any] | None = None
    """A member of an answer: settings that are yours to fill in, and may be missing. Where they
    name the model, give `model` beside the launch."""
    slurm: dict[str, Any] | None = None
    """A member of an answer, which is ignored: `cluster` says how many chips there are."""
    notes: list[Any] | None = None
    """A member of an answer, which is ignored."""

    @field_validator("arguments")
    @classmethod
    def _refuse_long_arguments(cls, arguments: Any) -> Any:
        """Raises ValueError for arguments of too many characters."""
        if arguments is not None and len(_text(arguments)) > MAX_CHARACTERS:
            raise ValueError(f"must have at most {MAX_CHARACTERS} characters in all")
        return arguments

    @model_validator(mode="after")
    def _require_content(self) -> Self:
        """Raises ValueError for a launch that says nothing, has settings without a format, has a
        wrong variable name, or is too long."""
        if not self.arguments and self.settings is None:
            raise ValueError("needs arguments, or settings as an answer has them")
        if self.settings is not None and self.format is None:
            raise ValueError("needs the format that its settings are of")
        variables = [name for name in self.environment if not _VARIABLE.fullmatch(name)]
        if variables:
            raise ValueError(f"environment has {variables[0]!r}, which is no name of a variable")
        # Written from settings, or with variables filled in, the text may be longer than was sent.
        if len(self._launch_text) > 2 * MAX_CHARACTERS:
            raise ValueError(f"must have at most {2 * MAX_CHARACTERS} characters in all")
        if sum(map(len, self.files.values())) > MAX_CHARACTERS:
            raise ValueError(f"files must have at most {MAX_CHARACTERS} characters in all")
        return self

    @cached_property
    def beside(self) -> LaunchFiles:
        """Returns the files that are sent beside the text, or that the text contains beside its
        command, with their secrets masked."""
        return self._opened[1]

    @cached_property
    def text(self) -> str:
        """Returns the launch as one text with its secrets masked, so that no answer can repeat
        them. For an object that describes a job, it is the command that the job starts."""
        return self._opened[0]

    @cached_property
    def _opened(self) -> tuple[str, LaunchFiles]:
        """Returns the command that the launch runs, and the files and variables that come with it.
        If the text is a job, such as a Kubernetes manifest, both are taken out of it. Secrets are
        masked."""
        texts = {name: mask_secrets(text) for name, text in self.files.items()}
        # Many secrets are told by the name of their variable, as in WANDB_API_KEY=...
        environment = {
            name: mask_secrets(f"{name}={value}").partition("=")[2]
            for name, value in self.environment.items()
            if not name.startswith(_OWN_VARIABLES)  # which name an answer for the run's report
        }
        return open_job(mask_secrets(self._launch_text), LaunchFiles(texts, environment))

    @property
    def _launch_text(self) -> str:
        """Returns the launch as one text, written from `settings` where the request gives these.
        Secrets are not masked yet."""
        if self.settings is None or self.format is None:
            return _text(self._with_variables())
        to_words = FORMATS[self.format].words
        # Settings of DeepSpeed and accelerate are a document, which has no form on a command line.
        # Arguments of the script beside it are added to the document by name.
        if to_words is None:
            listed = self.arguments if isinstance(self.arguments, list) else []
            return _text({**self.settings, **_options(listed)})
        return _text(self.arguments or to_words(self.settings))

    def _with_variables(self) -> Any:
        """Returns the arguments. In a list, $(NAME) is replaced by the variable's value, as
        Kubernetes does."""
        if not isinstance(self.arguments, list):
            return self.arguments or ""
        return [
            _IN_KUBERNETES.sub(lambda match: self.environment.get(match[1], match[0]), word)
            for word in self.arguments
        ]


def _options(words: Sequence[str]) -> dict[str, str]:
    """Returns the arguments of a script by name: ["--tp", "8"] gives {"tp": "8"}. A last flag
    without a value is left out."""
    names = [word.removeprefix("--") for word in words[::2]]
    return dict(zip(names, words[1::2], strict=False))


def _text(arguments: Any) -> str:
    """Returns arguments as one text: a list as a command line, and an object as JSON."""
    if isinstance(arguments, str):
        return arguments
    if isinstance(arguments, list):
        return " ".join(map(_shell_words, arguments))
    return json.dumps(arguments)


def _shell_words(item: str) -> str:
    """Returns an item of a list of arguments as one shell word. An item that holds a flag and its
    value, such as "--tp 8", stays two words."""
    return item if _FLAG_WITH_VALUE.match(item) else shlex.quote(item)


class LaunchRead(Document):
    """The reading of a launch configuration."""

    format: Format
    format_from: str | None = None
    """The sign that tells the format, where the launch did not name it."""
    framework: str
    version: str
    """The release of the framework whose defaults were taken."""
    unread: list[str]
    """The first settings that are not understood and could change the answer, as they were written:
    `reservations` says why they matter and what to do."""
    unread_count: int = 0
    """Number of unread settings in all; 0 in answers that were stored before they were counted."""
    ignored_count: int
    """Number of settings that are known and change neither question nor layout, such as paths of
    data."""
    warnings: list[str] = []
    """Values of the launch in whose place those of the request were taken, and names that the
    framework accepts and ignores, with the nearest that it knows."""
    assumed: list[str]
    """Sentences on what the launch leaves open, and what was taken."""
