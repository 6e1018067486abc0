"""What holds for the readers of all launch formats."""

from __future__ import annotations

from contextlib import suppress
from time import process_time

import pytest

from models.errors import Invalid
from service.formats.launch.formats import FORMATS, LaunchFormat

ENDLESS = {
    "assignments": "A=1\n" * 16_000,
    "assignments in front": "A=1 " * 16_000 + "python a.py",
    "overrides": " ".join(f"key{at}=1" for at in range(5000)),
    "flags": " ".join(f"--flag{at} 1" for at in range(5000)),
    "lines": "\n" * 60_000,
    "commands": "a|" * 30_000,
    "brackets": "[" * 60_000,
    "expansions": "$(" * 30_000,
    "dollars": "$" * 60_000,
    "sections": "[a]\n" + "a." * 30_000 + "b=1",
    "lists": "[a]\nx=" + "[" * 60_000,
    "branches": "if a; then\n" * 5000,
}


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("format_", FORMATS.values(), ids=FORMATS)
def test_no_text_takes_a_reader_long(format_: LaunchFormat, text: str) -> None:
    before = process_time()
    with suppress(Invalid):
        format_.read(text, None)
    assert process_time() - before < 2  # a third of it on an idle machine
