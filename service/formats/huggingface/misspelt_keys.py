"""Keys of a config.json that are misspelt: nothing reads them, and the default of another key takes
their place.

Real files have many keys that are not read, so a key counts as misspelt only if it is one edit away
from a key of its family that has a default, or is what another family calls it, and the config does
not have that key itself.
"""

from __future__ import annotations

from functools import cache

from rapidfuzz.distance import OSA

from models.errors import Invalid
from service.formats.huggingface.classes import class_defaults
from service.formats.huggingface.config import Config, shown
from service.formats.huggingface.data import data
from service.formats.huggingface.families import FAMILIES

_OTHER_FILES = {"n_kv_heads": "num_key_value_heads"}
"""From a key of the params.json beside the weights of Meta and Mistral to the common one."""
_SHORT = 7  # characters up to which one edit makes another word: dim, n_head


def require_known_spelling(text: Config) -> None:
    """Raises Invalid for the first key of a language model's config that is misspelt."""
    respelled = FAMILIES[text.model_type].keys
    own = {*class_defaults(text.model_type), *respelled.values()}
    # A key without a default is missed by its reader.
    written = text.respell(respelled)
    absent = [key for key in text.absent if not written.is_written(key)]
    for name, value in text.values.items():
        if value is None or name in own:
            continue
        common = _common_keys().get(name)
        near = [key for key in absent if key == common or _is_misspelt(name, key)]
        if near:
            rule = f"is not read for model_type {text.model_type}; did you mean {near[0]}?"
            raise Invalid(f"{text.path}{name}", shown(value), rule)


def _is_misspelt(name: str, key: str) -> bool:
    """Returns True where a name that no family has is one edit away from the key."""
    is_known = name in _known_keys() or len(key) <= _SHORT
    return not is_known and OSA.distance(name, key, score_cutoff=1) <= 1


@cache
def _common_keys() -> dict[str, str]:
    """Returns the common key of each key that some family has in its place."""
    keys = {name: key for family in FAMILIES.values() for key, name in family.keys.items()}
    return {**keys, **_OTHER_FILES}


@cache
def _known_keys() -> frozenset[str]:
    """Returns the keys that are read in some family."""
    classes = [*data("classes")["defaults"].values(), *data("remote_classes")["defaults"].values()]
    return frozenset(key for defaults in classes for key in defaults) | _common_keys().keys()
