"""Names of accelerators as drivers and frameworks print them: `NVIDIA H100 80GB HBM3` in the lines
of nvidia-smi and nccl-tests, `AMD Instinct MI300X` in those of rocm-smi, `TPU v5p` of JAX,
`Intel(R) Data Center GPU Max 1550` of Level Zero, `Ascend910B2` of CANN.

The *family* is the product without its variant, such as h100; the *form* is how it is mounted: SXM,
PCIe or NVL. *Bins* are variants of one chip that differ in speed, such as 910B2 and 910B3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain

from models.spec.hardware import Chip

_FORM = r"(?:SXM|PCIE?|NVL)"
_NVIDIA = re.compile(
    r"\b(?:(?:NVIDIA[ -])?(?:Tesla|Quadro|GeForce)[ -]|NVIDIA[ -])"
    r"(?P<family>GB\d{3}|GH\d{3}|VR\d{3}|H20-3e|[ABHLPTV]\d{1,3}[SG]?"
    r"|(?:GeForce |Quadro )?RTX (?:PRO )?\w{2,12}(?: Ada| Ti| SUPER| D\b)?(?: Laptop)?"
    r"(?: Blackwell (?:Max-Q )?Workstation)?"
    r"|TITAN (?:RTX|Xp|V))"
    rf"(?P<rest>(?:[ -](?:{_FORM}\d{{0,2}}|\d{{2,3}}GB?|HBM\d?e?|AC))*)(?![\w-])",
    re.IGNORECASE,
)
_BARE_NVIDIA = re.compile(
    rf"(?<![\w-])(?P<family>[AHV]\d{{3}})(?P<rest>-{_FORM}\d?-\d{{2,3}}GB)(?![\w-])"
)
_AMD = re.compile(
    r"\b(?:AMD|Instinct)[ -](?:Instinct[ -])?(?P<family>MI\d{3}[XAP]?)(?P<rest>)\b", re.IGNORECASE
)
_TPU = re.compile(
    r"\bTPU[ -]?(?P<family>v\d(?: ?lite|[epx])?|[78][xt])(?P<rest>)(?![\w-])", re.IGNORECASE
)
_INTEL = re.compile(
    r"\bIntel(?:\(R\))? Data Center GPU (?P<family>(?:Max|Flex) \d{3,4})(?P<rest>)(?!\w)"
    r"|(?<![\w-])(?P<gaudi>GAUDI\d|HL-\d{3}|(?<=Intel )Gaudi \d)[A-Z]?(?![\w-])"
)
_AWS = re.compile(r"\bAWS (?P<family>Trainium\d)(?P<rest>)\b")
_HUAWEI = re.compile(
    r"\bAscend[ -]?(?P<family>(?:310|910|950)(?:_?93\d{0,2}|B\d?|[A-Z]{1,4})?)(?P<rest>)(?![\w-])",
    re.IGNORECASE,
)
"""Ascend chips as npu-smi, torch_npu and CANN print them: 910B2, Ascend910_9392."""
_PATTERNS = (_NVIDIA, _BARE_NVIDIA, _AMD, _TPU, _INTEL, _HUAWEI, _AWS)
_FAMILIES = {
    "v5": "v5p", "v5lite": "v5e", "v6lite": "v6e", "7x": "v7x", "v7": "v7x",
    "hl205": "gaudi1", "hl225": "gaudi2", "hl325": "gaudi3", "hl328": "gaudi3",
}  # fmt: skip
"""Families as the catalogue calls them, by other words for them."""
_BINS = ((re.compile(r"910_?93\d*"), "910c"), (re.compile(r"910b\d"), "910b"))
"""Families of which each bin, or each release of the driver, prints a name of its own."""
_VENDOR_WORDS = (
    "nvidia", "tesla", "quadro", "geforce", "-sxm", "-pcie", "amd", "instinct", "tpu", "intel",
    "gaudi", "hl-", "ascend", "aws",
)  # fmt: skip
"""Plain words of which each pattern needs one: they are found much faster than the patterns."""
_BEFORE, _AFTER = 16, 90  # characters around such a word that a name may have
_MOST_PIECES = 5000  # a log names its devices at its start, not in every one of millions of lines
_MEMORY = re.compile(r"(?<![\w.])(\d{2,3})GB", re.IGNORECASE)
_FORM_WORD = re.compile(r"(?:^|[ -])(sxm|pcie|nvl(?!\d))", re.IGNORECASE)
_MOST_NAMES = 64  # clusters have a few kinds of chips
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,32}m")


@dataclass(frozen=True, slots=True)
class PrintedDevice:
    name: str
    family: str
    """Such as `h100`, `mi300x`, `v5p` or `rtx4090`."""
    memory_gb: int | None
    form: str | None
    """`sxm`, `pcie` or `nvl`, where the name says it."""

    def matching(self, chips: Iterable[Chip]) -> list[Chip]:
        """Returns the chips that may print this name: all of its family, narrowed by memory and
        form where some chip of the family has these."""
        candidates = [chip for chip in chips if self.family in _families_of(chip.name)]
        # Ids of the catalogue say memory and form where a family differs in them: a100-40gb.
        with_memory = [chip for chip in candidates if f"{self.memory_gb}gb" in chip.id.split("-")]
        candidates = with_memory or candidates
        with_form = [chip for chip in candidates if self.form and f"-{self.form}" in chip.id]
        return with_form or candidates


def printed_devices(text: str) -> list[PrintedDevice]:
    """Returns the different devices that a log names, vendor by vendor, each vendor's in order
    of first appearance."""
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    devices: dict[str, PrintedDevice] = {}
    for segment in _segments(text):
        for match in chain.from_iterable(pattern.finditer(segment) for pattern in _PATTERNS):
            if len(devices) < _MOST_NAMES:
                devices.setdefault(match.group().lower(), _device_of_match(match))
    return [*devices.values()]


def _segments(text: str) -> Iterable[str]:
    """Returns the different stretches of a text around the vendors' words, such as "nvidia". At
    most _MOST_PIECES are returned: a log names its devices at its start."""
    lower = text.lower()
    pieces: dict[str, None] = {}
    for word in _VENDOR_WORDS:
        start = lower.find(word)
        while start >= 0 and len(pieces) < _MOST_PIECES:
            piece = text[max(0, start - _BEFORE) : start + _AFTER]
            pieces[piece] = None
            start = lower.find(word, start + len(word))
    return pieces


def _device_of_match(match: re.Match[str]) -> PrintedDevice:
    """Returns the device of a match, with its family, its memory in GB and its form, such as
    "sxm"."""
    parts = match.groupdict()
    behind_family = parts["rest"] or ""
    memory = _MEMORY.search(behind_family)
    form = _FORM_WORD.search(behind_family)
    return PrintedDevice(
        name=match.group(),
        # Intel's pattern has a second group for the family, "gaudi".
        family=_catalogue_family(parts["family"] or parts["gaudi"]),
        memory_gb=int(memory.group(1)) if memory else None,
        form=form.group(1).lower() if form else None,
    )


def _catalogue_family(printed: str) -> str:
    """Returns a family of chips in lower case, by the catalogue's name for it: "910b" for the
    bin "910B3"."""
    family = re.sub(r"[ -]", "", printed.lower())
    family = family.removeprefix("geforce").removeprefix("quadro")
    for pattern, known in _BINS:
        if pattern.fullmatch(family):
            return known
    return _FAMILIES.get(family, family)


@cache
def _families_of(name: str) -> frozenset[str]:
    return frozenset(device.family for device in printed_devices(name))
