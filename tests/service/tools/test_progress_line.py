"""The line that shows how far a compilation is."""

from __future__ import annotations

import io

import pytest

from service.runtime.compilation import Progress
from service.tools.progress_line import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_written_anew() -> None:
    out = Terminal()
    line = ProgressLine(out)
    for second in range(1, 4):
        line.show(Progress(share=second / 4, elapsed_s=second))
    line.end("done")
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().split("\r\x1b[K")[-2:] == [
        "compiling the cost model, once: 75%, about 1 s left",
        "done\n",
    ]


def test_a_pipe_gets_a_line_every_few_seconds() -> None:
    out = io.StringIO()
    line = ProgressLine(out)
    for second in range(60):
        line.show(Progress(share=second / 60, elapsed_s=second))
    lines = out.getvalue().splitlines()
    assert len(lines) == 12
    assert lines[0] == "compiling the cost model, once: 0%"
    assert lines[-1].endswith("about 5 s left")


@pytest.mark.parametrize(("share", "left_s"), [(0.0, None), (0.04, None), (0.5, 20.0), (1.0, 0.0)])
def test_the_time_left_follows_from_what_is_done(share: float, left_s: float | None) -> None:
    assert Progress(share=share, elapsed_s=20.0).left_s == left_s
