"""The cluster that a launch runs on: that of the request, or the chips that the launch asks its
scheduler for, in the nodes of its script.

A value of the launch is *overruled* where the request has another, which counts. The *form* of
a cluster is what a request can send for it: a preset or its fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from models.errors import Invalid
from models.layouts.rules import RULES_BY_NAME
from models.spec.hardware import Chip
from service.formats.launch.job import LaunchReading
from service.formats.shell.command import Command
from service.resolve.launch_errors import LaunchErrors
from service.resolve.launch_nodes import chips_on_node, machine_of_nodes, slice_shape
from service.resolve.resolution import Resolver
from service.schemas.cluster import ClusterFields, ClusterPreset

_DEVICES_RULE = RULES_BY_NAME["mesh_fills_cluster"]
_WITHOUT_SLURM = ("google",)
"""Vendors whose chips no Slurm hands out: a feature v4 is an architecture of x86, and no TPU."""


@dataclass(frozen=True, slots=True)
class LaunchCluster:
    """Joins the cluster of a request with the chips, devices and nodes of its launch."""

    resolver: Resolver
    requested: ClusterPreset | ClusterFields | None
    reading: LaunchReading
    command: Command | None
    errors: LaunchErrors
    overruled: list[str]
    """Sentences about values of the launch in whose place those of the request are taken; the
    cluster adds its own."""

    def form(self) -> ClusterPreset | ClusterFields:
        """Returns the cluster that the job runs on, in the nodes of the script, with the memory
        that the launch may allocate. Raises Invalid or Refused where neither launch nor request
        names it, or where they contradict each other in devices."""
        return self._in_memory(self._in_nodes(self._sized_cluster()))

    def _sized_cluster(self) -> ClusterPreset | ClusterFields:
        """Returns the cluster of the request, or else the chips that the script asks for, with as
        many chips as the launch starts. Another number in the request wins over that of a launcher
        or scheduler, and `overruled` notes it. Over a number that settings of the framework make,
        an error is raised or added to the stops. Raises Invalid if neither names the chips."""
        form = self.requested or self._scheduled_chips()
        if form is None:
            raise Invalid("cluster", None, "is required: the launch does not name its chips")
        chip, _, size = self.resolver.cluster_parts(form)
        self._warn_of_other_chip(chip.value)
        launched_devices = self.reading.num_devices
        devices = (
            self._scheduled_devices(chip.value) if launched_devices is None else launched_devices
        )
        # The request leaves the size to the launch, if need be to the defaults of its script.
        if size.num_chips is None and size.torus_shape is None:
            if devices is None and self.command is not None:
                devices = _devices_of(self.command.num_ranks_by_default, chip.value)
            if devices is None:
                raise self.errors.missing("cluster.num_chips")
            return form.model_copy(update={"num_chips": devices // chip.value.devices_per_chip})
        requested_devices = self.resolver.cluster(form).cluster.num_devices
        # A launcher or the scheduler says another number than the request.
        if self.is_overruled(requested_devices) or (
            launched_devices is None and devices not in (None, requested_devices)
        ):
            self.overruled.append(
                f"the launch starts {devices} ranks, and the request has {requested_devices}"
                " devices: the request is taken"
            )
        # Settings of the framework, such as its parallel degrees, make another number.
        elif launched_devices not in (None, requested_devices):
            rule = (
                f"runs on {devices} devices where the request has {requested_devices}: leave"
                " num_chips out"
            )
            error = Invalid(f"{self.errors.field}.arguments", f"{devices} devices", rule)
            self.errors.stop_or_raise(
                error,
                self.reading.devices_setting,
                _DEVICES_RULE,
                f"makes {devices} devices with the settings beside it, and the job has"
                f" {requested_devices}",
                cure=f"values that make {requested_devices} devices",
            )
        return form

    def is_overruled(self, num_devices: int) -> bool:
        """Returns whether the request's number of devices takes the place of the launch's. It does
        where a launcher or scheduler says another; a number that settings of the framework make has
        to agree."""
        differs = self.reading.num_devices not in (None, num_devices)
        return differs and self.reading.devices_setting is None

    def _scheduled_devices(self, chip: Chip) -> int | None:
        """Returns the number of devices that the script asks its scheduler for; None where it does
        not say."""
        return None if self.command is None else _devices_of(self.command.num_ranks, chip)

    def _warn_of_other_chip(self, chip: Chip) -> None:
        """Adds to `overruled` that the script asks its scheduler for other GPUs than the request
        has. A short name such as h100 also stands for chips whose ids begin with it."""
        scheduled = None if self.requested is None else self._scheduled_chips()
        if scheduled is None or chip.id.startswith(scheduled.preset.lower()):
            return
        if self.resolver.cluster_parts(scheduled)[0].value.id != chip.id:
            self.overruled.append(
                f"the script asks for GPUs {scheduled.preset}, and the request has {chip.id}: the"
                " request is taken"
            )

    def _scheduled_chips(self) -> ClusterPreset | None:
        """Returns the chips that the script asks its scheduler for; None where it names none that
        is known. If it asks for no chip, the features of its nodes count, as in
        `--constraint=h100`, but only if they name a single chip."""
        if self.command is None:
            return None
        if self.command.chip is not None:
            return self._known_preset(self.command.chip)
        presets_by_chip = dict[str, ClusterPreset]()
        for feature in self.command.features:
            preset = self._known_preset(feature)
            chip = None if preset is None else self.resolver.cluster_parts(preset)[0].value
            # A TPU is no node of Slurm: the feature v4 is then the x86 architecture.
            if preset is not None and chip is not None and chip.vendor not in _WITHOUT_SLURM:
                presets_by_chip.setdefault(chip.id, preset)
        return next(iter(presets_by_chip.values())) if len(presets_by_chip) == 1 else None

    def _known_preset(self, name: str) -> ClusterPreset | None:
        """Returns the preset with this name; None where the catalogue has none."""
        try:
            form = ClusterPreset(preset=name)
            self.resolver.cluster_parts(form)  # raises Invalid for an unknown name
        except (Invalid, ValidationError):
            return None
        return form

    def _in_nodes(self, form: ClusterPreset | ClusterFields) -> ClusterPreset | ClusterFields:
        """Returns the cluster with scale-up domains of the size of the script's nodes, or with
        slices as it asks for, unless the request itself gives the size. Where the catalogue has a
        machine of as many such chips, the cluster is of these machines."""
        if form.chips_per_domain is not None or form.torus_shape is not None:
            return form
        cluster = self.resolver.cluster(form).cluster
        shape = slice_shape(self.command, cluster)
        if shape is not None:
            return form.model_copy(update={"torus_shape": list(shape)})
        machine = machine_of_nodes(self.command, cluster)
        if machine is not None and isinstance(form, ClusterPreset):
            return form.model_copy(update={"preset": machine})
        chips = chips_on_node(self.command, cluster)
        return form if chips is None else form.model_copy(update={"chips_per_domain": chips})

    def _in_memory(self, form: ClusterPreset | ClusterFields) -> ClusterPreset | ClusterFields:
        """Returns the cluster with the part of a chip's memory that the launch may allocate, unless
        the request itself gives the memory."""
        fraction = self.reading.memory_fraction
        if fraction is None or form.usable_memory_gib is not None:
            return form
        usable = self.resolver.cluster(form).cluster.chip.usable_memory_gib
        return form.model_copy(update={"usable_memory_gib": round(fraction * usable, 2)})

    def assumptions(self, form: ClusterPreset | ClusterFields) -> Iterator[str]:
        """Yields sentences on what the launch decided of the cluster `form` that the job runs on:
        its chips, its machine, the size of a slice or a domain, and the memory, each unless the
        request gave it."""
        requested = self.requested
        preset = getattr(requested, "preset", None)
        if requested is None and isinstance(form, ClusterPreset):
            yield f"cluster.preset is {form.preset}: the chips that the launch asks for"
        elif isinstance(form, ClusterPreset) and form.preset != preset:
            domain = self.resolver.cluster(form).cluster.fabric.domain
            yield (
                f"cluster.preset is {form.preset}: a node of the script has {domain} of {preset},"
                " and NVLink joins them in such machines"
            )
        if form.torus_shape and not (requested and requested.torus_shape):
            yield f"cluster.torus_shape is {form.torus_shape}: a slice that the script asks for"
        if form.chips_per_domain and not (requested and requested.chips_per_domain):
            domain = self.resolver.cluster(form).cluster.fabric.domain
            yield (
                f"cluster.chips_per_domain is {form.chips_per_domain}: what a node of the script"
                f" has, and scale-up links, which can join {domain} chips, end at the node"
            )
        if form.usable_memory_gib and not (requested and requested.usable_memory_gib):
            yield (
                f"cluster.usable_memory_gib is {form.usable_memory_gib:g}:"
                " the part of a chip's memory that the launch may allocate"
            )


def _devices_of(num_ranks: int | None, chip: Chip) -> int | None:
    """Returns the number of devices that a script's number of ranks makes; None where that is not
    known. Scripts count TPUs by chips, which may have several devices, and GPUs by devices."""
    if num_ranks is None or chip.vendor != "google":
        return num_ranks
    return num_ranks * chip.devices_per_chip
