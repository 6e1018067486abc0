"""A model as callers give it layer by layer.

`layers` is a list. An entry is a layer, with how many of it are in a row; a group of layers that
repeats; or the name of a layer of `layer_kinds`, which is shorter where a pattern is irregular.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Field, StringConstraints, Tag, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from models.errors import Invalid
from models.package_data import read_json
from models.spec.architecture import MAX_LAYERS, Architecture
from models.spec.layer import Layer
from service.json_pointers import TAG_PREFIX, prefix_errors
from service.schemas.common_fields import common_fields
from service.schemas.encoder import EncoderFields
from service.schemas.layer import LayerFields, LayerGroup, Layers
from service.schemas.wire import UNNAMED, Name, Size, Wire

KindName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_*+-][A-Za-z0-9_*+-]{0,59}$")]


def _layer_tag(value: object) -> str:
    return f"{TAG_PREFIX}{'name' if isinstance(value, str) else 'layer'}"


_LayerName = Annotated[Name, Tag(f"{TAG_PREFIX}name")]
_Layer = Annotated[LayerGroup, Tag(f"{TAG_PREFIX}layer")]
LayerForm = Annotated[_LayerName | _Layer, Discriminator(_layer_tag)]


class LayerRepetition(Wire):
    """Layers that follow each other, again and again."""

    repeat: Layers
    """Number of times that `layers` follow each other."""
    layers: Annotated[list[LayerForm], Field(min_length=1, max_length=MAX_LAYERS)]
    """Layers like those of the model, without a further repetition."""


def _entry_tag(value: object) -> str:
    """Returns the tag of the form in which an entry is written: a repetition, a layer, or a name.
    Pydantic then validates it in that form alone."""
    is_repetition = isinstance(value, LayerRepetition) or (
        isinstance(value, Mapping) and bool({"repeat", "layers"} & value.keys())
    )
    return f"{TAG_PREFIX}repetition" if is_repetition else _layer_tag(value)


LayerEntry = Annotated[
    _LayerName | _Layer | Annotated[LayerRepetition, Tag(f"{TAG_PREFIX}repetition")],
    Discriminator(_entry_tag),
]


class LayerListFields(Wire):
    """A decoder-only transformer, layer by layer."""

    name: Name = UNNAMED
    hidden_size: Size
    vocab_size: Size
    layers: Annotated[list[LayerEntry], Field(min_length=1, max_length=MAX_LAYERS)]
    """From the first to the last: a layer with a `count`, layers that `repeat`, or a name of
    `layer_kinds`."""
    layer_kinds: Annotated[dict[KindName, LayerFields], Field(max_length=MAX_LAYERS)] = {}
    """Layers that `layers` names."""
    tie_word_embeddings: bool = False
    mtp_layers: Annotated[int, Field(ge=0, le=16)] = 0
    """Multi-token-prediction modules, each with a layer like the last."""
    residual_streams: Annotated[int, Field(ge=1, le=64)] = 1
    """Several are mixed by hyper-connections (DeepSeek-V4)."""
    learned_positions: Annotated[int, Field(ge=0, le=2**24)] = 0
    """Positions with a learned embedding (GPT-2)."""
    lm_head_bias: bool = False
    final_norm_weight: bool = True
    final_norm_bias: bool = False
    encoder: EncoderFields | None = None
    """The encoder of images in a vision-language model."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_fields_of_shapes(cls, value: Any) -> Any:
        """Returns the value unchanged. Raises ValidationError where it has fields, such as
        num_layers, that the list of layers replaces. Each error says where the list has them."""
        if isinstance(value, Mapping):
            given_twice = [name for name in _SAID_BY_LAYERS if name in value]
            if given_twice:
                raise ValidationError.from_exception_data(
                    cls.__name__, [_error_beside_layers(name, value[name]) for name in given_twice]
                )
        return value

    @property
    def is_named(self) -> bool:
        return self.name != UNNAMED

    def build(self) -> Architecture:
        """Returns the architecture. Raises Invalid where fields contradict each other."""
        parts = self._parts()  # (times, [(place, entry), ...]) of each part of the list
        total = sum(
            repeat * sum(_layer_count(entry) for _, entry in part) for repeat, part in parts
        )
        if total > MAX_LAYERS:
            rule = f"makes {total} layers; a model has at most {MAX_LAYERS}"
            raise Invalid("layers", None, rule)
        self._require_named_kinds(parts)
        kinds = {
            name: self._layer(kind, f"layer_kinds.{name}")
            for name, kind in self.layer_kinds.items()
        }
        layers = list[Layer]()
        for repeat, part in parts:
            for where, entry in part * repeat:
                kind = kinds[entry] if isinstance(entry, str) else self._layer(entry, where)
                _require_indexer_before(layers, kind, where)
                layers += [kind] * _layer_count(entry)
        with prefix_errors("encoder"):
            encoder = self.encoder.build() if self.encoder else None
        # Fields that requests and Architecture share, such as vocab_size. Both have `layers` and
        # `encoder` too, which are replaced by the built ones.
        fields = common_fields(self, LayerListFields, Architecture)
        return Architecture(**{**fields, "layers": tuple(layers), "encoder": encoder})

    def _parts(self) -> list[_Part]:
        """Returns the list as parts (times, [(place, entry), ...]), each with the number of times
        that it repeats. An entry that does not repeat is a part by itself."""
        parts = list[_Part]()
        for index, entry in enumerate(self.layers):
            where = f"layers[{index}]"
            if isinstance(entry, LayerRepetition):
                part = [(f"{where}.layers[{i}]", layer) for i, layer in enumerate(entry.layers)]
                parts.append((entry.repeat, part))
            else:
                parts.append((1, [(where, entry)]))
        return parts

    def _layer(self, form: LayerFields, where: str) -> Layer:
        """Returns the layer that a form describes. Errors name its place in the request,
        `where`."""
        with prefix_errors(where):
            return form.build(self.hidden_size, self.residual_streams)

    def _require_named_kinds(self, parts: list[_Part]) -> None:
        """Raises Invalid for a name that `layer_kinds` does not have, and for a kind that no entry
        names."""
        # A part is the number of times that it repeats, and its entries.
        entries = [place_and_entry for _, part in parts for place_and_entry in part]
        # From last to first, so that the first use of a name replaces the later ones.
        first_uses = {entry: where for where, entry in reversed(entries) if isinstance(entry, str)}
        for name, where in first_uses.items():
            if name not in self.layer_kinds:
                kinds = ", ".join(self.layer_kinds) or "nothing"
                raise Invalid(where, name, f"must be a name of layer_kinds, which has {kinds}")
        for name in self.layer_kinds:
            if name not in first_uses:
                rule = "is named by no entry of layers: name it there, or leave it out"
                raise Invalid(f"layer_kinds.{name}", None, rule)


def _require_indexer_before(layers: list[Layer], layer: Layer, where: str) -> None:
    """Raises Invalid where a layer shares an earlier layer's indexer, and no earlier layer has one
    over keys of the same compression. `layers` are the layers before it."""
    attention = layer.attention
    if attention is None or attention.indexer is None or not attention.indexer.shared:
        return
    before = [layer.attention for layer in layers if layer.attention and layer.attention.indexer]
    if not any(indexed.compression == attention.compression for indexed in before):
        rule = "needs a layer before it with an indexer of its own, whose keys it reads"
        raise Invalid(f"{where}.attention.indexer.shared", True, rule)


def is_layer_list(value: object) -> bool:
    """Returns whether the value describes a model layer by layer."""
    return isinstance(value, Mapping) and bool({"layers", "layer_kinds"} & value.keys())


_Part = tuple[int, list[tuple[str, str | LayerGroup]]]
"""The number of times that a part of the list repeats, and its entries. An entry is its place in
the request, such as "layers[2]", and a layer or the name of one."""


def _layer_count(entry: str | LayerGroup) -> int:
    """Returns the number of layers that an entry stands for; a name stands for one."""
    return 1 if isinstance(entry, str) else entry.count


_SAID_BY_LAYERS: dict[str, str] = read_json(__package__, "layer_list.json")
"""Reasons why a field of models whose layers are alike is not given beside a list of layers."""


def _error_beside_layers(name: str, value: object) -> InitErrorDetails:
    """Returns the error of a field given beside the list of layers, in pydantic's form."""
    rule = f"is not given beside layers: {_SAID_BY_LAYERS[name]}"
    error = PydanticCustomError("beside_layers", "{rule}", {"rule": rule})
    return InitErrorDetails(type=error, loc=(name,), input=value)
