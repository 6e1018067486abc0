"""Every error that the service itself raises on purpose; those of the models are in models.errors.

ServiceError
├── NotFound             there is no such prediction, report, profile, catalogue entry, …
├── Unauthenticated      no key is given, or one that is not known
├── Forbidden            the key lacks the scope that this needs
├── Conflict             something that exists, or another request, stands in the way
│   ├── NameReserved     a shipped catalogue entry has this name
│   ├── NameTaken        a registered entry of another kind has this name
│   ├── StillRunning     the first request with this Idempotency-Key has not finished
│   └── StorageFull      the tenant has stored as much as it may
├── NothingToLearn       a calibration finds no usable report
├── KeyReused            another request came with this Idempotency-Key before
├── PreconditionRequired If-Match is missing
├── PreconditionFailed   If-Match names a state that is gone
├── BadHeader            a header cannot be read
├── NotAcceptable        an answer is wanted in a media type that it does not have
├── MalformedBody        the body is not JSON
│   └── Unreadable       it is JSON that the service cannot hold, or no database can store
├── NotJson              the body has another media type or character set
├── BodyTooLarge         the body has more bytes than the service reads
├── TooManyRequests      the key has sent as many requests as it may for now
├── TooManyStreams       as many event streams are open as may be
├── BodyTooSlow          the next bytes of the body do not come
├── Unavailable          the database does not answer, or cannot store anything
├── Stopping             the service was told to stop, and there is no time left
├── Overloaded           too many computations are asked for at once
│   ├── QueueFull        too many requests wait already
│   ├── TurnNeverCame    others were computed all the time that the request waited
│   ├── TooMuchHeld      the bodies of other requests fill the memory there is for bodies
│   ├── WorkerKilled     the process that computed was killed, as for want of memory
│   └── StillCompiling   the service has started a moment ago
├── ForeignForm          a form that no page of this service has sent
├── ClientGone           the client has closed the connection
└── Refused              several fields are wrong, each an Invalid of models.errors
    └── NotATrainingJob  a launch starts something that trains nothing
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from models.errors import Invalid
from service.json_pointers import pointer_of


class ServiceError(Exception):
    """Base of all errors the service raises on purpose. One that a worker process raises is the
    same in the process that asked."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns the pickled form of the error. By default pickle would call the class with the
        message, but the class takes the values that the message is made of."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class NotFound(ServiceError):
    def __init__(self, what: str, name: object) -> None:
        super().__init__(f"There is no {what} {name}.")
        self.what, self.name = what, name


class Unauthenticated(ServiceError):
    pass


class Forbidden(ServiceError):
    def __init__(self, scope: str, scopes: Sequence[str]) -> None:
        super().__init__(
            f"This needs the scope {scope}; the key has {', '.join(scopes) or 'none'}."
        )
        self.scope = scope


class ForeignForm(ServiceError):
    def __init__(self) -> None:
        super().__init__(
            "The form did not come from a page of this service, or that page was open for longer"
            " than your session. Nothing was done. Open the page again and send the form once more."
        )


class Conflict(ServiceError):
    pass


class NameReserved(Conflict):
    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"{name} names an entry of the shipped catalogue of {kind}; choose another name."
        )


class NameTaken(Conflict):
    def __init__(self, other: str, name: str) -> None:
        super().__init__(
            f"{name} is registered among the {other}, and a preset may name either; choose another"
            " name."
        )


class StillRunning(Conflict):
    def __init__(self) -> None:
        super().__init__(
            "The first request with this Idempotency-Key has not finished; try again later."
        )


class StorageFull(Conflict):
    def __init__(self, *, used: int, added: int, limit: int) -> None:
        super().__init__(
            f"A tenant may store {limit:,} bytes. {used:,} are used, and this request would store"
            f" {added:,} more. Remove sweeps that are no longer needed (DELETE /v1/sweeps/{{id}}),"
            " withdraw reports of training logs (DELETE /v1/reports/{id}), which drops their logs,"
            " or ask the operator to drop your answers (python -m service.tools.retention --tenant"
            " NAME --older-than 1h) or to raise SHARDWRIGHT_MAX_STORED_BYTES_PER_TENANT."
        )


class NothingToLearn(ServiceError):
    def __init__(self, unusable: int, version: int) -> None:
        super().__init__(
            f"No report that was asked for tells version {version} anything new of time or memory; "
            f"{unusable} could not be used."
        )


class KeyReused(ServiceError):
    def __init__(self) -> None:
        super().__init__(
            "This Idempotency-Key was used for another request; use a new key for each request."
        )


class PreconditionRequired(ServiceError):
    def __init__(self) -> None:
        super().__init__("Say with If-Match which state you saw: the ETag of the profile.")


class PreconditionFailed(ServiceError):
    def __init__(self, current: str) -> None:
        super().__init__(
            f"The ETag is now {current}, which If-Match does not name (W/… never matches here)."
        )


class BadHeader(ServiceError):
    def __init__(self, header: str, rule: str) -> None:
        super().__init__(f"{header}: {rule}.")


class NotAcceptable(ServiceError):
    def __init__(self, accept: str, offered: Sequence[str]) -> None:
        super().__init__(f"Accept: {accept} takes none of {', '.join(offered)}; name one of these.")


class MalformedBody(ServiceError):
    pass


class Unreadable(MalformedBody):
    """The value at `location` breaks the rule, or the whole body where neither is given."""

    def __init__(self, rule: str, value: object = None, location: Sequence[str | int] = ()) -> None:
        subject = "The body"
        if location or value:
            shown_value = "null" if value is None else value
            place = pointer_of(location)[:100] or "its root"
            subject += f" holds {shown_value} at {place}, which"
        super().__init__(f"{subject} {rule}.")
        self.rule = rule
        self.value = value
        self.location = location


class NotJson(ServiceError):
    def __init__(self, media_type: str) -> None:
        super().__init__(
            "The body must be application/json in UTF-8, not"
            f" {media_type or 'of an unnamed media type'}."
        )


class BodyTooLarge(ServiceError):
    def __init__(self, limit: int) -> None:
        super().__init__(f"The body must not exceed {limit} bytes.")


class TooManyRequests(ServiceError):
    def __init__(self, per_minute: int, wait_s: float) -> None:
        super().__init__(
            f"A key may send {per_minute} requests a minute, and this one has; try again in"
            f" {math.ceil(wait_s)} s. The operator sets SHARDWRIGHT_REQUESTS_PER_MINUTE."
        )
        self.wait_s = wait_s


class TooManyStreams(ServiceError):
    @classmethod
    def of_tenant(cls, limit: int) -> TooManyStreams:
        """Returns the error for a tenant that has `limit` streams open."""
        return cls(
            f"A tenant may have {limit} event streams open in one process of the service, and this"
            " one has. Close those that nobody reads, or let several listeners share one; the"
            " operator sets SHARDWRIGHT_STREAMS_PER_TENANT."
        )

    @classmethod
    def of_process(cls, limit: int) -> TooManyStreams:
        """Returns the error for a process that has `limit` streams open."""
        return cls(
            f"{limit} event streams are open, of all tenants together, and this process of the"
            " service takes no more. Try again later, or read the progress of the sweep now and"
            " then (GET /v1/sweeps/{id}); the operator sets SHARDWRIGHT_MAX_STREAMS."
        )


class BodyTooSlow(ServiceError):
    def __init__(self, waited_s: float) -> None:
        super().__init__(f"The rest of the body did not come within {waited_s:.3g} s.")


class Unavailable(ServiceError):
    """`reason` says what the database does, as the rest of a sentence."""

    def __init__(self, reason: str = "does not answer") -> None:
        super().__init__(f"The database {reason}; try again later.")
        self.reason = reason


class Stopping(ServiceError):
    def __init__(self) -> None:
        super().__init__("The service stops, and has stored nothing of this; try again later.")


class Overloaded(ServiceError):
    pass


class QueueFull(Overloaded):
    def __init__(self, running: int, waiting: int) -> None:
        super().__init__(
            f"The queue is full: {running} may compute at a time and {waiting} wait; try again"
            " later."
        )


class TurnNeverCame(Overloaded):
    def __init__(self, waited_s: float) -> None:
        super().__init__(
            f"The turn of this request did not come within {waited_s:.3g} s, since others were"
            " being computed; try again later."
        )


class TooMuchHeld(Overloaded):
    def __init__(self) -> None:
        super().__init__("Too many large bodies are being read; try again later.")


class WorkerKilled(Overloaded):
    def __init__(self) -> None:
        super().__init__(
            "The process that computed this was killed twice, perhaps because the machine has too"
            " little memory; try again later, or with fewer reports at a time."
        )


class StillCompiling(Overloaded):
    def __init__(self, left_s: float | None = None) -> None:
        left = "some minutes at most" if left_s is None else f"about {math.ceil(left_s)} s more"
        super().__init__(
            f"The cost model is still being compiled, which takes {left}: nothing is predicted"
            " until then. It is kept, so that the next start takes seconds; try again later."
        )


class ClientGone(ServiceError):
    def __init__(self) -> None:
        super().__init__("The client closed the connection before its turn came.")


class Refused(ServiceError):
    def __init__(self, errors: Sequence[Invalid]) -> None:
        super().__init__(
            str(errors[0]) if len(errors) == 1 else f"{len(errors)} values break a rule."
        )
        self.errors = tuple(errors)


class NotATrainingJob(Refused):
    def __init__(self, field: str, program: str | None, rule: str) -> None:
        super().__init__([Invalid(field, program, rule)])
