"""Checks of what a launch format, one framework's settings, can express of the knobs, the fields of
a layout. A value for which it has no setting is *inexpressible*."""

from __future__ import annotations

from models.spec.layout import AXES, TORUS_AXES, Layout
from service.formats.launch.facts import facts
from service.formats.launch.job import Inexpressible


def require_values(layout: Layout, format_: str) -> None:
    """Raises Inexpressible where a field of the layout has a value that the format cannot
    express."""
    for knob, allowed in facts("layout_values")[format_].items():
        value = getattr(layout, knob)
        if value not in allowed["values"]:
            raise Inexpressible(f"layout.{knob}", value, allowed["cure"])


def require_default_order(layout: Layout) -> None:
    """Raises Inexpressible unless ranks are placed in the order of AXES, innermost first, for
    frameworks that have no other. Axes of degree 1 may stand anywhere. A placement on a torus
    other than the default is inexpressible too."""
    active = [axis for axis in layout.placement if getattr(layout, axis) > 1]
    if active != [axis for axis in AXES if getattr(layout, axis) > 1]:
        cure = f"its ranks are always in the order {', '.join(AXES)}, innermost first"
        raise Inexpressible("layout.placement", list(layout.placement), cure)
    if layout.torus_axes != TORUS_AXES[0] or layout.torus_block > 1:
        knob = "torus_axes" if layout.torus_axes != TORUS_AXES[0] else "torus_block"
        cure = f"it has no setting for the order of devices; leave {knob} out"
        raise Inexpressible(f"layout.{knob}", getattr(layout, knob), cure)
