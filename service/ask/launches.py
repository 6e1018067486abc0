"""Says how to launch the layouts of earlier answers. A *format* is the language of a framework's
launch configuration, such as Megatron's arguments."""

from __future__ import annotations

from service.formats.launch.job import LaunchConfiguration
from service.resolve.answered_layout import (
    StoredLayout,
    layout_of_prediction,
    layout_of_recommendation,
    legal_run,
)
from service.resolve.launch_jobs import (
    AnswerLaunched,
    launch_configuration,
    launch_format,
    ranks_by_node,
)
from service.resolve.resolution import Resolver
from service.schemas.layout_query import LayoutQuery, RecommendedLayoutQuery
from service.store import Rows, UseCase


class Launches(UseCase):
    def of_prediction(self, id_: str, format_: str, query: LayoutQuery) -> LaunchConfiguration:
        """Returns the launch configuration of a layout of a stored prediction, in this format."""
        with self._store.reading() as rows:
            stored_layout = layout_of_prediction(rows, id_, query.rank)
            answer = AnswerLaunched(kind="prediction", id=id_, rank=stored_layout.rank)
            return _configuration(rows, stored_layout, format_, answer)

    def of_recommendation(
        self, id_: str, format_: str, query: RecommendedLayoutQuery
    ) -> LaunchConfiguration:
        """Returns the launch configuration, in this format, of the layout that `query` picks from a
        stored recommendation. It names the nodes if the recommendation is for listed ones (an
        allocation)."""
        with self._store.reading() as rows:
            stored_layout = layout_of_recommendation(rows, id_, query.rank, query.choice)
            allocation = rows.answers.recommendation(id_).document.get("allocation")
            answer = AnswerLaunched(
                kind="recommendation",
                id=id_,
                choice=query.choice,
                rank=query.rank,
                ranks_by_node=ranks_by_node(allocation["hosts"]) if allocation else {},
            )
            return _configuration(rows, stored_layout, format_, answer)


def _configuration(
    rows: Rows, stored_layout: StoredLayout, format_: str, answer: AnswerLaunched
) -> LaunchConfiguration:
    """Returns the launch configuration of a stored layout, with names resolved in today's
    catalogue. Raises an error where the layout is no longer legal."""
    problem, layout = legal_run(Resolver(rows), stored_layout.question, stored_layout.layout)
    return launch_configuration(
        launch_format(format_, problem), problem, layout, stored_layout.question, answer
    )
