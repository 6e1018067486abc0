"""Checks that torchtitan makes when it starts, beyond the rules of layouts: 0.3.0 (trainer.py and
config/configs.py, __post_init__), and the releases before it (0.2.2, its models and components). A
*stop* is a setting with which it refuses to start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from service.formats.launch.torchtitan.earlier_releases import (
    EXPERT_TENSOR,
    GATHERS,
    IN_BACKWARD,
    EarlierSettings,
    name_in,
)
from service.formats.launch.torchtitan.earlier_releases import RELEASE as EARLIER
from service.formats.launch.torchtitan.writer import RECOMPUTE, RELEASE
from service.formats.settings.stop import Stop

SOURCE = f"torchtitan {RELEASE}: trainer.py, Trainer.Config"
COMPILE = f"torchtitan {RELEASE}: config/configs.py, CompileConfig"
_DISABLES_GRAPHS = "training.disable_cuda_graphs"
_ASYNC_TENSOR = "compile.enable_async_tensor_parallel"
_NEEDS_COMPILATION = "needs --compile.enable, with model among --compile.components"
_EXPERT_DEGREE = "parallelism.expert_parallel_degree"
_REPLICAS = "parallelism.data_parallel_replicate_degree"


def compiles_model(values: Mapping[str, Any]) -> bool:
    """Returns True where torch.compile takes the model, and not the loss alone. `values` has all
    settings by their names in 0.3.0."""
    return bool(values["compile.enable"]) and "model" in values["compile.components"]


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
    if values[_ASYNC_TENSOR] and not compiles_model(values):
        setting = f"--{_ASYNC_TENSOR}"
        yield Stop(setting=setting, value=True, rule=_NEEDS_COMPILATION, source=COMPILE)
    if values[RECOMPUTE] == "memory-budget" and not compiles_model(values):
        setting = "activation-checkpoint:memory-budget"
        yield Stop(setting=setting, value=True, rule=_NEEDS_COMPILATION, source=SOURCE)
    if values["debug.batch_invariant"]:
        rule = "is not for pre-training"
        yield Stop(setting="--debug.batch_invariant", value=True, rule=rule, source=SOURCE)
    if values["debug.spmd_typechecking"] and layout["pp"] > 1:
        rule = "does not go with a pipeline: check the configuration without one"
        yield Stop(setting="--debug.spmd_typechecking", value=True, rule=rule, source=SOURCE)


def stops_of_earlier_release(
    values: Mapping[str, Any], layout: Mapping[str, Any], earlier: EarlierSettings
) -> Iterator[Stop]:
    """Yields a stop for each rule of a release before 0.3.0 that the settings break. `values` has
    all settings by their names in 0.3.0."""
    model = earlier.older["model.name"]
    for name, lack in earlier.table.facts["earlier"]["lacks"].items():
        if values[name] > 1 and model in lack["models"]:
            rule = f"is not made for {model}: {lack['reason']}"
            source = lack["source"].format(model=model)
            yield _stop_of_earlier(name, values[name], rule, source, f"--{name} 1")
    if values[_ASYNC_TENSOR] and layout["tp"] > 1 and not compiles_model(values):
        name = name_in(_ASYNC_TENSOR, EARLIER)
        file = "distributed/tensor_parallel.py"
        yield _stop_of_earlier(name, True, _NEEDS_COMPILATION, file)
    if values[RECOMPUTE] == "memory-budget" and not compiles_model(values):
        name = "activation_checkpoint.mode"
        file = "distributed/activation_checkpoint.py"
        yield _stop_of_earlier(name, "memory_budget", f"memory_budget {_NEEDS_COMPILATION}", file)
    if earlier.converts_with_recipe and earlier.older[GATHERS]:
        rule = "does not go with a recipe_name of float8: leave one of them out"
        yield _stop_of_earlier(GATHERS, True, rule, "components/quantization/float8.py")
    ep = values[_EXPERT_DEGREE]
    if earlier.older[IN_BACKWARD] and max(layout["pp"], ep) > 1:
        rule = "goes with neither a pipeline nor expert parallelism: leave it out"
        yield _stop_of_earlier(IN_BACKWARD, True, rule, "components/optimizer.py")
    etp = earlier.older[EXPERT_TENSOR]
    if ep > 1 and etp not in (1, layout["tp"]):
        rule = f"must be 1, or the tensor-parallel degree of {layout['tp']}"
        yield _stop_of_earlier(EXPERT_TENSOR, etp, rule, "distributed/parallel_dims.py")
    # Other models put DDP around the parts that tensor and pipeline parallelism leave.
    is_alone = model == "llama3" or (model == "llama4" and ep == 1)
    is_whole = layout.get("dp_shard") == layout["cp"] == 1
    if is_alone and is_whole and layout["dp_replicate"] > 1 < max(layout["tp"], layout["pp"]):
        rule = "without sharding is DDP, which goes with neither tensor nor pipeline parallelism"
        source = f"models/{model}/infra/parallelize.py"
        yield _stop_of_earlier(_REPLICAS, layout["dp_replicate"], rule, source)


def _stop_of_earlier(name: str, value: object, rule: str, file: str, cure: str = "") -> Stop:
    """Returns the stop for a setting at which `file` of a release before 0.3.0 refuses to
    start."""
    source = f"torchtitan {EARLIER}: {file}"
    return Stop(setting=f"--{name}", value=value, rule=rule, source=source, cure=cure)
