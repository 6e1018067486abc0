"""Errors about a launch configuration and the request beside it, at the field that is to blame.

A *stop* is a setting at which the framework itself refuses to start. A *reservation* is a setting
that was not understood. A *part* is a member of the question, such as `model` or `workload`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from models.errors import Invalid
from models.layouts.rule import Rule
from models.layouts.rule_sources import rule_source
from models.spec import catalogue
from service.errors import Refused
from service.field_violations import MAX_VALUE_CHARACTERS, truncate, violation_of_pydantic
from service.formats.launch.job import LaunchReading
from service.formats.settings.stop import Stop

Form = TypeVar("Form", bound=BaseModel)
_MOST_HINTS = 3
_MOST_PADDING = 1024
"""Entries that pad a vocabulary to a multiple for each rank of tensor parallelism, at most."""


@dataclass(frozen=True, slots=True)
class LaunchErrors:
    """Makes the errors of one launch and its request, and remembers where the framework stops."""

    reading: LaunchReading
    field: str
    """The field of the request that has the launch."""
    parts_source: str
    """Words for where the parts come from that the launch does not say, such as "the request"."""
    stops: list[Stop] | None
    """Faults at which the framework stops, to which more are added; None where each of them is an
    error of the request."""

    def stop_or_raise(
        self,
        error: Invalid,
        setting: str | None,
        broken: Rule,
        rule: str,
        cure: str,
        *,
        hides_layout: bool = False,
    ) -> None:
        """Adds a stop to `stops`: the framework refuses `setting`, because it breaks the rule
        `broken` of layouts. Raises `error` instead if stops are not allowed, or if no setting is to
        blame. `hides_layout` says that no layout is known then."""
        if setting is None or self.stops is None:
            raise error
        self.stops.append(
            Stop(
                setting=setting,
                value=error.value,
                rule=rule,
                source=rule_source(broken, catalogue.stack(str(self.reading.stack["name"]))),
                cure=cure,
                hides_layout=hides_layout,
            )
        )

    def launch_error(self, name: str, value: object, rule: str) -> Invalid:
        """Returns the error for a value that the launch has, at the launch's field of the request,
        such as "launch.arguments". Where the setting that says it is known, it follows the
        value."""
        setting = self.reading.settings_of_fields.get(name)
        written = f" ({setting})" if setting else ""
        return Invalid(f"{self.field}.arguments", f"{name} = {value}{written}", rule)

    def require_same(
        self, part: str, launched: Mapping[str, object], requested: Mapping[str, object]
    ) -> None:
        """Raises Refused with every value of the launch that differs from the request's. Only names
        that both have are compared."""
        faults = [
            self._contradiction(f"{part}.{name}", value, requested[name])
            for name, value in launched.items()
            if value is not None
            and name in requested
            and not self._is_same(name, value, requested[name])
        ]
        if faults:
            raise Refused(faults)

    def _is_same(self, name: str, launched: Any, requested: Any) -> bool:
        """Returns whether two values are equal. Megatron pads a vocabulary to a multiple of 128, or
        up to 1,024, times tp, so a launch may have somewhat more entries than the request."""
        if name != "vocab_size" or not isinstance(requested, int):
            return bool(launched == requested)
        padding = _MOST_PADDING * max(self.reading.layout.get("tp", 1), 1)
        return bool(requested <= launched < requested + padding)

    def _contradiction(self, name: str, launched: object, requested: object) -> Invalid:
        """Returns the error for a value of the launch that contradicts the request. It says where
        the launch's value comes from, if nobody wrote it."""
        rule = f"contradicts {name} = {requested} of {self.parts_source}"
        # A framework may count the value otherwise than requests do: the note says how.
        if name in self.reading.counting_notes:
            rule += f" ({self.reading.counting_notes[name]})"
        default_origins = self.reading.default_origins
        origin = default_origins.get(name)
        # A batch that is computed from a number of micro-batches comes from where that does.
        if origin is None and self.is_batch_by_count(name):
            origin = default_origins.get("num_micro_batches")
        if origin is None:
            return self.launch_error(name, launched, f"{rule}: leave it to the launch")
        cure = f"write it in the launch, or leave it out of {self.parts_source}{self._hint()}"
        return self.launch_error(name, launched, f"{rule}, and nobody wrote it ({origin}): {cure}")

    def is_batch_by_count(self, name: str) -> bool:
        """Returns whether a field is the global batch, and the launch gives it only indirectly: by
        its number of micro-batches."""
        return name == "workload.global_batch" and "global_batch" not in self.reading.workload

    def missing(self, name: str) -> Invalid:
        """Returns the error for a field that neither the launch nor the request has, such as
        "workload.seq_len"."""
        if name in self.reading.unresolved_parts:
            return Invalid(name, None, f"is required: {self.reading.unresolved_parts[name]}")
        cure = "write it there, or give it beside the launch"
        return Invalid(name, None, f"is required: the launch does not say it; {cure}{self._hint()}")

    def _hint(self) -> str:
        """Returns words on parts of the launch that were not understood and may have meant a
        missing field: its misspelt settings, or else all. Empty where all was understood."""
        reading = self.reading
        unread = [reservation.text for reservation in reading.reservations]
        texts = [*unread, *(f"{stop.setting} {stop.rule}" for stop in reading.stops)]
        misspelt = [text for text in texts if "did you mean" in text]
        shown = (misspelt or unread)[:_MOST_HINTS]
        listed = "; ".join(truncate(text, MAX_VALUE_CHARACTERS) for text in shown)
        return f". Not understood in the launch: {listed}" if listed else ""

    def validated(
        self,
        part: str,
        form: type[Form],
        *,
        request_fields: Mapping[str, Any],
        launch_fields: Mapping[str, Any],
    ) -> Form:
        """Returns the fields of the launch and of the request in the schema `form`. Where both have
        a field, that of the request counts. Raises Refused for what is missing in both, and for
        what is wrong in either."""
        fields = _merged(launch_fields, request_fields)
        try:
            return form.model_validate(fields)
        except ValidationError as error:
            faults = [
                self._validation_error(part, form, request_fields, item) for item in error.errors()
            ]
            raise Refused(faults) from None

    def _validation_error(
        self, part: str, form: type[BaseModel], request_fields: Mapping[str, Any], item: Any
    ) -> Invalid:
        """Returns one of pydantic's errors, `item`, as an error at the field of the request, or at
        the launch if the value came from there. `part` was validated in the schema `form`."""
        violation = violation_of_pydantic(item, form, item["loc"], root=[part], in_body=True)
        # Pydantic has several types of errors for missing fields, such as "missing_argument".
        if item["type"].startswith("missing"):
            return self.missing(violation.field)
        if item["loc"] and item["loc"][0] in request_fields:
            return Invalid(violation.field, violation.value, violation.rule)
        return self.launch_error(violation.field, violation.value, violation.rule)


def _merged(launch_fields: Mapping[str, Any], request_fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the members of both, with nested objects merged likewise. Where both have a member,
    that of the request counts."""
    merged = {**launch_fields, **request_fields}
    for name, value in request_fields.items():
        if isinstance(value, Mapping) and isinstance(launch_fields.get(name), Mapping):
            merged[name] = _merged(launch_fields[name], value)
    return merged
