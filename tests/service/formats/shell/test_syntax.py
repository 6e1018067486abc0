from __future__ import annotations

import gc
import resource
from pathlib import Path

import pytest

from models.errors import Invalid
from service.formats.shell.syntax import parse

_PAGE_KIB = resource.getpagesize() // 1024


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_KIB


def long_text(number: int) -> str:
    return f"echo {number} && X=1\n" * 2500


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts memory as Linux does")
@pytest.mark.long
def test_texts_that_were_parsed_leave_no_memory_behind() -> None:
    for number in range(20):
        parse(long_text(number))
    gc.collect()
    before = resident_kib()
    for number in range(60):
        parse(long_text(number))
    gc.collect()
    # The binding kept twice each text, 5 MiB of these.
    assert resident_kib() - before < 2048


def test_a_text_that_would_take_too_long_is_refused() -> None:
    with pytest.raises(Invalid, match="is not written as a shell would read it"):
        parse("<<E\n" * 16000)


def test_the_text_of_a_node_can_be_asked_for_afterwards() -> None:
    text = "echo one\n" * 10_000  # more than one chunk
    root = parse(text).root
    assert root.children[-1].text == b"echo one"
    assert root.text == text.encode()
