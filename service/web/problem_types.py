"""The types of problem documents, and the type of each exception. `problem_types.json` has their
texts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import ValidationError

from models.errors import DomainError
from models.package_data import read_json
from service.errors import NameTaken, NotJson, Refused, ServiceError


@dataclass(frozen=True, slots=True)
class ProblemType:
    status: int
    title: str
    meaning: str


_TEXTS = read_json(__package__, "problem_types.json")
TYPES = {name: ProblemType(**texts) for name, texts in _TEXTS.items()}
_NAMED_OTHERWISE: dict[type[Exception], str] = {
    NameTaken: "name-reserved",
    NotJson: "unsupported-media-type",
    Refused: "invalid",
}
"""Exceptions whose problem type does not have the name of their class."""
_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")


def problem_name(error: Exception) -> str:
    """Returns the name of the problem type of an exception: "not-found" for NotFound. A class
    without a type has that of its nearest base class."""
    names = [
        _NAMED_OTHERWISE.get(kind) or _WORD_START.sub("-", kind.__name__).lower()
        for kind in type(error).__mro__
    ]
    return next(name for name in names if name in TYPES)


def problem_path(error: Exception) -> str:
    """Returns the path of the problem type of any exception, such as "/problems/invalid"; that of
    "internal" for one that is not raised on purpose."""
    if isinstance(error, ValidationError):
        return "/problems/invalid"
    is_defect = not isinstance(error, DomainError | ServiceError)
    return "/problems/internal" if is_defect else f"/problems/{problem_name(error)}"
