"""Names of accelerators as drivers and frameworks print them: `NVIDIA H100 80GB HBM3` in the lines
of nvidia-smi and nccl-tests, `AMD Instinct MI300X` in those of rocm-smi, `TPU v5p` of JAX."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_FORM = r"(?:SXM|PCIE?|NVL)"
_NVIDIA = re.compile(
    r"\b(?:NVIDIA[ -](?:Tesla[ -])?|Tesla[ -])"
    r"(?P<family>GB\d{3}|GH\d{3}|VR\d{3}|[ABHLVPT]\d{1,3}[SG]?"
    r"|(?:GeForce )?RTX (?:PRO )?\w{2,12})"
    rf"(?P<rest>(?:[ -](?:{_FORM}\d{{0,2}}|\d{{2,3}}GB?|HBM\d?e?|AC))*)(?![\w-])",
    re.IGNORECASE,
)
_BARE_NVIDIA = re.compile(
    rf"(?<![\w-])(?P<family>[AHV]\d{{3}})(?P<rest>-{_FORM}\d?-\d{{2,3}}GB)(?![\w-])"
)
_AMD = re.compile(r"\bInstinct[ -](?P<family>MI\d{3}[XA]?)(?P<rest>)\b", re.IGNORECASE)
_TPU = re.compile(r"\bTPU[ -]?(?P<family>v\d(?: ?lite|[ep])?|7x)(?P<rest>)(?![\w-])", re.IGNORECASE)
_TPU_FAMILIES = {"v5": "v5p", "v5lite": "v5e", "v6lite": "v6e", "7x": "v7x", "v7": "v7x"}
_MEMORY = re.compile(r"(?<![\w.])(\d{2,3})GB", re.IGNORECASE)
_FORM_WORD = re.compile(r"(?:^|[ -])(sxm|pcie|nvl(?!\d))", re.IGNORECASE)
_MOST_NAMES = 64
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,32}m")


@dataclass(frozen=True, slots=True)
class PrintedDevice:
    name: str
    family: str
    """Such as `h100`, `mi300x`, `v5p` or `rtx4090`."""
    memory_gb: int | None
    form: str | None
    """`sxm`, `pcie` or `nvl`, where the name says it."""

    def matching(self, ids: Iterable[str]) -> list[str]:
        """The chips, of those with these ids, that print this name. A memory size or form that no
        chip of the family has narrows nothing."""
        found = [id_ for id_ in ids if self.family in _joined_words(id_)]
        with_memory = [id_ for id_ in found if f"{self.memory_gb}gb" in _words(id_)]
        found = with_memory or found
        with_form = [id_ for id_ in found if self.form in _words(id_)]
        return with_form or found


def printed_devices(text: str) -> list[PrintedDevice]:
    """The different devices that a log names, in order of first appearance within each vendor."""
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    found: dict[str, PrintedDevice] = {}
    for pattern in (_NVIDIA, _BARE_NVIDIA, _AMD, _TPU):
        for match in pattern.finditer(text):
            family = match["family"].lower().replace(" ", "").removeprefix("geforce")
            memory = _MEMORY.search(match["rest"])
            form = _FORM_WORD.search(match["rest"])
            if len(found) < _MOST_NAMES:
                found.setdefault(
                    match.group().lower(),
                    PrintedDevice(
                        name=match.group(),
                        family=_TPU_FAMILIES.get(family, family),
                        memory_gb=int(memory.group(1)) if memory else None,
                        form=form.group(1).lower() if form else None,
                    ),
                )
    return [*found.values()]


def _words(id_: str) -> list[str]:
    return id_.split("-")


def _joined_words(id_: str) -> set[str]:
    """The words of an id, and neighbours of them written as one: rtx4090 of rtx-4090."""
    words = _words(id_)
    return {"".join(words[i:j]) for j in range(len(words) + 1) for i in range(j)}
