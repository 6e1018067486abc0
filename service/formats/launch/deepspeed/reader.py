"""Reads DeepSpeed launches: a document, alone or beside the arguments of the Trainer."""

from __future__ import annotations

from functools import partial

from service.formats.launch.deepspeed.writer import NAME
from service.formats.launch.trainer import reader

read = partial(reader.read, default_dialect=NAME)
"""Reads a document, or the one that a script writes or names. A document that names no other tool
is read as one of DeepSpeed."""
