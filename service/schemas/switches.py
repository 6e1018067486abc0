"""The switches of the software that an answer rests on, as they are on the wire."""

from __future__ import annotations

from service.schemas.wire import Document


class OtherSetting(Document):
    """The cost of the other value of a switch."""

    value: str
    """The framework's default, where the switch is not at it; else another value."""
    step_time_s: float
    """Seconds of a step with it, minus `step_time_s` as answered; negative where it is faster."""
    needed_gib: float
    """GiB that a device must have with it, minus `needed_gib` as answered."""
    how: str
    """The stack in a request that has it so."""


class SwitchAnswer(Document):
    """A choice of the software, beside the layout, that moves step time or memory by more than
    2%."""

    field: str
    """The field of a request that sets it."""
    name: str
    """The flag or key that the framework has for it."""
    value: str
    """The value that the answer takes, in the framework's words; "not set" where it is off without
    its flag."""
    is_default: bool
    """True where the framework does so when it is told nothing."""
    default: str
    """The framework's own value when it is told nothing, in the release that is predicted."""
    since: str | None
    """The release from which the value is the default, or else what tuned recipes set; null where
    it has always been, or the request sets it."""
    otherwise: OtherSetting
