"""A launch configuration as callers give it, and what was read of it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag, field_validator

from service.json_pointers import TAG_PREFIX
from service.schemas.wire import Document, Wire

Format = Literal["megatron", "megatron-bridge", "torchtitan", "maxtext", "deepspeed", "accelerate"]
MAX_CHARACTERS = 2**16
"""Of the arguments of a launch."""
_FLAG_WITH_VALUE = re.compile(r"-{1,2}[\w.-]+\s")
"""How an item begins that is a flag and its value as somebody would type them."""

Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHARACTERS)]


def _union_tag(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{TAG_PREFIX}document"
    return f"{TAG_PREFIX}list" if isinstance(value, list) else f"{TAG_PREFIX}text"


Arguments = Annotated[
    Annotated[Text, Tag(f"{TAG_PREFIX}text")]
    | Annotated[list[Text], Field(min_length=1, max_length=4096), Tag(f"{TAG_PREFIX}list")]
    | Annotated[dict[str, Any], Field(min_length=1), Tag(f"{TAG_PREFIX}document")],
    Discriminator(_union_tag),
]


class LaunchForm(Wire):
    """A launch configuration in the framework's own words."""

    format: Format
    arguments: Arguments
    """As typed: a shell line, a dump of arguments, YAML or JSON as text; the arguments as a list;
    or the JSON document itself."""
    version: Annotated[str, StringConstraints(min_length=1, max_length=40)] | None = None
    """The release of the framework, such as 0.16.1, whose defaults hold for what is not said.
    Without it the newest that is known."""

    @field_validator("arguments")
    @classmethod
    def _is_short(cls, arguments: Any) -> Any:
        if len(_text(arguments)) > MAX_CHARACTERS:
            raise ValueError(f"must have at most {MAX_CHARACTERS} characters in all")
        return arguments

    @property
    def text(self) -> str:
        """The arguments as one text, however they were given."""
        return _text(self.arguments)


def _text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    if isinstance(arguments, list):
        return " ".join(map(_shell_words, arguments))
    return json.dumps(arguments)


def _shell_words(item: str) -> str:
    """An item of a list of arguments as a shell would be told it: as one word, unless it has a flag
    and a value in one item."""
    return item if _FLAG_WITH_VALUE.match(item) else shlex.quote(item)


class LaunchRead(Document):
    """What was read of a launch configuration."""

    format: Format
    framework: str
    version: str
    """The release of the framework whose defaults were taken."""
    unread: list[str]
    """Settings that are not understood and could change time or memory, as they were written."""
    ignored_count: int
    """How many settings are known and change neither, such as paths of data."""
    assumed: list[str]
    """What the launch leaves open, and what was taken."""
