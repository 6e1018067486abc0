"""The families that are read, by `model_type`, out of rows in `families.json`. A *family* is the
models with one `model_type`.

A row has the fields of `Family`, or of `Hybrid` where it has `mixers`; `like` names the family
whose row holds for what it leaves out. A *part* is a function that reads one part of a layer. A row
has the name of such a function, or a list of that name and of arguments, which may be parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import isfunction
from typing import Any

from service.formats.huggingface import (
    blocks,
    convolutions,
    dense,
    hybrid,
    mixers,
    moe,
    parts,
    patterns,
    per_kind,
)
from service.formats.huggingface.data import data
from service.formats.huggingface.family import Family, Hybrid, Norms, Refused

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    name: function
    for module in (parts, patterns, mixers, blocks, dense, moe, per_kind, hybrid, convolutions)
    for name, function in vars(module).items()
    if isfunction(function) and function.__module__ == module.__name__
}
_PARTS = frozenset(
    ("prepare", "attention", "kinds", "mlp", "experts", "sparse", "listed", "has_positions")
)
"""Fields of a family that are functions."""
_ROWS: Mapping[str, Mapping[str, Any]] = data("families")["families"]


def _full_row(model_type: str) -> dict[str, Any]:
    """Returns the row of a family, completed from the family that its field `like` names."""
    row = dict(_ROWS[model_type])
    like = row.pop("like", None)
    return row if like is None else {**_full_row(like), **row}


def _field_value(field: str, entry: Any) -> Any:
    """Returns the value that a field of `Family` gets for an entry of a row: a function, norms,
    or refused switches."""
    if field in _PARTS:
        return _part_of(entry)
    if field == "mixers" and isinstance(entry, dict):
        return {kind: _part_of(mixer) for kind, mixer in entry.items()}
    if field == "norms" and isinstance(entry, dict):
        return Norms(**entry)
    if field in ("mixers", "norms"):
        return _part_of(entry)
    if field == "refused":
        return tuple(Refused(*switch) for switch in entry)
    return tuple(entry) if isinstance(entry, list) else entry


def _part_of(entry: Any) -> Any:
    """Returns the function that a text names, or the result of the call that a list describes:
    heads(qk_norm=True) for ["heads", {"qk_norm": true}]. Other entries, and texts that name no
    function, such as keys of a config, are returned as they are."""
    if isinstance(entry, str):
        return _FUNCTIONS.get(entry, entry)
    if not isinstance(entry, list):
        return entry
    name, *arguments = entry
    keywords = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
    return _FUNCTIONS[name](
        *map(_part_of, arguments),
        **{key: _part_of(value) for key, value in keywords.items()},
    )


def _read_family(model_type: str) -> Family:
    """Returns the family of the row with this model_type."""
    fields = {field: _field_value(field, entry) for field, entry in _full_row(model_type).items()}
    return Hybrid(**fields) if "mixers" in fields else Family(**fields)


FAMILIES: Mapping[str, Family] = {model_type: _read_family(model_type) for model_type in _ROWS}
