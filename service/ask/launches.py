"""Says how to launch the layouts of earlier answers."""

from __future__ import annotations

from models.layouts.rules import require_legal
from service.formats.launch.job import LaunchConfiguration
from service.resolve.answered_layout import (
    StoredLayout,
    layout_of_prediction,
    layout_of_recommendation,
)
from service.resolve.launch_jobs import Kind, launch_configuration, launch_format
from service.resolve.resolution import Resolver
from service.schemas.layout_query import LayoutQuery, RecommendedLayoutQuery
from service.store import Rows, Store


class Launches:
    def __init__(self, store: Store) -> None:
        self._store = store

    def of_prediction(self, id_: str, format_: str, query: LayoutQuery) -> LaunchConfiguration:
        with self._store.reading() as rows:
            answered = layout_of_prediction(rows, id_, query.rank)
            return _configuration(rows, answered, format_, "prediction", id_)

    def of_recommendation(
        self, id_: str, format_: str, query: RecommendedLayoutQuery
    ) -> LaunchConfiguration:
        with self._store.reading() as rows:
            answered = layout_of_recommendation(rows, id_, query.rank, query.choice)
            return _configuration(rows, answered, format_, "recommendation", id_)


def _configuration(
    rows: Rows, answered: StoredLayout, format_: str, kind: Kind, id_: str
) -> LaunchConfiguration:
    problem = Resolver(rows).resolve(answered.question).problem
    layout = answered.layout.build()
    require_legal(problem, layout)  # an answer may be older than a rule
    return launch_configuration(launch_format(format_, problem), problem, layout, kind, id_)
