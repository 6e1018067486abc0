"""Layouts of FSDP, plain data parallelism and Megatron by accelerate 1.15.0 (utils/
dataclasses.py, parallelism_config.py).

A *stop* is a setting with which accelerate refuses to start. A *reservation* is a remark that a
setting could matter and is not, or not fully, taken into account. `stops.attempt` notes the stop
that a call raises, and goes on with the value `instead`.
"""

from __future__ import annotations

from typing import Any

from service.formats.settings.field import FALSE_WORDS, TRUE_WORDS, shown
from service.formats.settings.settings import Settings
from service.formats.settings.stop import Stopped, Stops
from service.formats.shell.faults import invalid_launch

SOURCE = (
    "accelerate 1.15.0: parallelism_config.py, utils/dataclasses.py, and"
    " torch.distributed.device_mesh"
)
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
"""The strategies of FSDP1, in the order of their numbers from 1 (utils/constants.py,
FSDP_SHARDING_STRATEGY)."""
_KEEPS_GATHERED = ("shard_grad_op", "hybrid_shard_zero2")
"""The strategies that keep parameters gathered from one micro-batch to the next."""
_TRUE = (*TRUE_WORDS, "y", "t")
_FALSE = (*FALSE_WORDS, "n", "f")
"""The words that FSDP2 takes for fsdp_reshard_after_forward (utils/environment.py, str_to_bool)."""
DEGREES = "parallelism_config.parallelism_config_"
"""The beginning of accelerate's names for degrees of parallelism, such as …tp_size."""
_MEGATRON_DEGREES = {
    "tp": "tp_degree",
    "pp": "pp_degree",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}


def fsdp_layout(settings: Settings, num_devices: int | None, stops: Stops) -> dict[str, Any]:
    """Returns the fields of a layout that fsdp_config and parallelism_config decide: ZeRO stage,
    offload and degrees. Degrees at which accelerate refuses to start are left out, and noted in
    `stops`."""
    layout: dict[str, Any] = {
        "offload_activations": settings.boolean(
            "fsdp_config.fsdp_activation_checkpointing_offload"
        ),
        "offload_optimizer": settings.boolean("fsdp_config.fsdp_offload_params")
        or settings.boolean("fsdp_config.fsdp_cpu_offload"),
    }
    if settings.integer("fsdp_config.fsdp_version") == 1:
        return layout | _fsdp1_sharding(settings, num_devices, stops)
    return {
        **layout,
        "zero_stage": 3,
        "reshard": stops.attempt(lambda: _reshards(settings), instead=True),
        **stops.attempt(lambda: _mesh_degrees(settings, num_devices), instead={}),
    }


def _reshards(settings: Settings) -> bool:
    """Returns True where FSDP2 frees parameters after forward. Raises Stopped for a strategy of
    FSDP1, or any other word."""
    name = "fsdp_config.fsdp_reshard_after_forward"
    word = settings.text(name) or "true"
    if word not in (*_TRUE, *_FALSE):
        rule = "must be true or false with FSDP2, which has no strategies of FSDP1"
        cure = "false" if word in _KEEPS_GATHERED else "true"
        raise Stopped(name, settings.given[name], rule, cure)
    return word in _TRUE


def _fsdp1_sharding(settings: Settings, num_devices: int | None, stops: Stops) -> dict[str, Any]:
    """Returns the sharding of FSDP1 as fields of the layout. FSDP1 goes by fsdp_sharding_strategy,
    whatever other settings say, because its variable FSDP_SHARDING_STRATEGY is always set
    (utils/launch.py)."""
    name = "fsdp_config.fsdp_reshard_after_forward"
    strategy = _strategy_name(settings.value("fsdp_config.fsdp_sharding_strategy") or "FULL_SHARD")
    reshard = settings.given.get(name)
    if reshard is not None and str(reshard).lower() not in (strategy, "true"):
        settings.add_reservation(name, "FSDP1 takes fsdp_sharding_strategy", "write it there")
    if strategy == "no_shard":
        return {"zero_stage": 0, **({"dp_replicate": num_devices} if num_devices else {})}
    # ZeRO 2 keeps parameters gathered from one micro-batch to the next.
    layout: dict[str, Any] = {"zero_stage": 2 if strategy in _KEEPS_GATHERED else 3}
    if num_devices is None:
        return layout
    machines = settings.integer("num_machines") or 1
    # Hybrid strategies shard within a machine, and replicate over machines.
    replicas = machines if strategy.startswith("hybrid") else 1
    rule = f"must be a multiple of num_machines({machines})"
    shards = stops.attempt(lambda: quotient(num_devices, replicas, rule), instead=num_devices)
    return layout | {"dp_shard": shards, "dp_replicate": replicas}


def quotient(num_devices: int, divisor: int, rule: str) -> int:
    """Returns the number of processes, one on each device, divided by `divisor`. Raises Stopped,
    with `rule` as its reason, where that leaves a remainder."""
    if num_devices % divisor:
        below = num_devices // divisor * divisor
        cure = f"num_processes {below or divisor} or {below + divisor}"
        raise Stopped("num_processes", num_devices, rule, cure)
    return num_devices // divisor


def _strategy_name(value: object) -> str:
    """Returns the name of a sharding strategy of FSDP1 in lower case: full_shard for "FULL_SHARD"
    and for its number, 1. Raises Invalid for any other."""
    names = {str(number): name for number, name in enumerate(STRATEGIES, start=1)}
    strategy = str(value).lower()
    strategy = names.get(strategy, strategy)
    if strategy not in STRATEGIES:
        rule = f"must be one of {', '.join(map(str.upper, STRATEGIES))}"
        raise invalid_launch(shown("fsdp_sharding_strategy", value), rule)
    return strategy


def _mesh_degrees(settings: Settings, num_devices: int | None) -> dict[str, Any]:
    """Returns the degrees that parallelism_config sets. FSDP2 shards over all ranks where it
    sets none. A degree that is "auto" is left out, because it takes the devices that the others
    leave. Raises Stopped where the degrees do not multiply to `num_devices`."""
    names = {axis: f"{DEGREES}{axis}_size" for axis in ("dp_replicate", "dp_shard", "tp", "cp")}
    mesh = {
        axis: settings.integer(name) or 1
        for axis, name in names.items()
        if not settings.is_auto(name)
    }
    mesh |= _expert_degrees(settings, mesh)  # dp_shard grows by ep, which lies within it
    sequence = settings.integer(f"{DEGREES}sp_size") or 1
    if sequence > 1:  # Ulysses of DeepSpeed or of ms-swift
        mesh["cp"] = sequence
    # Nothing is set: FSDP2 shards over all ranks.
    if not any(name in settings for name in (*names.values(), f"{DEGREES}sp_size")):
        return {"dp_shard": num_devices} if num_devices else {}
    if not names.keys() <= mesh.keys():  # a degree is "auto", and makes the product right
        return mesh
    devices = mesh["dp_replicate"] * mesh["dp_shard"] * mesh["tp"] * mesh["cp"]
    # Ranks that Ulysses leaves over share the work as data parallelism, without a setting for it.
    if sequence > 1 and num_devices is not None and f"{DEGREES}dp_shard_size" not in settings:
        return {**mesh, "dp_shard": max(num_devices // devices, 1)}
    if num_devices is not None and devices != num_devices:
        product = " * ".join(f"{axis}({degree})" for axis, degree in mesh.items())
        rule = f"must be {product} = {devices}, as ParallelismConfig asks"
        raise Stopped("num_processes", num_devices, rule, f"num_processes {devices}")
    return mesh


def _expert_degrees(settings: Settings, mesh: dict[str, int]) -> dict[str, int]:
    """Returns the degree of expert parallelism, as axolotl sets it, and the degree of dp_shard
    that goes with it: everything but experts is sharded over the ranks of both."""
    ep = settings.integer(f"{DEGREES}ep_size") or 1
    if ep == 1:
        return {}
    if "dp_shard" not in mesh:  # it is "auto", and takes the ranks that the others leave
        return {"ep": ep}
    return {"ep": ep, "dp_shard": mesh["dp_shard"] * ep}


def ddp_layout(settings: Settings, num_devices: int | None) -> dict[str, Any]:
    """Returns the layout of plain data parallelism (DDP), with the tp, cp and Ulysses degrees of
    parallelism_config. Adds a reservation for shards, which only FSDP makes."""
    others: dict[str, int] = {}
    for axis in ("tp", "cp"):
        name = f"{DEGREES}{axis}_size"
        degree = None if settings.is_auto(name) else settings.integer(name)
        if degree and degree > 1:
            others[axis] = degree
    sequence = settings.integer(f"{DEGREES}sp_size") or 1
    if sequence > 1:
        others["cp"] = sequence
    shards = f"{DEGREES}dp_shard_size"
    if not settings.is_auto(shards) and (settings.integer(shards) or 1) > 1:
        settings.add_reservation(
            shards, "nothing here asks for FSDP, which makes shards", "ask for FSDP"
        )
    model_parallel = others.get("tp", 1) * others.get("cp", 1)
    degrees = {"dp_replicate": max(num_devices // model_parallel, 1)} if num_devices else {}
    return {"zero_stage": 0, **others, **degrees}


def megatron_layout(settings: Settings, num_devices: int | None, stops: Stops) -> dict[str, Any]:
    """Returns the fields of a layout that megatron_lm_config decides. Notes a stop where the
    model-parallel degrees do not divide `num_devices`."""
    prefix = "megatron_lm_config.megatron_lm"
    layout: dict[str, Any] = {
        knob: settings.integer(f"{prefix}_{name}") or 1 for knob, name in _MEGATRON_DEGREES.items()
    }
    layout["sequence_parallel"] = settings.boolean(f"{prefix}_sequence_parallelism")
    layout["offload_optimizer"] = settings.boolean(f"{prefix}_optimizer_cpu_offload")
    # Megatron's distributed optimizer is ZeRO 1.
    layout["zero_stage"] = int(settings.boolean(f"{prefix}_use_distributed_optimizer"))
    granularity = settings.text(f"{prefix}_recompute_granularity")
    # recompute_activations is short for selective, and an explicit granularity overrides it.
    if settings.boolean(f"{prefix}_recompute_activations"):
        granularity = granularity or "selective"
    layout["recompute"] = granularity or "none"
    if num_devices is None:
        return layout
    model_parallel = layout["tp"] * layout["pp"] * layout["cp"]
    rule = f"must be a multiple of tp * pp * cp = {model_parallel}"
    ranks = stops.attempt(lambda: quotient(num_devices, model_parallel, rule), instead=num_devices)
    shard = "dp_shard" if layout["zero_stage"] else "dp_replicate"
    return layout | {shard: ranks}
