"""The cost of each part of one layout: a layer of each kind, the embedding and the head.

Communication is *exposed* where no compute hides it. The *ends* are the embedding and the head.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.columns import Array
from models.cost.facts import coefficient_records
from models.cost.least_links import NO_LINKS
from models.cost.predictions import LayoutRows
from models.cost.stages import buffers_for
from models.cost.step import empty_costs, predict_rows
from models.cost.time_terms import exposed_sends
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.profile import Coefficients


@dataclass(frozen=True)
class LayoutParts:
    """Holds the costs of the parts of one layout, in arrays of shape (parts,). Seconds are those of
    one micro-batch."""

    counts: Array
    """The number of layers of each kind in the whole model, and one of each end."""
    costs: Array
    """Records of models.cost.mesh.Part: kernel times, sizes, and traffic of which nothing is
    hidden."""
    forward_s: Array
    """Seconds of forward, with the traffic that it exposes."""
    both_s: Array
    """Seconds of forward and backward, with the traffic that they expose."""
    weights_s: Array
    """Seconds that weight gradients add to forward and backward, where the schedule moves them."""
    send_s: float
    """Exposed seconds of a send between stages, in each pass of a chunk."""
    gathers: int
    """The number of times that a step gathers each parameter."""
    reductions: int
    """The number of times that a step reduces each gradient over the data-parallel ranks."""

    @classmethod
    def of(cls, problem: Problem, layout: Layout, coefficients: Coefficients) -> LayoutParts:
        """Return the costs of the parts of a layout, by running its prediction and reading them
        from the buffers that the prediction fills."""
        asked = LayoutRows.of(problem, Layouts.of([layout]))
        question = asked.question
        rows = asked.records
        record, buffers = coefficient_records(coefficients), buffers_for(question, asked.tables)
        predict_rows(
            question=question,
            tables=asked.tables,
            rows=rows,
            coefficients=record,
            least=NO_LINKS,  # The layout has a placement, so no bounds over placements are read.
            buffers=buffers,
            costs=empty_costs(1),
        )
        workspace = buffers.workspace
        regime = workspace.regime[0]
        m = int(workspace.mesh[0]["micro_batches"])
        # The sends of a micro-batch may hide beside the others' passes on a mean stage.
        beside = (m - 1) * float(workspace.counts @ workspace.exposed["free"]) / layout.pp
        sends = exposed_sends(
            question.facts[0], record[0], rows[0], m, float(workspace.mesh[0]["send"]), beside
        )
        if regime["gathers"]:
            gathers = m * (2 if regime["gathers_again"] else 1)
        else:
            # ZeRO 1 to 3 gather parameters once a step, after the optimizer has changed them, and
            # ZeRO 0 never.
            gathers = min(layout.zero_stage, 1)
        return cls(
            counts=workspace.counts,
            costs=workspace.parts,
            forward_s=workspace.part_forward,
            both_s=workspace.part_both,
            weights_s=workspace.weights,
            # A chunk sends twice for each micro-batch: forward, and gradients back.
            send_s=sends / (2 * m * layout.virtual_stages),
            gathers=gathers,
            reductions=1 if regime["once"] else m,
        )
