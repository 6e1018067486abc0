"""Defaults of the config classes, which hold where a config leaves a key out. A *tower* is one of
the models that make up a multimodal model, such as the one for text.

`classes.json` has the defaults of the classes in transformers, which `python -m
tests.launchers.model_code` writes, and `remote_classes.json` those of classes that are published
beside weights. A *text tower* is the language model inside of a multimodal one.
"""

from __future__ import annotations

from collections.abc import Mapping

from service.formats.huggingface.data import data

UNTIED = ("qwen2_5_omni_text", "qwen3_vl_moe_text")
"""Text towers whose own class ties the embeddings, and the class of the whole does not."""


def class_defaults(model_type: str) -> Mapping[str, object]:
    """Returns the values that transformers assumes for keys which a config leaves out. A key has
    none where transformers and the code beside the weights differ (`ambiguous`)."""
    remote = data("remote_classes")
    if model_type in remote["defaults"]:
        of_type: Mapping[str, object] = remote["defaults"][model_type]
        return of_type
    # `like` names the class in transformers whose defaults a class beside weights has too.
    defaults = data("classes")["defaults"].get(remote["like"].get(model_type, model_type), {})
    ambiguous = remote["ambiguous"].get(model_type, ())
    unambiguous = {key: value for key, value in defaults.items() if key not in ambiguous}
    # The class of the whole multimodal model decides whether embeddings are tied.
    return {**unambiguous, "tie_word_embeddings": False} if model_type in UNTIED else unambiguous


def defaults_without_sizes(model_type: str) -> Mapping[str, object]:
    """Returns the defaults that are no integers: switches, nulls, words. A size that is missing
    from a config is an error, since the default belongs to the model for which the class was
    written."""
    return {
        key: value
        for key, value in class_defaults(model_type).items()
        if isinstance(value, bool) or not isinstance(value, int)
    }


def text_towers() -> Mapping[str, str]:
    """Returns the model_type of the text tower of each multimodal family whose configs do not
    give it."""
    towers: Mapping[str, str] = data("classes")["text_towers"]
    return towers
