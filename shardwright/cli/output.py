"""The output of the command line: short lines for people, JSON for programs."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what is printed in a pipe needs none of it, and it takes a while to import
    from rich.console import Console


_BAR = 16  # columns of a bar, which leaves room for its numbers in 80
_INDENT = " " * 5  # as wide as the column of marks
_NARROWEST = 20  # of a text: a terminal may be narrower than its indent
_FOUR_DIGITS = 999.5  # rounds to a thousand, which three digits would show with an exponent
_ALMOST_CERTAIN = 0.99  # above, a rounded percentage would read as a promise
_MARKS = {
    "good": ("OK", "green"),
    "warning": ("!", "yellow"),
    "bad": ("X", "red"),
    "open": ("?", "cyan"),
    "plain": ("-", "dim"),
}
"""Words that say what a colour says, where there are no colours."""


class Output:
    """Prints for people, or JSON for programs. Where `as_json` is None, it is JSON if output goes
    to a pipe."""

    def __init__(self, *, as_json: bool | None) -> None:
        self.as_json = not sys.stdout.isatty() if as_json is None else as_json

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        return Console(highlight=False)

    @cached_property
    def errors(self) -> Console:
        from rich.console import Console

        return Console(stderr=True, highlight=False)

    def status(self, doing: str) -> AbstractContextManager[Any]:
        """Returns a context that shows on a terminal what is done while its block runs."""
        return self.errors.status(doing) if sys.stderr.isatty() else nullcontext()

    def answer(self, answer: Any, show: Callable[[Output, Any], None]) -> None:
        """Prints an answer of the service: as JSON, or for people as `show` does."""
        if self.as_json:
            self._write(answer)
        else:
            show(self, answer)

    def headline(self, kind: str, title: str, sentence: str) -> None:
        """Prints the result of the command in a line of its own. `kind` chooses its mark and
        colour."""
        from rich.text import Text

        mark, colour = _MARKS[kind]
        line = Text.assemble((f"{mark} {title}", f"bold {colour}"), "  ", sentence)
        self.console.print(line, soft_wrap=False)

    def point(self, kind: str, text: str) -> None:
        """Prints one thing to know, behind a mark. `kind` chooses the mark and its colour."""
        from rich.text import Text

        mark, colour = _MARKS[kind]
        first, *others = self._wrapped(text) or [""]
        self.console.print(Text.assemble((f"  {mark:<3}", colour), first))
        for line in others:
            self.console.print(Text(f"{_INDENT}{line}"))

    def more(self, text: str) -> None:
        """Prints a detail of the point above, indented."""
        from rich.text import Text

        for line in self._wrapped(text):
            self.console.print(Text(f"{_INDENT}{line}", style="dim"))

    def _wrapped(self, text: str) -> list[str]:
        """Returns the lines of a text, wrapped to the width that is left behind the marks."""
        width = max(self.console.width - len(_INDENT), _NARROWEST)
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def bar(self, name: str, share: float, text: str) -> None:
        """Prints a share as a bar, which is red above 1, with a text behind it."""
        from rich.text import Text

        filled = round(min(max(share, 0.0), 1.0) * _BAR)
        colour = "red" if share > 1 else "green"
        cells = Text.assemble(("█" * filled, colour), ("░" * (_BAR - filled), "dim"))
        self.console.print(Text.assemble(f"  {name:<7} ", cells, f"  {text}"))

    def predicted_layout(self, title: str, prediction: Mapping[str, Any]) -> None:
        """Prints whether a layout fits and how long its step takes, then the memory that it
        needs."""
        step = step_interval(prediction)
        if prediction["fits"]:
            self.headline("good", title, f"a step takes {step}")
        else:
            self.headline("bad", "WILL NOT FIT", f"{title}: a step would take {step}")
        self.memory_bar(prediction, prediction["fit_probability"])

    def memory_bar(self, figures: Mapping[str, Any], fit_probability: float) -> None:
        """Prints the memory that a layout needs, as a share of what is usable on its chips."""
        low, high = figures["needed_low_gib"], figures["needed_high_gib"]
        needed = interval(figures["needed_gib"], low, high, "GiB")
        usable, chance = figures["usable_gib"], probability(fit_probability)
        text = f"{needed} of {usable:.1f}: fits with {chance}"
        self.bar("memory", figures["needed_gib"] / usable, text)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Prints rows of texts below the names of their columns."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in columns:
            table.add_column(name, overflow="fold")  # a name that is cut off says little
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    def failure(
        self,
        sentence: str,
        details: Sequence[str] = (),
        *,
        document: Mapping[str, Any] | None = None,
    ) -> None:
        """Prints to standard error what went wrong. Where output is JSON, prints the problem to
        standard output too: the `document` of the service, or one that has the sentence."""
        from rich.text import Text

        self.errors.print(Text.assemble(("error: ", "bold red"), sentence))
        for detail in details:
            self.errors.print(Text(f"  {detail}"))
        if self.as_json:
            self._write(document or {"title": "There is no answer", "detail": sentence})

    def _write(self, document: Any) -> None:
        sys.stdout.write(f"{json.dumps(document, indent=2, ensure_ascii=False)}\n")


def interval(middle: float, low: float, high: float, unit: str) -> str:
    """Returns a number with its 80% interval, such as "2.05 s (1.79 to 2.35)"."""
    return f"{rounded(middle)} {unit} ({rounded(low)} to {rounded(high)})"


def step_interval(prediction: Mapping[str, Any]) -> str:
    """Returns the step time of a prediction with its 80% interval, such as "2.05 s (1.79 to
    2.35)"."""
    low, high = prediction["step_time_low_s"], prediction["step_time_high_s"]
    return interval(prediction["step_time_s"], low, high, "s")


def probability(share: float) -> str:
    """Returns a probability in percent. Near 0 and 1 it is given as a bound, since no prediction is
    certain."""
    if share > _ALMOST_CERTAIN:
        return f">{_ALMOST_CERTAIN:.0%}"
    if share < 1 - _ALMOST_CERTAIN:
        return f"<{1 - _ALMOST_CERTAIN:.0%}"
    return f"{share:.0%}"


def rounded(number: float) -> str:
    """Returns a number to three digits, without an exponent."""
    return f"{number:.3g}" if abs(number) < _FOUR_DIGITS else f"{number:,.0f}"


def layout_words(layout: Mapping[str, Any]) -> str:
    """Returns the degrees of a layout in a line, such as "dp_shard=64 tp=2 micro_batch=1
    zero_stage=3"."""
    degrees = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
    parts = [f"{name}={layout[name]}" for name in degrees if layout.get(name, 1) not in (1, None)]
    parts += [
        f"{name}={layout[name]}" for name in ("micro_batch", "zero_stage") if layout.get(name)
    ]
    if layout.get("recompute", "none") != "none":
        parts.append(f"recompute={layout['recompute']}")
    return " ".join(parts)
