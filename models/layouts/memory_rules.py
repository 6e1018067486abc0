"""The rules of recompute and offload.

A function whose docstring states a rule returns for each of n layouts whether it obeys, (n,); the
function after it words the error (models.layouts.rule.Rule).
"""

from __future__ import annotations

import numpy as np

from models.columns import Array
from models.layouts.rule import Rule, is_one_of
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.recompute import FULL, MODULES, NONE, STACK_SELECTIVE, policy_code


def _recompute_offered(problem: Problem, layouts: Layouts) -> Array:
    """The stack has this kind of recompute."""
    is_kind = {"none": layouts.recompute == NONE, "full": layouts.recompute == FULL}
    is_kind["selective"] = ~is_kind["none"] & ~is_kind["full"]
    return np.any([is_kind[kind] for kind in problem.stack.recompute], axis=0)


def _recompute_message(problem: Problem, layout: Layout) -> str:
    return (
        f"stack {problem.stack.id} recomputes {', '.join(problem.stack.recompute)}, not"
        f" {layout.recompute}"
    )


_ALL_MODULES = STACK_SELECTIVE - 1  # a bit for every module (models.spec.recompute)


def _modules_offered(problem: Problem, layouts: Layouts) -> Array:
    """The stack can recompute the modules that the layout recomputes."""
    # A bit for every module that the stack cannot recompute.
    others = _ALL_MODULES & ~policy_code("selective", problem.stack.recomputable_modules)
    return (layouts.recompute & others) == 0


def _modules_message(problem: Problem, layout: Layout) -> str:
    offered = ", ".join(problem.stack.recomputable_modules)
    asked = ", ".join(layout.recompute_modules)
    return f"stack {problem.stack.id} recomputes the modules {offered}, not all of {asked}"


def _modules_exist(problem: Problem, layouts: Layouts) -> Array:
    """The model has every module that is recomputed, in some layer."""
    missing = [name for name in MODULES if not problem.has_module(name)]
    # The code of a policy has a bit for every module. With nothing missing, policy_code returns
    # STACK_SELECTIVE, which is no module: the mask removes it.
    missing_bits = policy_code("selective", missing) & _ALL_MODULES
    return (layouts.recompute & missing_bits) == 0


def _missing_modules_message(problem: Problem, layout: Layout) -> str:
    nowhere = ", ".join(name for name in layout.recompute_modules if not problem.has_module(name))
    return f"no layer of {problem.architecture.name} has {nowhere}"


def _recompute_layers_offered(problem: Problem, layouts: Layouts) -> Array:
    """A number of layers to recompute is less than the layers of a chunk, with an even split and
    activations on the device, and the stack takes such a number.

    A number of layers is meant for chunks of equal length: for unequal ones it would not say which
    share of a stage is recomputed.
    """
    chunks = layouts.pp * layouts.virtual_stages
    is_legal = layouts.recompute_layers * chunks < problem.architecture.num_layers
    is_legal &= ~layouts.balanced & ~layouts.offload_activations
    return (layouts.recompute_layers == 0) | (is_legal & problem.stack.recompute_layers)


def _num_layers_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says why the layout cannot recompute this number of layers."""
    if not problem.stack.recompute_layers:
        return f"stack {problem.stack.id} recomputes all layers (0) or none"
    if layout.offload_activations:
        return (
            f"recompute_layers({layout.recompute_layers}) does not go with offload_activations; 0"
            " recomputes all layers"
        )
    if layout.balanced:
        return (
            f"recompute_layers({layout.recompute_layers}) needs an even split (balanced: false); 0"
            " recomputes all layers"
        )
    chunk = problem.architecture.num_layers // (layout.pp * layout.virtual_stages)
    return (
        f"recompute_layers({layout.recompute_layers}) must be less than the {chunk} layers of a"
        " chunk; 0 is all of them"
    )


def _offload_offered(problem: Problem, layouts: Layouts) -> Array:
    """The stack offloads the activations, or the optimizer, that the layout offloads, beside its
    kind of recompute and with this optimizer."""
    # Some stacks offload activations only without recompute (`offload_alone`), and others only what
    # full recompute keeps.
    goes_with_recompute = (layouts.recompute == NONE) | (not problem.stack.offload_alone)
    goes_with_recompute &= (layouts.recompute == FULL) | (not problem.stack.offloads_checkpoints)
    can_offload_activations = "activations" in problem.stack.offload and (
        problem.stack.offloads_recurrences or not problem.architecture.recurrences
    )
    activations_ok = ~layouts.offload_activations | (can_offload_activations & goes_with_recompute)
    can_offload_optimizer = "optimizer" in problem.stack.offload and _host_runs_optimizer(problem)
    return activations_ok & (~layouts.offload_optimizer | can_offload_optimizer)


def _host_runs_optimizer(problem: Problem) -> bool:
    """Say whether the optimizer may run on the host, which is too slow for Muon's matrix
    products."""
    optimizer = problem.workload.optimizer
    if optimizer == "muon":
        return False
    # Some stacks have a host version of Adam alone.
    return "adam" in optimizer or not problem.stack.offloads_adam_alone


def _offload_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says what the stack offloads, and under which conditions."""
    offered = f"stack {problem.stack.id} offloads {', '.join(problem.stack.offload) or 'nothing'}"
    if problem.stack.offload_alone:
        offered += ", activations without recompute only"
    if problem.stack.offloads_checkpoints:
        offered += ", activations with full recompute only"
    if problem.architecture.recurrences and not problem.stack.offloads_recurrences:
        offered += ", and nothing of state-space or linear-attention layers"
    if not _host_runs_optimizer(problem):
        offered += f", and no optimizer that is {problem.workload.optimizer}"
    return offered


def _offload_needs_sharding(problem: Problem, layouts: Layouts) -> Array:
    """Optimizer states are offloaded as the shards of ZeRO 1 to 3 only. A stack that offloads the
    activations which FSDP's checkpointing keeps does so with ZeRO 3 only.

    DeepSpeed zero/offload_config.py; Megatron-Core's CPU offload is part of its distributed
    optimizer; accelerate utils/dataclasses.py, FullyShardedDataParallelPlugin.
    """
    # checkpoint_offload_stages has the ZeRO stages of such a stack.
    of_checkpoints = layouts.offload_activations & problem.stack.offloads_checkpoints
    has_stage = is_one_of(layouts.zero_stage, problem.stack.checkpoint_offload_stages)
    return (~layouts.offload_optimizer | (layouts.zero_stage > 0)) & (~of_checkpoints | has_stage)


def _unsharded_message(problem: Problem, layout: Layout) -> str:
    """Return the sentence that says which ZeRO stages the layout's offload needs."""
    if layout.offload_optimizer and not layout.zero_stage:
        return (
            "optimizer states go to the host as the shards of ZeRO 1 to 3, which one device may"
            " have too; got zero_stage(0)"
        )
    stages = " or ".join(map(str, problem.stack.checkpoint_offload_stages))
    return (
        f"stack {problem.stack.id} offloads activations with ZeRO {stages} only; got"
        f" zero_stage({layout.zero_stage})"
    )


def _offload_blame(problem: Problem, layout: Layout) -> str:
    """Return the field of a layout that breaks _offload_needs_sharding: the optimizer's offload
    where it is on without any sharding, and else that of activations."""
    of_states = layout.offload_optimizer and not layout.zero_stage  # stage 0: nothing is sharded
    return "layout.offload_optimizer" if of_states else "layout.offload_activations"


def _offload_in_pipeline(problem: Problem, layouts: Layouts) -> Array:
    """Activations are not offloaded in a pipeline, unless the stack can do both together."""
    return ~layouts.offload_activations | (layouts.pp == 1) | (not problem.stack.offload_alone)


def _pipelined_message(problem: Problem, layout: Layout) -> str:
    return f"stack {problem.stack.id} offloads activations without a pipeline only"


MEMORY_RULES = (
    Rule("layout.recompute", _recompute_offered, _recompute_message),
    Rule("layout.recompute_modules", _modules_offered, _modules_message),
    Rule("layout.recompute_modules", _modules_exist, _missing_modules_message),
    Rule("layout.recompute_layers", _recompute_layers_offered, _num_layers_message),
    Rule("layout", _offload_offered, _offload_message),
    Rule("layout.offload_optimizer", _offload_needs_sharding, _unsharded_message, _offload_blame),
    Rule("layout.offload_activations", _offload_in_pipeline, _pipelined_message),
)
