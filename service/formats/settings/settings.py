"""The settings that one launch gives, asked for by name and sorted by the framework's table.

A *reservation* says that a setting is not taken into account though it could change the answer. A
*stop* is a setting at which the framework itself refuses to start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from models.errors import Invalid
from service.formats.settings.field import Field, shown
from service.formats.settings.field_table import FieldTable, Unknown
from service.formats.settings.reservation import GIVE_FIELDS, Reservation
from service.formats.settings.stop import Stop
from service.nearest_names import nearest_setting

_AUTO = "auto"
MOST_HINTS = 8  # unknown names for which a known one is looked up: an answer shows no more


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadSettings:
    """Settings that were given and not read, by what they mean for an answer."""

    reservations: tuple[Reservation, ...] = ()
    """Settings that are not described, unless they have their default."""
    warnings: tuple[str, ...] = ()
    """Names of which the framework takes no notice, with the nearest that it knows."""
    stops: tuple[Stop, ...] = ()
    """Names at which the parser of the framework stops, with the nearest that it knows."""
    no_account: tuple[str, ...] = ()
    """Settings that change neither time nor memory."""

    @classmethod
    def joined(cls, parts: Sequence[UnreadSettings]) -> UnreadSettings:
        """Returns the unread settings of several tables of one launch, joined."""
        return cls(
            reservations=tuple(entry for part in parts for entry in part.reservations),
            warnings=tuple(entry for part in parts for entry in part.warnings),
            stops=tuple(entry for part in parts for entry in part.stops),
            no_account=tuple(entry for part in parts for entry in part.no_account),
        )


NOTHING_UNREAD = UnreadSettings()


class Settings:
    """The settings of one launch, by the names of its framework.

    A value is checked against the table when it is asked for. A reader that finds a setting which
    it cannot take into account adds a reservation.
    """

    def __init__(self, table: FieldTable, given: Mapping[str, Any] | None = None) -> None:
        self.table = table
        self.given = dict(given or {})
        self.written: dict[str, str] = {}
        """The text of a setting as it was written, where that is not `name = value`."""
        self.is_other_release = False
        """The job runs another release than the table's, so an unknown name may be valid there."""
        self.is_earlier_program = False
        """The job starts a program that only earlier releases have. An unknown name may be valid
        there, unless it is spelt like a known one."""
        self.reservations: list[Reservation] = []
        self.warnings: list[str] = []
        self.stops: list[Stop] = []
        self._num_hints = 0
        """The number of names that `nearest` was asked about."""

    def __contains__(self, name: str) -> bool:
        """Tells whether a setting is given, or any setting inside the object of that name."""
        return name in self.given or any(
            given_name.startswith(f"{name}.") for given_name in self.given
        )

    @property
    def known(self) -> dict[str, Any]:
        """Returns the given settings whose names the release has. `unread` reports the others."""
        return {
            name: value for name, value in self.given.items() if self.table.field(name) is not None
        }

    def is_auto(self, name: str) -> bool:
        """Tells whether a setting is "auto", to be filled in by another program."""
        return self.given.get(name) == _AUTO

    def value(self, name: str) -> Any:
        """Returns the value of a setting by its type, or its default where it is not given. A
        value "auto", which another program fills in, counts as the default, with a reservation.
        Raises Invalid for a value that does not fit."""
        field = self.table.fields[name]
        if name not in self.given:
            return field.default
        # A few settings know "auto" as a value of their own, which no other program replaces.
        if self.is_auto(name) and _AUTO not in field.choices and field.default != _AUTO:
            cure = "write the value that the other program fills in"
            reason = "another program fills it in, and what it fills in is not in the text"
            self.add_reservation(name, reason, cure)
            return field.default
        return field.checked(self.given[name])

    def integer(self, name: str, least: int = 1) -> int | None:
        """Returns a whole number of at least `least`; None where there is no value. Raises
        Invalid for a smaller one."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, int) or value < least:
            raise self.below(name, least)
        return int(value)

    def below(self, name: str, least: int) -> Invalid:
        """Returns the error for a number below `least`."""
        value = self.value(name)
        return self.table.fields[name].invalid(value, f"must be a whole number from {least} up")

    def boolean(self, name: str) -> bool:
        """Returns true or false; false where there is no value."""
        return bool(self.value(name))

    def text(self, name: str) -> str | None:
        """Returns the value as a word in lower case; None where there is no value. YAML reads
        `no` as false, which becomes "no" again."""
        value = self.value(name)
        if value is None:
            return None
        return "no" if value is False else str(value).lower()

    def put(self, name: str, value: Any) -> None:
        """Sets a value in place of the given one, such as the number that "auto" stands for."""
        self.given[name] = value

    def change(self, changes: Mapping[str, Any]) -> None:
        """Replaces the values of some settings, as for a change of the job that a request asks to
        try; None removes one. Texts are converted to the type of the setting."""
        for name, value in changes.items():
            field = self.table.fields.get(name)
            self.given.pop(name, None)
            if isinstance(value, str) and field is not None:
                self.given[name] = field.checked(value)
            elif value is not None:
                self.given[name] = value

    def update(self, other: Settings) -> None:
        """Adds the settings and reservations of another text of the same launch. Its values
        override those given so far."""
        self.given |= other.given
        self.written |= other.written
        self.reservations += other.reservations

    def add_reservation(
        self, name: str, reason: str, cure: str = GIVE_FIELDS, *, answered_by: str = ""
    ) -> None:
        """Adds a reservation: the setting `name` is not taken into account, for this reason.
        `cure` says what to write instead, and `answered_by` which field of the request settles
        it."""
        self.add_text_reservation(self.shown(name), reason, cure, answered_by=answered_by)

    def add_text_reservation(
        self,
        written: str,
        reason: str,
        cure: str = GIVE_FIELDS,
        *,
        answered_by: str = "",
        is_open: bool = False,
    ) -> None:
        """Adds a reservation: this part of the launch, as `written`, is not taken into account.
        `cure` says what to write instead, and `answered_by` which field of the request settles it.
        With `is_open` it stands for any number of unknown settings."""
        self.note(
            Reservation(
                setting=written, reason=reason, cure=cure, answered_by=answered_by, is_open=is_open
            )
        )

    def add_file_value_reservation(self, name: str, value: Any) -> None:
        """Adds a reservation for a setting that the launch takes from a file which the framework
        ships. None is added where the cost model describes it, or the value changes nothing."""
        field = self.table.field(name)
        if field and field.use == "not_described" and not changes_nothing(field, value):
            self.note(_reservation_of_field(field, shown(name, value)))

    def shown(self, name: str) -> str:
        """Returns a setting as it was written, or with its default where it is not given: "bf16
        = true"."""
        if name in self.written:
            return self.written[name]
        field = self.table.fields.get(name)
        return shown(name, self.given.get(name, None if field is None else field.default))

    def nearest(self, name: str) -> str | None:
        """Returns the known setting that an unknown name probably means; None where none is
        near. Only the first MOST_HINTS calls look it up, at half a millisecond each; later ones
        return None, since an answer shows no more hints."""
        self._num_hints += 1
        return nearest_setting(name, self.table.fields) if self._num_hints <= MOST_HINTS else None

    def note(self, reservation: Reservation) -> None:
        """Records that something is not taken into account. Equal reservations appear once in an
        answer."""
        self.reservations.append(reservation)

    def unread(self) -> UnreadSettings:
        """Returns the given settings that no reader uses, sorted by what the framework does with
        them, together with the reservations that readers recorded."""
        reservations = [*self.reservations]
        warnings = [*self.warnings]
        stops = [*self.stops]
        no_account: list[str] = []
        for name, value in self.given.items():
            field = self.table.field(name)
            if field is None:
                near = self.nearest(name)
                reaction = self._reaction_to_unknown(name, near)
                if reaction == "stops":
                    stops.append(self.stop_at_name(name, near))
                elif reaction == "open":  # another release or the caller's own program may read it
                    reservations.append(self._reservation_for_own_program(name, near))
                else:
                    warnings.append(self._warning_of_ignored(name, near))
            elif field.use == "no_account" or (
                field.use == "not_described" and changes_nothing(field, value)
            ):
                no_account.append(self.shown(name))
            elif field.use == "not_described":
                reservations.append(_reservation_of_field(field, self.shown(name)))
        return UnreadSettings(
            reservations=tuple(dict.fromkeys(reservations)),
            warnings=tuple(warnings),
            stops=tuple(stops),
            no_account=tuple(no_account),
        )

    def _reaction_to_unknown(self, name: str, near: str | None) -> Unknown:
        """Returns what the framework does with a name that the table lacks: it refuses to start
        ("stops"), it ignores the name ("passes"), or something else may read it ("open"): another
        release, or a program of the caller's own. `near` is a known name that resembles it."""
        reaction = "open" if self.is_other_release else self.table.reaction_to_unknown(name)
        if self.is_earlier_program and reaction == "stops":
            reaction = "misspelt"
        if reaction == "misspelt":  # forks of the framework add names that resemble no known one
            return "open" if near is None else "stops"
        return reaction

    def assumed_defaults(self) -> tuple[str, ...]:
        """Returns a sentence for each setting that is not given, and whose default is not what
        predictions assume."""
        return tuple(
            f"{shown(name, field.as_predicted[0])} is predicted, where {self.table.framework} has"
            f" {field.default} unless it is set"
            for name, field in self.table.fields.items()
            if field.default_matters and name not in self.given
        )

    def stop_at_name(self, name: str, near: str | None) -> Stop:
        """Returns the stop for a given name that the framework does not have; `near` is the name
        that is probably meant."""
        meant = f"{self.table.prefix}{near}" if near else ""
        hint = f"did you mean {meant}?" if near else "leave it out"
        return Stop(
            setting=f"{self.table.prefix}{name}",
            value=self.given[name],
            rule=f"is no setting of {self._framework_and_release}, which stops at it: {hint}",
            source=self.table.facts["parser"],  # the file of the framework that reads names
            cure=meant,  # as it is typed
            meant=near or "",  # as the table has it
            is_of_name=True,
        )

    def _reservation_for_own_program(self, name: str, near: str | None) -> Reservation:
        """Returns the reservation for a name that the framework does not have, but that the
        caller's own program may read."""
        reason = f"{self._framework_and_release} has no such setting"
        cure = f"did you mean {near}?" if near else "leave it out if it changes nothing"
        return Reservation(setting=self.shown(name), reason=reason, cure=cure)

    def _warning_of_ignored(self, name: str, near: str | None) -> str:
        """Returns the warning about a name that the framework ignores."""
        hint = f"did you mean {near}?" if near else "leave it out"
        framework = self.table.framework
        return f"{self.shown(name)} is no setting of {framework}, which ignores it: {hint}"

    @property
    def _framework_and_release(self) -> str:
        return f"{self.table.framework} {self.table.release}"


def _reservation_of_field(field: Field, written: str) -> Reservation:
    """Returns the reservation for a field that is not described, in the words of its table."""
    return Reservation(
        setting=written, reason=field.reason, cure=field.cure, answered_by=field.answered_by
    )


def changes_nothing(field: Field, value: Any) -> bool:
    """Returns True for the default, unless predictions assume another value, for a value that the
    table lists as equal to what they assume (`as_predicted`), or an empty value. A text counts as
    the value that it stands for, such as False for "false"."""
    if isinstance(value, str):
        with suppress(Invalid):  # a text of another type is not the default
            value = field.parse(value)
    if value == field.default and not field.default_matters:
        return True
    return value in (*field.as_predicted, {}, [], None, "")
