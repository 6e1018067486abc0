"""A reservation: something that a launch says, and that an answer does not take into account."""

from __future__ import annotations

from dataclasses import dataclass

COULD_MATTER = "it could change time, memory or what is legal, and is not described here"
GIVE_FIELDS = "give what it decides as fields of model, workload, stack or layout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A setting that could change the answer and was not understood. No verdict rests on it."""

    setting: str
    """The setting and its value as they were written, such as `fp8_format = hybrid`."""
    reason: str = COULD_MATTER
    """Why it matters."""
    cure: str = GIVE_FIELDS
    """How to say it so that it is understood: a field of the request, or the file to send."""

    @classmethod
    def of_file(cls, setting: str, file: str) -> Reservation:
        """A setting that names a file whose text was not sent."""
        return cls(
            setting=setting,
            reason=f"the text of {file} was not sent, and the settings in it are not known",
            cure=f"send it as launch.files[{file!r}]",
        )
