from __future__ import annotations

import pytest

from models.prediction.term_words import rounded


@pytest.mark.parametrize(
    ("number", "words"),
    [(2.0549, "2.05"), (54.18, "54.2"), (999.4, "999"), (999.6, "1,000"), (2548.2, "2,548")],
)
def test_a_number_in_a_sentence_has_no_exponent(number: float, words: str) -> None:
    assert rounded(number) == words
