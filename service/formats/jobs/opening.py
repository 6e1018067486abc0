"""Tells objects that describe a job from other texts, and opens them: a YAML or JSON object of
Kubernetes, SkyPilot or a recipe becomes the command that it starts, with its variables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from models.errors import Invalid
from service.formats.jobs import kubernetes, recipes, skypilot
from service.formats.jobs.job_text import JobText, as_list, as_mapping
from service.formats.launch.documents import read_yaml
from service.formats.shell.files import LaunchFiles

_NAMES = "kind|run|commands|ARGS|MODEL_ARGS|TRAINING_ARGS|MEGATRON_ARGS|args"
"""Keys of which every object that describes a job has one. Texts without are not parsed."""
_MARKS = re.compile(rf"^\"?(?:{_NAMES})\"?\s*:", re.MULTILINE)
_MARKS_OF_JSON = re.compile(rf'"(?:{_NAMES})"\s*:')
_DIVIDES = re.compile(r"^---[ \t]*(?:#.*)?$", re.MULTILINE)
_MOST_DOCUMENTS = 32  # files of a job hold a few; each is parsed


def open_job(text: str, files: LaunchFiles) -> tuple[str, LaunchFiles]:
    """Returns the command that a text starts, and its files. An object that describes a job is
    opened; any other text is returned as it is. Variables that the request sends override those
    of the object."""
    job = _described_job(text)
    if job is None:
        return text, files
    environment = {**job.environment, **files.environment}
    texts = {**job.files, **files.texts}
    return job.text, replace(files, texts=texts, environment=environment, header=job.header)


def _described_job(text: str) -> JobText | None:
    """Returns the job that a text describes, as an object of Kubernetes, SkyPilot or a recipe;
    None for any other text."""
    documents = _job_documents(text)
    if any(map(kubernetes.is_object, documents)):
        return kubernetes.job_of(documents)
    for document in documents:
        if skypilot.is_task(document):
            return skypilot.job_of(document)
        if recipes.is_recipe(document):
            return recipes.job_of(document)
    return None


def _job_documents(text: str) -> list[Mapping[str, Any]]:
    """Returns the JSON or YAML objects in a text that may describe a job; none for any other text.
    A text without a key that such objects have (`_MARKS`) is not parsed, and of a long one only
    the first _MOST_DOCUMENTS objects are."""
    if text.lstrip().startswith("{"):
        return _json_objects(text) if _MARKS_OF_JSON.search(text) else []
    if not _MARKS.search(text):
        return []
    try:
        documents = [read_yaml(part) for part in _DIVIDES.split(text)[:_MOST_DOCUMENTS]]
    except Invalid:  # a script may have lines that look like the names of a YAML object
        return []
    return [document for document in documents if isinstance(document, Mapping)]


def _json_objects(text: str) -> list[Mapping[str, Any]]:
    """Returns the objects of a JSON text: one, or the items of a List as kubectl prints it.
    Empty where it is no JSON."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return []
    # kubectl lists may be long, and a job is among the first objects of a file.
    items = as_list(as_mapping(document).get("items"))[:_MOST_DOCUMENTS]
    return [item for item in items if as_mapping(item)] or [document]  # an object alone
