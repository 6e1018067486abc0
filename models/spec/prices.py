"""Prices that clouds publish for an hour of a chip, each with its date and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from models.package_data import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPrice:
    """A provider's own published price on demand, before taxes. `date` is the day on which the
    source copied the provider's page; None where it does not say."""

    usd_per_chip_hour: float
    offer: str
    terms: str
    date: str | None
    source: str

    @property
    def words(self) -> str:
        """The offer with its date, in words."""
        return f"{self.offer}, {self.terms}, {self.date or 'of no known date'}"


def list_prices(chip_id: str) -> tuple[ListPrice, ...]:
    """Return the prices of a shipped chip. The first is that of the catalogue: the offer of the
    largest provider that publishes one, in its main region."""
    return _prices_by_chip().get(chip_id, ())


@cache
def _prices_by_chip() -> Mapping[str, tuple[ListPrice, ...]]:
    """Return the shipped prices (data/prices.json), by the id of the chip."""
    prices: dict[str, tuple[ListPrice, ...]] = {}
    for entry in read_json("models", "data/prices.json"):
        chip_id = entry.pop("chip")
        prices[chip_id] = (*prices.get(chip_id, ()), ListPrice(**entry))
    return prices
