"""Numbers as pages show them: with three significant digits, and a unit."""

from __future__ import annotations

_THIN_SPACE = "\u202f"


def significant(value: float, digits: int = 3) -> str:
    """Returns a number rounded to so many significant digits. Numbers of more digits keep all
    digits before the decimal point."""
    if value == 0:
        return "0"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    text = f"{value:#.{digits}g}".rstrip(".")  # with zeros that count: 1.80
    if "e" not in text:
        return text
    # Python writes an exponent where rounding adds a digit, and below a ten-thousandth, where zeros
    # read better: 0.0000123 has four of them before its digits.
    return f"{value:,.0f}" if abs(value) >= 1 else f"{value:.{digits + 4}f}".rstrip("0")


def seconds(value: float) -> str:
    """Returns a duration in s, ms or µs, with three significant digits."""
    if 0 < abs(value) < 1e-3:
        return f"{significant(value * 1e6)}{_THIN_SPACE}µs"
    if 0 < abs(value) < 1:
        return f"{significant(value * 1e3)}{_THIN_SPACE}ms"
    return f"{significant(value)}{_THIN_SPACE}s"


def hours(value: float) -> str:
    return f"{significant(value)}{_THIN_SPACE}h"


def usd(value: float) -> str:
    return f"${significant(value)}"


def gib(value: float) -> str:
    """Returns memory to a tenth of a GiB: no prediction of it is more exact."""
    return f"{value:,.1f}{_THIN_SPACE}GiB"


def percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def error(share: float) -> str:
    """Returns a relative error in percent, to a tenth: calibrations change errors by less than a
    percent."""
    return f"{100 * share:.1f}%"


def ratio(value: float) -> str:
    return f"{value:.2f}"


def probability(value: float) -> str:
    """Returns a probability in percent. Above 99% and below 1% it is given as a bound, since 100%
    and 0% would claim certainty."""
    if value > 0.99:
        return "more than 99%"
    return "less than 1%" if value < 0.01 else percent(value)


def signed(text: str, value: float) -> str:
    """Returns a difference as text with its sign: a plus, or a minus that is no hyphen."""
    return f"+{text}" if value > 0 else text.replace("-", "−")


def count(value: float) -> str:
    return f"{value:,.0f}"
