"""The contents of a database before anyone asks: the shipped profile and the published runs."""

from __future__ import annotations

from service.ask import evidence
from service.resolve import profiles
from service.store import Store


def seed(store: Store) -> None:
    profiles.seed(store)
    evidence.seed(store)
