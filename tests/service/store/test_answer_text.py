from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta, timezone

from service.store.answer_text import AnswerText, Stamp

FIRST = Stamp("01a221c6-77d1-7422-a9b3-e0c673d3a52a", datetime(2026, 3, 2, 12, 0, 0, 5, tzinfo=UTC))
OWN = Stamp("01a221d3-cb46-76fa-9896-9d030edf8ad0", datetime(2026, 3, 3, tzinfo=UTC))
PLAIN = (
    f'{{"id":"{FIRST.id}","created_at":"2026-03-02T12:00:00.000005Z","name":"ä",'
    f'"launch":{{"comment":"/v1/recommendations/{FIRST.id}","created_at":"never"}}}}'
).encode()


def test_each_form_is_made_from_the_other() -> None:
    compressed = AnswerText(plain=PLAIN).compressed
    assert gzip.decompress(compressed) == PLAIN
    assert AnswerText(compressed=compressed).plain == PLAIN
    assert AnswerText(compressed=compressed).document == json.loads(PLAIN)


def test_equal_texts_are_equal_bytes() -> None:
    assert AnswerText(plain=PLAIN).compressed == AnswerText(plain=PLAIN).compressed


def test_another_row_names_itself_everywhere_and_changes_nothing_else() -> None:
    renamed = AnswerText(plain=PLAIN).restamped(FIRST, OWN).document
    assert renamed == {
        "id": OWN.id,
        "created_at": "2026-03-03T00:00:00Z",
        "name": "ä",
        "launch": {"comment": f"/v1/recommendations/{OWN.id}", "created_at": "never"},
    }


def test_the_row_that_was_stored_first_has_the_text_as_it_is() -> None:
    text = AnswerText(plain=PLAIN)
    elsewhere = FIRST.created_at.astimezone(timezone(timedelta(hours=3)))
    assert text.restamped(FIRST, Stamp(FIRST.id, elsewhere)) is text
