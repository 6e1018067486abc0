"""Checks that torchtitan 0.3.0 makes when it starts, beyond the rules of layouts (trainer.py and
config/configs.py, __post_init__). A *stop* is a setting with which it refuses to start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from service.formats.launch.torchtitan.writer import RECOMPUTE, RELEASE
from service.formats.settings.stop import Stop

SOURCE = f"torchtitan {RELEASE}: trainer.py, Trainer.Config"
COMPILE = f"torchtitan {RELEASE}: config/configs.py, CompileConfig"
_DISABLES_GRAPHS = "training.disable_cuda_graphs"
_ASYNC_TENSOR = "compile.enable_async_tensor_parallel"


def stops_at_start(
    values: Mapping[str, Any], layout: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterator[Stop]:
    """Yields a stop for each rule about CUDA graphs, compilation and debugging that the settings
    break. `config` is what the config function sets."""
    captures = not values[_DISABLES_GRAPHS]
    if captures and layout["pp"] > 1:
        rule = "CUDA graphs do not go with a pipeline: set it"
        yield Stop(setting=f"--{_DISABLES_GRAPHS}", value=False, rule=rule, source=SOURCE)
    # The table says which config functions choose a dispatcher that CUDA graphs can capture. An
    # unknown function (an empty `config`) may choose one too.
    has_standard_dispatcher = config and not config.get("captures_experts")
    if captures and layout["ep"] > 1 and has_standard_dispatcher:
        rule = "the standard dispatcher of experts does not go with CUDA graphs: set it"
        yield Stop(setting=f"--{_DISABLES_GRAPHS}", value=False, rule=rule, source=SOURCE)
    compiles_model = values["compile.enable"] and "model" in values["compile.components"]
    if values[_ASYNC_TENSOR] and not compiles_model:
        rule = "needs --compile.enable, with model among --compile.components"
        yield Stop(setting=f"--{_ASYNC_TENSOR}", value=True, rule=rule, source=COMPILE)
    if values[RECOMPUTE] == "memory-budget" and not compiles_model:
        rule = "needs --compile.enable, with model among --compile.components"
        setting = "activation-checkpoint:memory-budget"
        yield Stop(setting=setting, value=True, rule=rule, source=SOURCE)
    if values["debug.batch_invariant"]:
        rule = "is not for pre-training"
        yield Stop(setting="--debug.batch_invariant", value=True, rule=rule, source=SOURCE)
    if values["debug.spmd_typechecking"] and layout["pp"] > 1:
        rule = "does not go with a pipeline: check the configuration without one"
        yield Stop(setting="--debug.spmd_typechecking", value=True, rule=rule, source=SOURCE)
