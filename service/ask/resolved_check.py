"""A job to be checked, as its request describes it.

A *launch* is a script, command line or file that starts a training. A *setting* is what a framework
calls a knob of a layout. A *stop* is a setting with which the framework refuses to start. A
*reservation* is a setting that could change the answer and was not understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from models.spec.constraints import SAFE_FIT_PROBABILITY
from models.spec.layout import Layout
from models.spec.profile import Profile
from service.formats.launch.formats import LaunchFormat
from service.formats.launch.job import OwnName
from service.formats.launch.knob_settings import KNOB_SETTINGS
from service.formats.settings.reservation import Reservation
from service.formats.settings.stop import Stop
from service.resolve.launch_changes import LaunchChanges
from service.resolve.resolution import ResolvedQuestion
from service.schemas.launch_form import LaunchRead
from service.schemas.layout import LayoutFields
from service.schemas.question import PinnedQuestion


@dataclass(frozen=True, slots=True)
class ResolvedCheck:
    """A job to be checked, with all names resolved. The job is a layout or a launch."""

    question: PinnedQuestion
    resolved: ResolvedQuestion
    profile: Profile
    place: str
    """The field of the request that has the layout."""
    given_layout: LayoutFields
    completed_layout: LayoutFields
    """The given layout, with the defaults of the stack for what it leaves open."""
    format: LaunchFormat | None
    """The format in whose words changes are said; None where the stack has none."""
    read: LaunchRead | None
    """The facts that were read from a launch; None where the request has a layout."""
    stops: tuple[Stop, ...] = ()
    """Faults at which the framework stops, beyond the rules that its layout breaks."""
    reservations: tuple[Reservation, ...] = ()
    """Settings of a launch that were not understood: no verdict rests on them."""
    overruled: tuple[str, ...] = ()
    """Sentences about values of a launch in whose place those of the request were taken."""
    own_names: Mapping[str, OwnName] = field(default_factory=dict)
    """The names that the tool of a launch has for settings."""
    changes: LaunchChanges | None = None
    """Finds the settings of a launch that make a change; None where the request has a layout."""
    min_fit_probability: float = SAFE_FIT_PROBABILITY

    @property
    def settings(self) -> Mapping[str, str]:
        """Returns the framework's setting for each knob of a layout, by the name of the knob."""
        return {} if self.format is None else KNOB_SETTINGS[self.format.name]

    def named(self, setting: str) -> str:
        """Returns the name that a setting has in the tool or the release that was read."""
        if setting in self.own_names:
            return self.own_names[setting].name
        if self.format is None or self.read is None:
            return setting
        return self.format.name_in(setting, self.read.version)

    @property
    def layout(self) -> Layout | None:
        """Returns the layout that is checked; None if the framework stops before it has one."""
        return None if self.shown_layout is None else self.shown_layout.build()

    @property
    def shown_layout(self) -> LayoutFields | None:
        """Returns the layout with all of its fields, for the answer; None if the framework stops
        before it has one."""
        return None if any(stop.hides_layout for stop in self.stops) else self.completed_layout
