from __future__ import annotations

import pytest

from service.pages import numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (17.0808, "17.1"), (0.00773, "0.00773"), (1.7956, "1.80"), (64.0, "64.0"),
     (2048, "2,048"), (999.9, "1,000"),
     (3683349.8, "3,683,350"), (0.0000123, "0.0000123"), (-64.8, "-64.8")],
)  # fmt: skip
def test_three_digits_count(value: float, text: str) -> None:
    assert numbers.significant(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(2.05, "2.05 s"), (0.144, "144 ms"), (3.2e-5, "32.0 µs"), (0, "0 s")]
)
def test_times_have_the_unit_that_keeps_them_short(value: float, text: str) -> None:
    assert numbers.seconds(value).replace("\u202f", " ") == text


def test_a_probability_is_never_certain() -> None:
    assert numbers.probability(0.99999) == "more than 99%"
    assert numbers.probability(0.0001) == "less than 1%"
    assert numbers.probability(0.949) == "95%"


def test_a_difference_has_its_sign() -> None:
    assert numbers.signed("1 s", 1) == "+1 s"
    assert numbers.signed("-1 s", -1) == "−1 s"
