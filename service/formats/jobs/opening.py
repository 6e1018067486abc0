"""Tells objects that describe a job from other texts, and opens them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.errors import Invalid
from service.formats.jobs import kubernetes, recipes, skypilot
from service.formats.jobs.job_text import JobText
from service.formats.launch.documents import read_yaml
from service.formats.shell.files import LaunchFiles

_MARKS = re.compile(
    r"^(?:\"?kind\"?\s*:|run\s*:|(?:ARGS|MODEL_ARGS|TRAINING_ARGS|MEGATRON_ARGS|args)\s*:)",
    re.MULTILINE,
)
_DIVIDES = re.compile(r"^---[ \t]*(?:#.*)?$", re.MULTILINE)
_MOST_DOCUMENTS = 32


def opened(text: str, files: LaunchFiles) -> tuple[str, LaunchFiles]:
    """Returns the command that a text starts, and the files beside it: the text as it is, unless it
    is an object that describes a job. Variables of the request go before those of the object."""
    job = _job(text)
    if job is None:
        return text, files
    environment = {**job.environment, **files.environment}
    texts = {**job.files, **files.texts}
    return job.text, replace(files, texts=texts, environment=environment, header=job.header)


def _job(text: str) -> JobText | None:
    if not _MARKS.search(text):
        return None
    documents: list[Mapping[str, Any]] = []
    for part in _DIVIDES.split(text)[:_MOST_DOCUMENTS]:
        try:
            document = read_yaml(part)
        except Invalid:
            return None
        if isinstance(document, Mapping):
            documents.append(document)
    if any(map(kubernetes.is_object, documents)):
        return kubernetes.job_of(documents)
    for document in documents:
        if skypilot.is_task(document):
            return skypilot.job_of(document)
        if recipes.is_recipe(document):
            return recipes.job_of(document)
    return None
