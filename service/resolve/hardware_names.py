"""Unknown names of chips and machines: the chip that such a name contains, and what to give in its
place."""

from __future__ import annotations

import re
from collections.abc import Mapping

from models.errors import UnknownName
from models.spec import catalogue
from service.nearest_names import misspelt, unknown_name, with_hint, words
from service.schemas.catalog import Kind

_VERSION = re.compile(r"v\d")
"""The version of a machine, as in Standard_ND96isr_H100_v5, though TPUs have such names too."""
_MEMORY = re.compile(r"\b(\d{2,3})\s*gi?b?\b", re.ASCII)
_SOCKET = re.compile(r"\bsxm\d\b", re.ASCII)
_COUNT = re.compile(r"\d+x?|x\d+|gpus?|chips?|pod|slice", re.ASCII)
"""Words that say how many chips a machine has, and not which."""


def unknown_hardware(kind: Kind, name: str, field: str, known: list[str]) -> UnknownName:
    """Returns the error for an unknown chip or machine: with names like it, or the known chip in
    its name, or else how to describe it."""
    describe = (
        "the chip of a cluster may be the explicit fields of its data sheet, or registered by POST"
        " /v1/catalog/chips"
    )
    links = " and its links in cluster.levels" if kind == "clusters" else ""
    if misspelt(name, known):
        return unknown_name(field, name, known, describe)
    if chip := chip_named_in(name, _chip_ids_by_name()):
        give = f"cluster.chip = {chip!r}{links}"
        if kind == "clusters" and _is_name_of_chips(name, chip):
            give = f"cluster.preset = {chip!r} with num_chips"
        elif kind == "clusters" and catalogue.chip(chip).fabric.torus:
            give = f"cluster.chip = {chip!r} and its links in cluster.torus"
        hint = f"; if its chip is {chip}, give {give}; else {describe}"
        return with_hint(UnknownName(field, name, known), hint)
    if kind == "clusters":
        describe = f"give cluster.chip{links}; {describe}"
        return unknown_name(field, name, known, describe, what="a chip or machine")
    return unknown_name(field, name, known, describe, what="a chip")


def _chip_ids_by_name() -> dict[str, str]:
    """Returns the chip's id by each shipped name of a chip or a fabric."""
    chips_of_fabrics = {
        name: catalogue.fabric_chip(fabric.id) for name, fabric in catalogue.fabrics().items()
    }
    return chips_of_fabrics | {name: chip.id for name, chip in catalogue.chips().items()}


def chip_named_in(name: str, chips: Mapping[str, str]) -> str | None:
    """Returns the chip whose name is part of this name of a machine, as h100 is of BM.GPU.H100.4;
    None where there is none. The longest such name counts, and of equally long ones the first.
    Where the name states another memory or socket, the variant of that chip with it is returned:
    a100-pcie-40gb for A100 40GB PCIe. `chips` has the chip of every known name."""
    parts = words(name)
    by_words = {tuple(words(known)): chip for known, chip in chips.items()}
    # The longest part comes first, so that "a100 80gb" is found before "a100".
    for length in range(len(parts), 0, -1):
        for begin in range(len(parts) - length + 1):
            part = tuple(parts[begin : begin + length])
            # A lone "v5" is the version of a machine, as in Standard_ND96isr_H100_v5, and no TPU.
            if part in by_words and not (length == 1 and _VERSION.fullmatch(part[0])):
                return _variant_as_stated(name, by_words[part], chips)
    return None


def _is_name_of_chips(name: str, chip: str) -> bool:
    """Returns True where a name says no more than the chip and a count: 8xH100, and not
    BM.GPU.H100.4, whose chips may be linked in another way."""
    own = words(chip)
    return all(word in own or _COUNT.fullmatch(word) for word in _plain_words(name))


def _variant_as_stated(name: str, chip: str, chips: Mapping[str, str]) -> str:
    """Returns the variant of a chip whose id has most words of `name`, and of several such the one
    whose id is most like the chip's. Ids of variants begin with the same word."""
    stated, own = set(_plain_words(name)), words(chip)
    variants = {variant for variant in chips.values() if words(variant)[0] == own[0]}

    def likeness(variant: str) -> tuple[int, int, int]:
        variant_words = words(variant)
        in_both = len(stated.intersection(variant_words))
        return in_both, len(set(own).intersection(variant_words)), -len(variant_words)

    return max(sorted(variants), key=likeness)


def _plain_words(name: str) -> list[str]:
    """Returns the words of a name, with one spelling of memory and of sockets: 40G and 40 GiB are
    40gb, and SXM5 is sxm."""
    return words(_SOCKET.sub("sxm", _MEMORY.sub(r"\1gb", name.lower().replace("_", " "))))
