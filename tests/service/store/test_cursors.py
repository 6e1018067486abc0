"""Pages and their cursors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import Invalid
from service.store.cursors import cut_page, read_cursor


@given(st.lists(st.text(min_size=1), unique=True), st.integers(1, 5))
def test_following_the_cursors_visits_every_item_once(names: list[str], limit: int) -> None:
    items = sorted(names)
    seen = list[str]()
    cursor: str | None = None
    while True:
        after = read_cursor("things", cursor) or ""
        found = [item for item in items if item > after][: limit + 1]
        page, cursor = cut_page("things", found, limit, str)
        seen += page
        assert len(page) == min(limit, len(found))
        if cursor is None:
            break
    assert seen == items


@pytest.mark.parametrize("changed", ["", "AAAA", "no base64!"])
def test_a_cursor_of_nothing_is_refused(changed: str) -> None:
    with pytest.raises(Invalid, match="is no cursor of this list"):
        read_cursor("things", changed)


def test_a_cursor_of_another_list_is_refused() -> None:
    _, cursor = cut_page("others", ["a", "b"], 1, str)
    with pytest.raises(Invalid, match="is no cursor of this list"):
        read_cursor("things", cursor)
