"""Settings of a launch that were not understood though they could change the answer. While there
are any, no verdict is given on the job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from service.field_violations import truncate
from service.formats.settings.reservation import Reservation
from service.schemas.wire import Document

_MOST = 10  # people settle the first, and ask again
_MOST_CHARACTERS = 120  # of a setting
_MOST_WORDS = 200  # characters of a reason or a cure


class ReservationAnswer(Document):
    """A setting that could change the answer and was not understood, and how to say it."""

    setting: str
    """The setting as it was written."""
    reason: str
    """Why it matters."""
    cure: str
    """The field of the request that says it, or the file to send."""

    @classmethod
    def of(cls, reservation: Reservation) -> Self:
        """Returns the setting that was not understood, with long texts cut off."""
        return cls(
            setting=truncate(reservation.setting, _MOST_CHARACTERS),
            reason=truncate(reservation.reason, _MOST_WORDS),
            cure=truncate(reservation.cure, _MOST_WORDS),
        )

    @classmethod
    def first_of(cls, reservations: Iterable[Reservation]) -> list[Self]:
        """Returns the first settings that were not understood, at most `_MOST`. The answer's
        `launch_read.unread_count` counts them all."""
        return [cls.of(reservation) for reservation in [*reservations][:_MOST]]
