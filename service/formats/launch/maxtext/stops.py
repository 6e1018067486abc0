"""Combinations of kernels and of data sets that MaxText 0.2.5 refuses when it starts
(configs/types.py, MaxTextConfig). A *stop* is a setting with which it refuses to start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from service.formats.settings.stop import Stop

TYPES = "maxtext 0.2.5: configs/types.py, MaxTextConfig"
_STRATEGY = "context_parallel_strategy"
_NEEDS_ON_TPU: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "ring": {
        "attention": ("flash",),
        "use_tokamax_splash": (True,),
        "use_jax_splash": (False,),
        "attention_type": ("global", "mla"),
    },
    "ulysses": {
        "attention": ("flash",),
        "use_tokamax_splash": (True,),
        "use_jax_splash": (False,),
        "attention_type": ("global",),
        "context_parallel_load_balance": (False,),
    },
}
"""By strategy of context parallelism, the values that other settings must have on TPUs."""


def stops_of_kernels(values: Mapping[str, Any]) -> Iterator[Stop]:
    """Yields a stop for each setting that a kernel of attention or a strategy of context
    parallelism needs otherwise. `values` has all settings."""
    is_gpu = "gpu" in values["hardware"]
    segments = values["max_segments_per_seq"]
    packs = values["hardware"] == "gpu" and values["packing"] is True
    if packs and values["attention"] == "cudnn_flash_te" and segments in (-1, 0):
        rule = "must be a number of segments with attention=cudnn_flash_te, or packing be false"
        yield _stop("max_segments_per_seq", segments, rule, "packing=false")
    strategy = str(values[_STRATEGY]).lower()
    if strategy == "ulysses" and values["hardware"] != "tpu":
        yield _stop(_STRATEGY, strategy, "is for hardware=tpu alone", f"{_STRATEGY}=all_gather")
        return
    if is_gpu or strategy not in _NEEDS_ON_TPU:
        return
    if values["ici_context_parallelism"] * values["dcn_context_parallelism"] <= 1:
        rule = "needs context parallelism of more than 1"
        yield _stop(_STRATEGY, strategy, rule, f"{_STRATEGY}=all_gather")
    for name, needed in _NEEDS_ON_TPU[strategy].items():
        if values[name] not in needed:
            shown = " or ".join(str(value).lower() for value in needed)
            cure = f"{name}={str(needed[0]).lower()}"
            yield _stop(name, values[name], f"must be {shown} with {_STRATEGY}={strategy}", cure)


def stops_of_data(values: Mapping[str, Any], *, is_earlier: bool) -> Iterator[Stop]:
    """Yields a stop for a pipeline of data that is not told its data set. With `is_earlier` the
    release may be one before 0.2.5, which knows fewer ways to say it and is not held to these."""
    kind = values["dataset_type"]
    if kind == "hf" and not values["hf_path"]:
        yield _stop("hf_path", values["hf_path"], "must not be empty with dataset_type=hf")
    if kind == "grain" and not is_earlier and not _says_grain(values):
        rule = "or another source of data must be set with dataset_type=grain"
        yield _stop("grain_train_files", values["grain_train_files"], rule)


def _says_grain(values: Mapping[str, Any]) -> bool:
    """Returns True where Grain is told what it reads."""
    files = values["grain_train_files"] or values["grain_train_mixture_config_path"]
    kind = values["grain_file_type"]
    of_records = values["dataset_path"] and values["dataset_name"] and values["train_split"]
    return bool(
        files or (kind == "parquet" and values["hf_path"]) or (kind == "tfrecord" and of_records)
    )


def _stop(name: str, value: object, rule: str, cure: str = "") -> Stop:
    return Stop(setting=name, value=value, rule=rule, source=TYPES, cure=cure)
