"""Reads DeepSpeed launches: a document, alone or beside the arguments of the Trainer."""

from __future__ import annotations

from service.formats.launch.deepspeed.writer import NAME
from service.formats.launch.job import NO_CHANGES, Changes, LaunchReading
from service.formats.launch.trainer import reader
from service.formats.shell.files import NO_FILES, LaunchFiles


def read(
    text: str,
    version: str | None,
    *,
    changes: Changes = NO_CHANGES,
    files: LaunchFiles = NO_FILES,
) -> LaunchReading:
    """Returns the reading of a document, or of the one that a script writes or names. A document
    that names no other tool is read as one of DeepSpeed."""
    return reader.read(text, version, changes=changes, files=files, default_dialect=NAME)
