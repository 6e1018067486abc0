from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.schemas.repetition import repetitions

parts = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@given(st.lists(st.integers(0, 2), max_size=40))
def test_what_repeats_makes_the_sequence_again(sequence: list[int]) -> None:
    found = repetitions(sequence)
    assert [item for times, part in found for item in part * times] == sequence


@given(parts, st.integers(2, 9))
def test_a_sequence_that_repeats_is_one_part(part: list[int], times: int) -> None:
    ((found_times, found_part),) = repetitions(part * times)
    assert found_part * found_times == part * times
    assert len(found_part) <= len(part)


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        ("aaab", [(3, "a"), (1, "b")]),
        ("aabaabaa", [(2, "aab"), (2, "a")]),
        ("abcd", [(1, "abcd")]),
        ("dsss", [(1, "d"), (3, "s")]),
        ("", []),
    ],
)
def test_parts_are_the_shortest(sequence: str, expected: list[tuple[int, str]]) -> None:
    found = repetitions([ord(letter) for letter in sequence])
    assert [(times, "".join(map(chr, part))) for times, part in found] == expected
