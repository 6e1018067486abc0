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
    """The way to say it so that it is understood: a field of the request, or the file to send."""
    answered_by: str = ""
    """The member of the request, such as `model` or `workload.lora`, with which it is settled."""
    is_open: bool = False
    """It stands for any number of settings, such as those of a file that was not sent. Whatever
    else was read may then be otherwise."""

    @property
    def text(self) -> str:
        """Returns the setting, with the reason in brackets where it is not the usual one."""
        return self.setting if self.reason == COULD_MATTER else f"{self.setting} ({self.reason})"

    @classmethod
    def of_file(cls, setting: str, file: str) -> Reservation:
        """Returns the reservation for a setting that names a file which was not sent."""
        return cls(
            setting=setting,
            reason=f"the text of {file} was not sent, and the settings in it are not known",
            cure=f"send it as launch.files[{file!r}]",
            is_open=True,
        )

    @classmethod
    def of_branch(cls, assignment: str) -> Reservation:
        """Returns the reservation for an assignment in a branch of a script that may or may not
        have run."""
        return cls(
            setting=assignment,
            reason="set in a branch",
            cure="decide the branch: send the script without it, or the variable in"
            " launch.environment",
        )

    @classmethod
    def of_edit(cls, file: str, command: str) -> Reservation:
        """Returns the reservation for a command that changes a file in place."""
        return cls(
            setting=command,
            reason=f"it changes {file}, which is read as it is before",
            cure=f"send {file} as it is afterwards, and the script without this command",
            is_open=True,
        )
