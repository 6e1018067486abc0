"""The chip within an unknown name of a machine."""

from __future__ import annotations

import re
from collections.abc import Mapping

from service.nearest_names import words

_VERSION = re.compile(r"v\d")
"""The version of a machine, as in Standard_ND96isr_H100_v5, though TPUs have such names too."""


def chip_named_in(name: str, chips: Mapping[str, str]) -> str | None:
    """Returns the chip whose name is part of this name of a machine, as h100 is of BM.GPU.H100.4;
    None where there is none. The longest such name counts, and of equally long ones the first.
    `chips` has the chip of every known name."""
    parts = words(name)
    by_words = {tuple(words(known)): chip for known, chip in chips.items()}
    # The longest part comes first, so that "a100 80gb" is found before "a100".
    for length in range(len(parts), 0, -1):
        for begin in range(len(parts) - length + 1):
            part = tuple(parts[begin : begin + length])
            # A lone "v5" is the version of a machine, as in Standard_ND96isr_H100_v5, and no TPU.
            if part in by_words and not (length == 1 and _VERSION.fullmatch(part[0])):
                return by_words[part]
    return None
