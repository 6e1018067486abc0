"""MaxText's own reading of its settings, its mesh on devices that stand like those of the job, and
the tensors that its remat policies keep."""

from __future__ import annotations

import ast
import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from types import CodeType, MethodType, SimpleNamespace
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np
from jax.experimental import mesh_utils
from judges.harness import main, require
from judges.shims import JAX_DEVICES
from maxtext.configs import pyconfig
from maxtext.utils import max_logging, max_utils

BASE = Path(pyconfig.__file__).with_name("base.yml")
DECODERS = "layers/nnx_decoders.py"
MESHES = "utils/maxtext_utils.py"
KINDS = {
    "tpu-v3": "TPU v3",
    "tpu-v4": "TPU v4",
    "tpu-v5e": "TPU v5 lite",
    "tpu-v5p": "TPU v5p",
    "tpu-v6e": "TPU v6 lite",
    "tpu-v7x": "TPU7x",
    "tpu-v8t": "TPU8t",
}
PRECISIONS = {
    "": {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"},
    "fp8": {"bfloat16": "fp8"},
    "fp8_full": {"bfloat16": "fp8"},
    "nanoo_fp8": {"bfloat16": "fp8"},
    "te_mxfp8": {"bfloat16": "mxfp8"},
    "te_nvfp4": {"bfloat16": "nvfp4"},
    "int8": {"bfloat16": "int8"},
}
"""By `quantization` and `dtype`."""


@dataclass(frozen=True)
class Device:
    """What JAX knows of a device."""

    id: int
    slice_index: int
    platform: str
    device_kind: str
    coords: tuple[int, ...] = (0, 0, 0)
    core_on_chip: int = 0
    process_index: int = 0


def judge(configuration: dict[str, Any]) -> dict[str, Any]:
    devices = devices_of(configuration)
    JAX_DEVICES[:] = devices
    words = ["train", str(BASE), *configuration["arguments"], "skip_jax_distributed_system=True"]
    slices = devices[-1].slice_index + 1
    config = pyconfig.initialize([*words, f"num_slices={slices}"])
    mesh = create_device_mesh(config, devices)
    sizes = Counter(dict(zip(config.mesh_axes, mesh.shape, strict=True)))
    return {
        "tp": sizes["tensor"] or 1,
        "cp": sizes["context"],
        "pp": sizes["stage"] or 1,
        "replicas": sizes["data"],
        "shards": sizes["fsdp"] * sizes["expert"],
        "ep": expert_degree(config, sizes),
        **batch(config),
        **pipeline(config),
        **recompute(config),
        "model": [config.num_decoder_layers, config.emb_dim, config.vocab_size],
        "capacity_factor": None if config.sparse_matmul else config.capacity_factor,
        "shards_optimizer": config.shard_optimizer_over_data,
        "offload_optimizer": config.optimizer_memory_host_offload,
        "precision": PRECISIONS[config.quantization or ""][config.dtype.name],
        "optimizer": config.opt_type,
    }


def devices_of(configuration: dict[str, Any]) -> list[Device]:
    count, per_slice = configuration["devices"], configuration["devices_per_slice"]
    shape = configuration["slice_shape"]
    if not shape:
        return [Device(rank, rank // per_slice, "gpu", "GPU") for rank in range(count)]
    kind = KINDS[configuration["chip"]]
    places = list(product(*map(range, shape)))
    cores = per_slice // len(places)
    found = []
    for index in range(count // per_slice):
        for place in places:
            coords = (*reversed(place), 0)[:3]
            for core in range(cores):
                found.append(Device(len(found), index, "tpu", kind, coords, core))
    return found


def expert_degree(config: Any, sizes: Mapping[str, int]) -> int:
    """Over how many devices the rules of the mesh divide experts."""
    axes = next(axes for name, axes in config.logical_axis_rules if name == "exp")
    return prod(sizes[axis] for axis in ([axes] if isinstance(axes, str) else axes))


def batch(config: Any) -> dict[str, int]:
    pipelined = config.num_pipeline_microbatches if config.using_pipeline_parallelism else 1
    micro_batches = config.gradient_accumulation_steps * pipelined
    of_all, rest = divmod(config.global_batch_size_to_train_on, micro_batches)
    require(rest == 0, f"{config.global_batch_size_to_train_on} in {micro_batches} micro-batches")
    return {
        "seq_len": config.max_target_length,
        "global_batch": config.global_batch_size_to_train_on,
        "micro_batch_of_all": of_all,
    }


def pipeline(config: Any) -> dict[str, Any]:
    if not config.using_pipeline_parallelism:
        return {"layers_per_chunk": [config.num_decoder_layers]}
    stages = config.ici_pipeline_parallelism * config.dcn_pipeline_parallelism
    chunks = stages * config.num_pipeline_repeats
    layers = config.num_layers_per_pipeline_stage
    require(chunks * layers == config.num_decoder_layers, f"{chunks} chunks of {layers} layers")
    require(
        config.num_pipeline_microbatches % stages == 0,
        f"{config.num_pipeline_microbatches} micro-batches over {stages} stages",
    )
    return {"layers_per_chunk": [layers] * chunks}


def recompute(config: Any) -> dict[str, Any]:
    """Which tensors the policy keeps: MaxText takes any name of a policy until it trains."""
    if config.remat_policy == "none":
        require(not config.scan_layers, "scanned layers are always checkpointed")
        return {"recompute": "none", "recompute_modules": [], "offload_activations": False}
    kept, offloaded = tensors(config)
    saved = (kept | offloaded) - {"decoder_layer_input"}
    offloads = bool(offloaded)
    if not saved:
        return {"recompute": "full", "recompute_modules": [], "offload_activations": offloads}
    dense = config.num_experts == 1 or config.first_num_dense_layers > 0
    dense |= config.interleave_moe_layer_step > 1
    up = saved & {"mlpwi_0", "mlpwi_1"}
    modules = {
        "core_attn": "context" not in saved,
        "out_proj": "out_proj" not in saved,
        "mlp": dense and not up,
        "mlp_gate": dense and len(up) == 1,
        "mla_up_proj": "key_proj" not in saved,
        "moe": config.num_experts > 1 and not ({"moe_mlpwo", "mlpwo"} & saved),
    }
    names = sorted(name for name, again in modules.items() if again)
    return {
        "recompute": "selective",
        "recompute_modules": names,
        "offload_activations": offloads,
    }


def tensors(config: Any) -> tuple[set[str], set[str]]:
    """The names of tensors that stay on the device, and of those that go to the host, as the
    decoder of MaxText tells JAX."""
    policies = SimpleNamespace(
        save_only_these_names=lambda *names: (set(names), set()),
        save_and_offload_only_these_names=lambda **names: (
            set(names["names_which_can_be_saved"]),
            set(names["names_which_can_be_offloaded"]),
        ),
    )
    scope = {"jax": SimpleNamespace(checkpoint_policies=policies), "warnings": warnings}
    methods = from_source(DECODERS, ("minimal_policy", "get_remat_policy"), scope)
    decoder = SimpleNamespace(config=config)
    decoder.minimal_policy = MethodType(methods["minimal_policy"], decoder)
    return methods["get_remat_policy"](decoder) or (set(), set())


def create_device_mesh(config: Any, devices: list[Device]) -> np.ndarray:
    scope = {"np": np, "max_utils": max_utils, "mesh_utils": mesh_utils}
    return from_source(MESHES, ("create_device_mesh",), scope)["create_device_mesh"](
        config, devices
    )


def from_source(
    file: str, names: tuple[str, ...], scope: dict[str, Any]
) -> dict[str, Callable[..., Any]]:
    """Functions, or methods of classes, of a module of MaxText that cannot be imported as a whole,
    because it imports kernels of accelerators, or readers of data."""
    scope = {**scope, "max_logging": max_logging}
    exec(_compiled(file, names), scope)
    return {name: scope[name] for name in names}


@cache
def _compiled(file: str, names: tuple[str, ...]) -> CodeType:
    path = BASE.parents[1] / file
    nodes = ast.walk(ast.parse(path.read_text()))
    found = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in names]
    return compile(ast.Module(found, []), str(path), "exec")


main(judge, "jax_devices")
