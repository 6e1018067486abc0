"""Where a value is, as errors say it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from service.json_pointers import field_of, name_of, pointer_of


@pytest.mark.parametrize(
    ("location", "field", "name", "pointer"),
    [
        (("stack",), "stack", "stack", "/stack"),
        (("model", "@shape", "hiden"), "model.hiden", "hiden", "/model/hiden"),
        (("layouts", 3, "@fields", "tp"), "layouts[3].tp", "tp", "/layouts/3/tp"),
        (("layouts", 3), "layouts[3]", "[3]", "/layouts/3"),
        ((), "", "", ""),
    ],
)
def test_a_place_is_told_in_full_and_its_name_alone(
    location: Sequence[str | int], field: str, name: str, pointer: str
) -> None:
    assert (field_of(location), name_of(location), pointer_of(location)) == (field, name, pointer)
