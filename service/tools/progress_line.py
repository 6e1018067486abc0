"""The progress of a compilation of the cost model, written to a terminal or to a pipe."""

from __future__ import annotations

from typing import TextIO

from service.runtime.compilation import Progress

_LINE_EVERY_S = 5.0
"""Seconds between lines in a pipe, such as the log of a CI job. It is often enough to tell that
something goes on."""


class ProgressLine:
    """A line that is written anew on a terminal; elsewhere a line now and then."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._next_s = 0.0  # elapsed seconds at which the next line is due in a pipe

    def show(self, progress: Progress) -> None:
        """Writes the progress: over the last line on a terminal, and elsewhere as a new line now
        and then."""
        if self._out.isatty():
            self._out.write(f"\r\x1b[K{_words(progress)}")
        elif progress.elapsed_s >= self._next_s:
            self._next_s = progress.elapsed_s + _LINE_EVERY_S
            self._out.write(f"{_words(progress)}\n")
        self._out.flush()

    def end(self, sentence: str) -> None:
        """Writes a last line, in place of the progress on a terminal."""
        start = "\r\x1b[K" if self._out.isatty() else ""
        self._out.write(f"{start}{sentence}\n")
        self._out.flush()


def _words(progress: Progress) -> str:
    """Returns the progress in words, with the seconds left once they can be told."""
    left_s = progress.left_s
    left = "" if left_s is None else f", about {left_s:.0f} s left"
    return f"compiling the cost model, once: {progress.share:.0%}{left}"
