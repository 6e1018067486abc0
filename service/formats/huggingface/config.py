"""Typed access to a config.json. Every access says which type and range a key must have, and errors
name the key that breaks this.

A *common* key is the one that most families use for a size, such as hidden_size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from models.errors import Invalid, Unsupported

MAX_LAYERS = 1024  # several times as many as any released model
MAX_SIZE = 2**24  # no dimension of a released model has a tenth of it
_SYNONYMS = (
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_top_k", "moe_k"),
    ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"),
    ("num_key_value_heads", "num_attention_groups"),
)
"""Keys that mean the same. Families have changed from one to another between releases."""
_OTHER_NAMES = {key: names for names in _SYNONYMS for key in names}
_MAX_SHOWN_CHARACTERS = 80
_MAX_SHOWN_INTEGER = 2**63  # longer ones are slow to write in decimals


@dataclass(frozen=True)
class Config:
    """One JSON object of a config. A key that is not written takes its value from `absent`. A key
    that is null, or in neither, takes the `default` of the method that reads it; without a default
    the key is required."""

    values: Mapping[str, object]
    model_type: str
    absent: Mapping[str, object] = field(default_factory=dict)
    name: str = ""
    """The name of the architecture."""
    path: str = ""
    """The keys from the whole config to this object, with a dot at the end: "text_config."."""
    respelled: Mapping[str, str] = field(default_factory=dict)
    """From a common key to the one that this family uses."""

    def key(self, key: str) -> str:
        """Returns the key as this config spells it."""
        return self._name_in(self.values, key) or self.respelled.get(key, key)

    def _name_in(self, values: Mapping[str, object], key: str) -> str | None:
        """Returns the name under which `values` has the key, which families and releases spell
        differently; None where it has none."""
        native = self.respelled.get(key, key)
        names = (native, key, *_OTHER_NAMES.get(native, ()))
        return next((name for name in names if name in values), None)

    def where(self, key: str) -> str:
        """Returns the place of the key for messages: "text_config.hidden_size"."""
        return f"{self.path}{self.key(key)}"

    def get(self, key: str) -> object:
        """Returns the value of the key, or that in `absent` where it is not written; None where
        it has neither."""
        name = self._name_in(self.values, key)
        return self._value_if_absent(key) if name is None else self.values[name]

    def _value_if_absent(self, key: str) -> object:
        """Returns the value of the key where the config does not write it; None without one."""
        name = self._name_in(self.absent, key)
        return None if name is None else self.absent[name]

    def is_written(self, key: str) -> bool:
        return self._name_in(self.values, key) is not None

    def named(self, name: str) -> Config:
        """Returns the config with this name for the architecture that is read from it."""
        return replace(self, name=name)

    def respell(self, keys: Mapping[str, str]) -> Config:
        """Returns the config in which these keys are read under other names: {"hidden_size":
        "n_embd"}."""
        return replace(self, respelled=keys)

    def assuming(self, **absent: object) -> Config:
        """Returns the config with these values for keys that are not written at all. A key that
        is written as null stays null."""
        return replace(self, absent={**self.absent, **absent})

    def with_value(self, key: str, value: object) -> Config:
        """Returns the config with this value, whatever is written."""
        return replace(self, values={**self.values, self.key(key): value})

    def size(self, key: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """Returns a whole number from 1 to `most`. Raises Invalid for anything else."""
        return self._whole_number(key, default, least=1, most=most)

    def count(self, key: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """Returns a whole number from 0 to `most`. Raises Invalid for anything else."""
        return self._whole_number(key, default, least=0, most=most)

    def null(self, key: str) -> bool:
        """Returns True where the key is null, in the config or by default."""
        is_known = self.is_written(key) or self._name_in(self.absent, key) is not None
        return is_known and self.get(key) is None

    def size_or_none(self, key: str) -> int | None:
        return None if self.null(key) else self.size(key)

    def count_or_zero(self, key: str, most: int = MAX_SIZE) -> int:
        """Returns a whole number; 0 where the key is null."""
        return 0 if self.null(key) else self.count(key, most=most)

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        """Returns the key's value, which must be true or false. A key that is missing or null
        takes the value in `absent`, or else `default`. Raises Invalid without either."""
        absent = self._value_if_absent(key)
        value = self._value(key, default if absent is None else absent)
        if not isinstance(value, bool):
            raise self.invalid(key, "must be true or false")
        return value

    def word(self, key: str, default: str | None = None) -> str:
        return _non_empty_string(self.where(key), self._value(key, default))

    def words(self, key: str, length: int) -> list[str]:
        """Returns a list of `length` strings; empty where the key is absent. Raises Invalid for
        another length."""
        return [_non_empty_string(where, value) for where, value in self._items(key, length)]

    def switches(self, key: str, length: int) -> list[bool]:
        """Returns a list of `length` zeros and ones as booleans; empty where the key is absent.
        Raises Invalid for another length."""
        return [
            _whole_number(where, value, least=0, most=1) == 1
            for where, value in self._items(key, length)
        ]

    def indices(self, key: str, length: int) -> set[int]:
        """Returns the indices that a list holds, each below `length`; empty where the key is
        absent."""
        return {
            _whole_number(where, value, least=0, most=length - 1)
            for where, value in self._items(key)
        }

    def inner(self, key: str) -> Config:
        """Returns the object under the key as a config of its own. Raises Invalid where it is
        none."""
        value = self._value(key)
        if not isinstance(value, Mapping):
            raise self.invalid(key, "must be an object")
        return self._inner(value, self.where(key))

    def inners(self, key: str, length: int) -> list[Config]:
        """Returns the `length` objects in a list under the key, as configs. Raises Invalid where
        there are none, or fewer or more."""
        inner_configs = []
        for where, value in self._items(key, length):
            if not isinstance(value, Mapping):
                raise Invalid(where, shown(value), "must be an object")
            inner_configs.append(self._inner(value, where))
        if not inner_configs:
            raise self.missing(key)
        return inner_configs

    def _inner(self, values: Mapping[str, object], where: str) -> Config:
        """Returns an object at a place inside of this config as a config of its own. Defaults and
        other spellings are those of this config's keys, so the object starts without any."""
        return replace(self, values=values, path=f"{where}.", absent={}, respelled={})

    def number(self, key: str, most: float = MAX_SIZE) -> float:
        """Returns a positive number of at most `most`. Raises Invalid for anything else."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.invalid(key, "must be a number")
        if not 0 < value <= most:
            raise self.invalid(key, f"must be more than 0, and at most {most}")
        return value

    def refuse(self, key: str, missing: str, value: bool = True) -> None:
        """Raises Unsupported where the key has this value, because it adds something to the model
        that the cost model does not cover. `missing` names what that is."""
        # A key that is missing counts as the other value, which adds nothing.
        if self.flag(key, default=not value) is value:
            raise Unsupported(self.where(key), value, missing)

    def refuse_size(self, key: str, missing: str, default: int | None = None) -> None:
        """Raises Unsupported, as `refuse` does, where the key's number is not 0."""
        if size := self.count(key, default):
            raise Unsupported(self.where(key), size, missing)

    def missing(self, key: str) -> Invalid:
        return Invalid(self.where(key), None, f"is required for model_type {self.model_type}")

    def invalid(self, key: str, rule: str) -> Invalid:
        return Invalid(self.where(key), shown(self.get(key)), rule)

    def _value(self, key: str, default: object = None) -> object:
        """Returns the value of the key, or `default` where it is absent or null. Raises Invalid
        where both are None."""
        value = self.get(key)
        if value is not None:
            return value
        if default is None:
            raise self.missing(key)
        return default

    def _whole_number(self, key: str, default: int | None, least: int, most: int) -> int:
        return _whole_number(self.where(key), self._value(key, default), least=least, most=most)

    def _items(self, key: str, length: int | None = None) -> list[tuple[str, object]]:
        """Returns the items of a list, each with its place such as "layer_types[3]" for
        messages; none where the key is absent. Raises Invalid where it is no list, or has
        another length."""
        value = self.get(key)
        if value is None or value == []:
            return []
        if not isinstance(value, list):
            raise self.invalid(key, "must be a list")
        if length is not None and len(value) != length:
            raise self.invalid(key, f"must have one entry for each of the {length} layers")
        return [(f"{self.where(key)}[{index}]", item) for index, item in enumerate(value)]


def shown(value: object) -> object:
    """Returns a value as an error message shows it: itself if it is short and plain, else a
    description such as "a list of 40"."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_SHOWN_CHARACTERS else value[:_MAX_SHOWN_CHARACTERS] + "…"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and abs(value) > _MAX_SHOWN_INTEGER:
        return f"an integer of {value.bit_length()} bits"
    return value


def _whole_number(where: str, value: object, least: int, most: int) -> int:
    """Returns a whole number between the bounds. Raises Invalid, at the place `where`, for
    anything else."""
    if isinstance(value, bool) or not isinstance(value, int):
        quoted = isinstance(value, str) and value.strip().isdecimal()
        cure = ", without quotation marks" if quoted else ""
        raise Invalid(where, shown(value), f"must be a whole number{cure}")
    if not least <= value <= most:
        raise Invalid(where, shown(value), f"must be from {least} to {most}")
    return value


def _non_empty_string(where: str, value: object) -> str:
    """Returns a non-empty string. Raises Invalid, at the place `where`, for anything else."""
    if not isinstance(value, str) or not value:
        raise Invalid(where, shown(value), "must be a non-empty string")
    return value
