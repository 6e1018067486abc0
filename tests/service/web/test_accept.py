from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import NotAcceptable
from service.web.accept import preferred_media_type

OFFERED = ("application/json", "text/x-shellscript", "application/yaml")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, "application/json"),
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/*", "text/x-shellscript"),
        ("application/yaml", "application/yaml"),
        ("APPLICATION/YAML ; Q=0.4", "application/yaml"),
        ("application/json;q=0.5, application/yaml", "application/yaml"),
        ("application/json;q=0, */*;q=0.1", "text/x-shellscript"),
        ("application/*;q=0.3, application/json;q=0.2", "application/yaml"),
        ("application/json;version=1;q=0.1, text/x-shellscript;q=0.2", "text/x-shellscript"),
        ("text/html, application/xhtml+xml, */*;q=0.8", "application/json"),
        (",, application/yaml,", "application/yaml"),
    ],
)
def test_the_preferred_media_type_of_those_on_offer_is_taken(
    accept: str | None, expected: str
) -> None:
    assert preferred_media_type(accept, OFFERED) == expected


@pytest.mark.parametrize("accept", ["text/html", "*/*;q=0", "application/json;q=2", "json"])
def test_none_is_acceptable(accept: str) -> None:
    with pytest.raises(NotAcceptable, match="application/yaml"):
        preferred_media_type(accept, OFFERED)


@given(st.text())
def test_any_header_is_read(accept: str) -> None:
    try:
        found = preferred_media_type(accept, OFFERED)
    except NotAcceptable:
        found = None
    assert found in (None, *OFFERED)
