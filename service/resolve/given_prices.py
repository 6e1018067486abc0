"""The prices of chips that a request gives."""

from __future__ import annotations

from typing import NamedTuple


class GivenPrices(NamedTuple):
    """US dollars for an hour of a chip."""

    by_chip: tuple[tuple[str, float], ...] = ()
    """Pairs of a chip's name in the catalogue and its price."""
    of_others: float | None = None
    """The price of every chip that `by_chip` does not name; None where the catalogue's counts."""

    def price_of(self, chip: str) -> float | None:
        return dict(self.by_chip).get(chip, self.of_others)


NO_PRICES = GivenPrices()
