"""Reads which of a model's own parameters are trained, from the names of modules, numbers of layers
and patterns that tools have for them. A *part* is a layer, the embedding or the head."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_EMBEDDINGS = frozenset({"embed_tokens", "wte", "word_embeddings", "tok_embeddings"})
_HEADS = frozenset({"lm_head", "embed_out", "output"})
_NORMS = frozenset({"norm", "final_layernorm", "ln_f"})
"""Norms are left out of account: they have some thousand parameters."""
_LAYER = re.compile(
    r"(?:^|[.\\])(?:layers|blocks|h)\\?\.(?P<number>[\d\[][\d\[\]\-+*?^]{0,40})(?P<rest>.*)",
    re.ASCII,
)
_MOST_LAYERS = 128
"""No model here has more layers, and patterns are tried for each."""
_MOST_PATTERNS = 64  # the others are unknown: each is tried for every part of every layer
_LONGEST = 200  # characters of a pattern: names of parameters have fewer than 100
_WHOLE_MODEL = frozenset({"", "model", "model.language_model", "language_model", "model.layers",
    "model.language_model.layers", "transformer", "transformer.h"})  # fmt: skip
_ENCODERS = ("visual", "vision", "multi_modal_projector", "audio", "embed_vision")


@dataclass(slots=True)
class TrainedParts:
    """Layers, embedding and head that are trained."""

    layers: set[int] | None = field(default_factory=set)
    """Their numbers; None for all."""
    embedding: bool = False
    head: bool = False
    is_in_part: bool = False
    """True where some layers have matrices that are not trained."""
    unknown: list[str] = field(default_factory=list)
    """Names and patterns that match no known part of a language model."""

    @property
    def fields(self) -> dict[str, Any] | None:
        """Returns the parts as a request writes them, {"layers": [0, 1], "embedding": False,
        "head": True}; None where the whole model is trained."""
        if self.layers is None and self.embedding and self.head:
            return None
        layers = None if self.layers is None else sorted(self.layers)
        return {"layers": layers, "embedding": self.embedding, "head": self.head}


def parts_of_modules(names: Iterable[str]) -> TrainedParts:
    """Returns the parts that these modules are, such as the head for "lm_head". Norms are
    ignored, and other names listed as unknown."""
    parts = TrainedParts()
    for name in names:
        last = name.rpartition(".")[2]
        if last in _EMBEDDINGS:
            parts.embedding = True
        elif last in _HEADS:
            parts.head = True
        elif last not in _NORMS:
            parts.unknown.append(name)
    return parts


def parts_matching(patterns: list[str]) -> TrainedParts:
    """Returns the parts whose parameters match patterns such as "^model.layers.2[0-9]+" (axolotl
    0.21.0 utils/freeze.py, LayerNamePattern). A pattern matches from the start of a name, and a
    period in it stands for itself. Patterns that are too long, or too many to try, are unknown."""
    parts = TrainedParts()
    for pattern in map(str, patterns[:_MOST_PATTERNS]):
        if len(pattern) > _LONGEST:
            parts.unknown.append(pattern)
        else:
            _add_matching_parts(parts, pattern)
    parts.unknown += map(str, patterns[_MOST_PATTERNS:])
    return parts


def _add_matching_parts(parts: TrainedParts, pattern: str) -> None:
    """Adds the parts whose parameters match a pattern; lists it as unknown where it matches
    none."""
    layer = _LAYER.search(pattern.lstrip("^"))
    # The pattern without repeats at its end, such as `.*`, and without backslashes.
    path = re.sub(r"(?:\\?\.)?[*+$]*$", "", pattern.lstrip("^")).replace("\\", "")
    names = {name for name in re.split(r"[^\w]+", path) if name}
    if layer is not None:
        _add_layers(parts, layer)
    elif path in _WHOLE_MODEL:
        has_only_layers = "layers" in names or path == "transformer.h"  # the layers of GPT-2
        parts.layers = None
        parts.embedding |= not has_only_layers  # model.* has the embedding in it
        parts.head |= not path  # the head is not inside of model.*, and only .* matches it
    elif names & _EMBEDDINGS:
        parts.embedding = True
    elif names & _HEADS:
        parts.head = True
    # Norms are too small to count, and encoders are not of the language model.
    elif not names & _NORMS and not any(name.startswith(_ENCODERS) for name in names):
        parts.unknown.append(pattern)


def _add_layers(parts: TrainedParts, layer: re.Match[str]) -> None:
    """Adds the layers whose numbers match: 20 to 29 for "layers.2[0-9]+". Numbers are matched by
    the sender's regular expression. It has no groups, and so cannot backtrack for long."""
    try:
        number = re.compile(layer["number"])
    except re.error:
        parts.unknown.append(layer.group())
        return
    if parts.layers is None:  # all layers are trained already
        return
    parts.layers |= {index for index in range(_MOST_LAYERS) if number.fullmatch(str(index))}
    if len(parts.layers) == _MOST_LAYERS:  # every number matches
        parts.layers = None
    # layers.2[0-9]+.self_attn names a part of each layer, layers.2[0-9]+.* all of it.
    parts.is_in_part |= bool(layer["rest"].strip(".*+$\\"))


def end_layers(count: int) -> list[int]:
    """Returns the indices of the last `count` layers, [-2, -1] for 2; of the first, [0, 1], for
    -2."""
    return [*range(-count, 0)] if count > 0 else [*range(-count)]
