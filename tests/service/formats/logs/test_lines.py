from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from service.formats.logs.lines import MAX_LINE_CHARACTERS, cut_lines

_PIECES = st.sampled_from(["a", "\n", "\r", "b" * (MAX_LINE_CHARACTERS - 1), "c" * 70_000])


@given(st.lists(_PIECES, max_size=8).map("".join))
def test_no_line_is_longer_than_is_read_and_short_ones_stay(text: str) -> None:
    cut, count = cut_lines(text)
    before = re.split(r"[\n\r]", text)
    after = re.split(r"[\n\r]", cut)
    assert after == [line[:MAX_LINE_CHARACTERS] for line in before]
    assert count == sum(len(line) > MAX_LINE_CHARACTERS for line in before)
