"""What leaves the device as DeepSpeed and FSDP offload it, and what long sequences do not need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from models.cost.predictions import Predictions, predict
from models.spec import catalogue
from models.spec.hardware import GIB
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.switches import changed
from models.spec.workload import Workload
from tests.models.cost.examples import PROFILE

ZERO_3 = Layout(dp_shard=8, zero_stage=3, recompute="full")
OFFLOADED = replace(ZERO_3, offload_optimizer=True)
FLASH_AND_LIGER = {"attention_kernel": "flash3", "loss": "fused_linear"}


def asked(model: str, seq_len: int, stack: str = "deepspeed", **fields: Any) -> Problem:
    return Problem(
        architecture=catalogue.architecture(model),
        cluster=catalogue.cluster("h200", 8),
        workload=Workload(seq_len=seq_len, global_batch=8),
        stack=changed(catalogue.stack(stack), fields),
    )


def predicted(problem: Problem, layout: Layout) -> Predictions:
    return predict(problem, Layouts.of([layout]), PROFILE.coefficients(problem.scopes))


def memory(problem: Problem, layout: Layout, term: str) -> float:
    return float(predicted(problem, layout).memory[term][0])


def estimated_host_bytes_of_zero_3(total: float, *, parameters: bool, buffers: float) -> float:
    """Of a node that has all devices: deepspeed 0.19.8 runtime/zero/stage3.py,
    estimate_zero3_model_states_mem_needs with cpu_offload and zero_init."""
    return total * (18 if parameters else 16) * buffers


def estimated_host_bytes_of_zero_2(total: float, *, devices: int, buffers: float) -> float:
    """deepspeed 0.19.8 runtime/zero/stage_1_and_2.py, estimate_zero2_model_states_mem_needs with
    cpu_offload. From five devices on it counts an fp32 copy of the model for each, which loading
    may need and training does not."""
    return total * max(4 * devices, 16) * buffers


@pytest.mark.parametrize("parameters", [False, True])
def test_host_memory_of_zero_3_is_what_deepspeed_estimates(parameters: bool) -> None:
    problem = asked("llama-2-13b", 2048, parameters_on_host=parameters)
    total = problem.architecture.parameters.total
    per_node = 8 * float(predicted(problem, OFFLOADED).host_bytes[0])
    buffers = problem.stack.host_buffers
    estimate = estimated_host_bytes_of_zero_3(total, parameters=parameters, buffers=buffers)
    assert per_node == pytest.approx(estimate, rel=1e-3)


def test_host_memory_of_zero_2_is_what_deepspeed_estimates() -> None:
    problem = asked("llama-2-13b", 2048)
    problem = replace(problem, cluster=catalogue.cluster("h200", 4))
    layout = replace(OFFLOADED, dp_shard=4, zero_stage=2)
    total = problem.architecture.parameters.total
    per_node = 4 * float(predicted(problem, layout).host_bytes[0])
    buffers = problem.stack.host_buffers
    estimate = estimated_host_bytes_of_zero_2(total, devices=4, buffers=buffers)
    assert per_node == pytest.approx(estimate, rel=1e-3)


def test_the_formulas_are_those_of_the_installed_deepspeed() -> None:
    stage3 = pytest.importorskip("deepspeed.runtime.zero.stage3")
    stage2 = pytest.importorskip("deepspeed.runtime.zero.stage_1_and_2")
    total, buffers = 13_000_000_000, 1.5
    for parameters in (False, True):
        host, *_ = stage3.estimate_zero3_model_states_mem_needs(
            total, 0, 8, cpu_offload=True, cpu_offload_params=parameters
        )
        assert host == estimated_host_bytes_of_zero_3(total, parameters=parameters, buffers=buffers)
    for devices in (1, 4, 8):
        host, _ = stage2.estimate_zero2_model_states_mem_needs(total, devices)
        assert host == estimated_host_bytes_of_zero_2(total, devices=devices, buffers=buffers)


@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_leave_the_device_with_the_optimizer(stage: int) -> None:
    """But for those of the layer that is reduced, and of ZeRO 1, which reduces them at the end."""
    problem = asked("llama-2-13b", 2048)
    layout = replace(ZERO_3, zero_stage=stage)
    stay, leave = (
        memory(problem, replace(layout, offload_optimizer=of), "gradients_bytes")
        for of in (False, True)
    )
    shards = problem.gradient_bytes * problem.architecture.parameters.total / 8
    assert stay - leave == pytest.approx(shards, rel=1e-3)
    first = replace(layout, zero_stage=1)
    whole = memory(problem, replace(first, offload_optimizer=True), "gradients_bytes")
    assert whole == memory(problem, first, "gradients_bytes")


def test_parameters_on_the_host_leave_no_shards_and_are_waited_for() -> None:
    on_device, on_host = (asked("llama-2-13b", 2048, parameters_on_host=of) for of in (False, True))
    shards = 2 * on_device.architecture.parameters.total / 8
    saved = memory(on_device, OFFLOADED, "parameters_bytes")
    saved -= memory(on_host, OFFLOADED, "parameters_bytes")
    assert saved == pytest.approx(shards, rel=1e-3)
    slow = {"host_gb_s": 0.5}  # so that the passes are over before the parameters have come
    c = {
        problem.stack.parameters_on_host: replace(PROFILE.coefficients(problem.scopes), **slow)
        for problem in (on_device, on_host)
    }
    waits = [
        float(predict(problem, Layouts.of([OFFLOADED]), c[of]).time["offload_s"][0])
        for of, problem in ((False, on_device), (True, on_host))
    ]
    assert waits[0] == 0
    both_passes = 2 * shards / (slow["host_gb_s"] * 1e9)
    assert 0.8 * both_passes < waits[1] < both_passes


def test_fsdp_offloads_parameters_gradients_and_states_together() -> None:
    """16 bytes of fp32 shards on the host: a parameter, its gradient and two moments."""
    problem = asked("llama-2-13b", 2048, stack="fsdp")
    total = problem.architecture.parameters.total
    host = float(predicted(problem, OFFLOADED).host_bytes[0])
    assert host == pytest.approx(16 * total / 8, rel=1e-3)


def test_a_loss_that_is_fused_with_the_head_never_has_all_logits() -> None:
    """Llama's vocabulary is 32 times its hidden size, so that logits come in 32 chunks."""
    plain = asked("llama-3.1-8b", 131072)
    fused = asked("llama-3.1-8b", 131072, loss="fused_linear")
    assert (plain.loss_chunks, fused.loss_chunks) == (1, 32)
    assert fused.stack.fused  # Liger's norms and activations come with its loss
    logits = 131072 * 128256
    c = PROFILE.coefficients(plain.scopes)
    assert memory(plain, ZERO_3, "logits_bytes") == pytest.approx(16 * logits * c.logit_memory)
    assert memory(fused, ZERO_3, "logits_bytes") <= 4 * logits / 32 * c.logit_memory


def test_a_published_run_of_256k_tokens_fits_as_it_did() -> None:
    """Llama-3 8B on 8 H200: 124.5 GiB with Liger, FlashAttention-3 and the optimizer on the host
    (stas00/ml-engineering insights/when-to-upgrade-gpus)."""
    problem = asked("llama-3.1-8b", 262144, **FLASH_AND_LIGER)
    needed = float(predicted(problem, OFFLOADED).needed_bytes[0]) / GIB
    assert 0.7 < needed / 124.5 < 1.2  # its buffers of gathered parameters are not counted
    eager = asked("llama-3.1-8b", 262144)
    assert float(predicted(eager, OFFLOADED).needed_bytes[0]) / GIB > 400


def test_a_tiled_mlp_holds_a_tile_and_multiplies_once_more() -> None:
    plain = asked("llama-3.1-8b", 131072, **FLASH_AND_LIGER)
    tiled = asked("llama-3.1-8b", 131072, **FLASH_AND_LIGER, tiled_mlp=True)
    held, of_tile = (memory(one, ZERO_3, "activations_bytes") for one in (plain, tiled))
    c = PROFILE.coefficients(plain.scopes)
    widths = 3 * 14336 * 2 * 131072 * c.activation_memory  # of gate, up and their product
    assert held - of_tile == pytest.approx(widths * (1 - 1 / 32), rel=0.01)
    longer = predicted(tiled, ZERO_3).step_time_s[0] / predicted(plain, ZERO_3).step_time_s[0]
    assert 1 < longer < 1.25
