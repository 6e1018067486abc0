"""The answer to the question for a launch configuration of a layout, in the words of a
framework."""

from __future__ import annotations

from typing import Any, Self

from service.formats.launch.job import LaunchConfiguration
from service.formats.launch.rendering import command_words
from service.schemas.wire import Document


class LaunchAnswer(Document):
    """The configuration that runs a layout. Other media types of `GET …/launch/{format}` have it as
    text."""

    format: str
    framework: str
    version: str
    """The release of the framework that it is written for."""
    settings: dict[str, Any]
    """By the framework's own names: flags, keys, or a document as it is."""
    arguments: list[str]
    """The words behind the training program on its command line. Where the settings are a document,
    only what that does not say."""
    environment: dict[str, str]
    """Variables of every process. Those that begin with SHARDWRIGHT_ name this layout for a report
    of the run: the id of the answer, and `choice` or `rank` where that is another than the
    recommended one."""
    placeholders: dict[str, str]
    """Settings that no layout decides, such as data, and what to put there."""
    slurm: dict[str, bool | int | str]
    """Options of sbatch, without dashes; true has no value. Time, account and partition are yours
    to add."""
    notes: list[str]
    """Notes on what to know or do besides."""

    @classmethod
    def of(cls, configuration: LaunchConfiguration) -> Self:
        """Returns the configuration as an answer, with its command as a list of words."""
        return cls.from_attributes(configuration, arguments=command_words(configuration))


class LaunchUnsaid(Document):
    """The framework has no words for the layout."""

    format: str
    error: str
    """The part that it cannot say, and what to do."""
