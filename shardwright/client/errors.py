"""The errors that a client raises.

ShardwrightError
├── Unreachable            no service answers at the URL
├── TimedOut               none answered in the time that the caller allows
├── UnreadableAnswer       something answers that is no Shardwright, such as a proxy's page
└── Problem                the service refuses, and says what, why and what to do
    ├── Invalid            400, 413, 415, 422: a field breaks a rule; `errors` names each
    ├── Unauthorized       401: a key is missing or wrong
    ├── Forbidden          403: the key is not for this
    ├── NotFound           404, 410
    ├── Conflict           409, 412, 428: something else was changed or is going on
    └── Overloaded         429, 503: too many requests, or not ready yet; `retry_after_s`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class ShardwrightError(Exception):
    """Something that went wrong between a caller and the service."""


class Unreachable(ShardwrightError):
    """No service answers at the URL."""


class TimedOut(ShardwrightError):
    """No answer came in the time that the caller allows."""


class UnreadableAnswer(ShardwrightError):
    """Something answered that is not the service."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One value that breaks a rule."""

    field: str
    """The field of the request, such as `cluster.num_chips`."""
    value: Any
    rule: str
    """The rule that is broken, and the cure."""

    def __str__(self) -> str:
        return f"{self.field}: {self.rule}"


class Problem(ShardwrightError):
    """A refusal of the service, as its problem document says it."""

    def __init__(self, document: Mapping[str, Any], retry_after_s: float | None = None) -> None:
        self.document = document
        """The whole document (RFC 9457)."""
        self.retry_after_s = retry_after_s
        super().__init__(self.detail)

    @property
    def type(self) -> str:
        """Returns the name of the problem type, such as `unknown-name`."""
        return str(self.document.get("type", "")).rpartition("/")[2]

    @property
    def title(self) -> str:
        return str(self.document.get("title", ""))

    @property
    def status(self) -> int:
        return int(self.document.get("status", 0))

    @property
    def detail(self) -> str:
        """Returns a sentence that says what happened and what to do."""
        return str(self.document.get("detail") or self.title)

    @property
    def request_id(self) -> str | None:
        """Returns the id by which the operator finds the request in the logs."""
        return self.document.get("request_id")

    @property
    def errors(self) -> tuple[FieldError, ...]:
        """Returns the values that break rules; empty where the problem names none."""
        listed = self.document.get("errors") or ()
        return tuple(
            FieldError(str(error.get("field", "")), error.get("value"), str(error.get("rule", "")))
            for error in listed
        )


class Invalid(Problem):
    """A field of the request breaks a rule."""


class Unauthorized(Problem):
    """A key is missing or wrong."""


class Forbidden(Problem):
    """The key is not for this."""


class NotFound(Problem):
    """The resource does not exist, or no longer does."""


class Conflict(Problem):
    """Something else was changed in between, or is still going on."""


class Overloaded(Problem):
    """The service has too much to do, or is not ready yet."""


_KINDS: Mapping[int, type[Problem]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: NotFound,
    412: Conflict,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    428: Conflict,
    429: Overloaded,
    503: Overloaded,
}


def problem_of(document: Mapping[str, Any], status: int, retry_after_s: float | None) -> Problem:
    """Returns the exception for a problem document that came with this HTTP status."""
    kind = _KINDS.get(status, Problem)
    return kind({"status": status, **document}, retry_after_s)
