"""Bytes on a device: parameters, gradients, optimizer states and activations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.cost.facts import coefficient_records
from models.cost.memory import layer_size
from models.cost.parts import set_shard
from models.cost.predictions import Predictions, predict
from models.cost.problem_records import policy_numbers
from models.cost.problem_records import question as asked
from models.cost.rows import ROW
from models.cost.shard import Shard
from models.cost.stages import workspace_for
from models.spec import catalogue
from models.spec.adapters import Lora
from models.spec.architecture import Architecture
from models.spec.hardware import GIB
from models.spec.layer import Layer
from models.spec.layout import Layout, Layouts
from models.spec.problem import Problem
from models.spec.recompute import NONE, policy_code
from models.spec.recurrence import Mamba2
from models.spec.switches import changed
from models.spec.workload import Workload
from tests.models.cost.examples import LAYOUTS, PROFILE, on_stack, question


def test_what_is_computed_again_is_kept_no_longer() -> None:
    """Bytes a token and hidden unit of a GPT layer (Korthikanti et al., arXiv 2205.05198, table 2
    and §4.1): 8 for the input of GeLU and 8 for its output, 2 for the output of each norm, 5as/h
    for the scores of attention."""
    gpt = catalogue.architecture("gpt-3-175b")
    problem = replace(
        question(), architecture=gpt, stack=replace(question().stack, attention_kernel="unfused")
    )
    modules = [(), ("mlp",), ("mlp_act",), ("core_attn",), ("layernorm",)]
    policies = [policy_code("selective", names) if names else NONE for names in modules]
    kept = kept_bytes(problem, policies) / (problem.workload.seq_len * gpt.hidden_size)
    scores = (
        5 * gpt.kinds[0].attention.num_attention_heads * problem.workload.seq_len / gpt.hidden_size
    )
    assert (kept[0] - kept).tolist() == pytest.approx([0, 16, 8, scores, 4])


def test_experts_that_are_computed_again_keep_the_tokens_that_others_sent() -> None:
    """Of each of Mixtral's two copies of a token, 14,336 elements of two products, and 4,096 that
    enter them where they have not come from other devices."""
    problem = question("mixtral-8x7b")
    policies = [NONE, policy_code("selective", ("grouped_mm",))]
    for ep, again in ((1, 2 * 14336 + 4096), (8, 2 * 14336)):
        none, grouped = kept_bytes(problem, policies, ep) / problem.workload.seq_len
        assert none - grouped == pytest.approx(2 * 2 * again)


def kept_bytes(problem: Problem, policies: list[int], ep: int = 1) -> np.ndarray:
    """What a layer of the first kind keeps of one sequence under each policy, on one device."""
    numbers = np.array(policies)
    q, tokens = asked(problem, numbers), float(problem.workload.seq_len)
    c = coefficient_records(PROFILE.coefficients(problem.scopes))[0]
    workspace = workspace_for(q.layers, q.policies)
    shard = Shard(tokens, tokens, 1.0, float(ep), 1.0)
    set_shard(q, np.zeros(1, ROW)[0], shard, c, workspace)
    return workspace.kept[np.searchsorted(policy_numbers(numbers), numbers), 0]


def test_sharding_more_needs_less_memory() -> None:
    problem = question()
    stages = [Layout(tp=8, dp_replicate=8, sequence_parallel=True)]
    stages += [
        Layout(tp=8, dp_shard=8, zero_stage=stage, sequence_parallel=True) for stage in (1, 2, 3)
    ]
    found = predict(problem, Layouts.of(stages), PROFILE.coefficients(problem.scopes))
    assert (np.diff(found.needed_bytes) < 0).all()


@pytest.mark.parametrize("model", ["llama-3-8b", "llama-3.2-1b", "qwen3-0.6b", "gemma-2-2b"])
def test_every_parameter_byte_is_somewhere(model: str) -> None:
    """Plain data parallelism on one device holds 2 + 4 + 12 bytes of every parameter, a tied
    embedding's once."""
    problem = question(model=model, chips=1, global_batch=1)
    found = predict(problem, Layouts.of([Layout()]), PROFILE.coefficients(problem.scopes))
    held = sum(
        found.memory[name][0] for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
    )
    assert held == pytest.approx(18 * problem.architecture.parameters.total, rel=1e-3)


def held_bytes(problem: Problem, layout: Layout) -> float:
    found = predict(problem, Layouts.of([layout]), PROFILE.coefficients(problem.scopes))
    return float(
        sum(
            found.memory[name][0]
            for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes")
        )
    )


def test_in_fp32_there_is_no_second_copy() -> None:
    """4 + 4 + 8 bytes: parameters, gradients, two moments."""
    problem = question(model="llama-3-8b", chips=1, global_batch=1, precision="fp32")
    assert held_bytes(problem, Layout()) == pytest.approx(
        16 * problem.architecture.parameters.total, rel=1e-3
    )


def test_zero_3_shards_as_much_as_its_paper_says() -> None:
    """16 bytes of a parameter (Rajbhandari et al., arXiv 1910.02054 §5.3), beside two layers that
    are gathered and one that is reduced at a time, from 16 bits into what is sent where that is
    wider; PyTorch's FSDP gathers from its fp32 parameters."""
    of_model = question(model="llama-3-8b")
    parameters = of_model.architecture.parameters
    layer = (parameters.total - parameters.embedding - parameters.lm_head) / 32
    for stack, states, reduced in (
        ("deepspeed", 16, 2),
        ("megatron", 18, 6),
        ("llm-foundry", 16, 6),
        ("fsdp", 16, 2),
        ("fms-fsdp", 14, 2),
    ):
        held = held_bytes(
            replace(of_model, stack=catalogue.stack(stack)), Layout(dp_shard=64, zero_stage=3)
        )
        assert held == pytest.approx(
            states * parameters.total / 64 + (2 * 2 + reduced) * layer, rel=1e-3
        )


def test_key_value_heads_repeat_where_tensor_parallelism_exceeds_them() -> None:
    problem = question(model="llama-3.1-70b", chips=32)
    eight, thirty_two = (held_bytes(problem, Layout(tp=tp, pp=32 // tp)) for tp in (8, 32))
    architecture = problem.architecture
    repeated = (
        18
        * 80
        * architecture.hidden_size
        * architecture.kinds[0].attention.kv_dim
        * (1 / 8 - 1 / 32)
    )
    whole = 18 * architecture.parameters.total
    assert thirty_two == pytest.approx(whole / 32 + repeated, rel=0.01)
    assert eight == pytest.approx(whole / 32, rel=0.15)


def test_a_tied_embedding_is_where_the_head_is_too() -> None:
    """Both ends of a pipeline hold it, and each reduces its gradients."""
    tied = question(model="llama-3.2-1b", chips=2, global_batch=2)
    apart = replace(tied, architecture=replace(tied.architecture, tie_word_embeddings=False))
    for layout in (Layout(pp=2), Layout(pp=2, zero_stage=1)):
        both = (
            predict(p, Layouts.of([layout]), PROFILE.coefficients(p.scopes)) for p in (tied, apart)
        )
        first, second = both
        for name in ("gradients_bytes", "optimizer_bytes"):
            assert first.memory[name][0] == second.memory[name][0]
        assert first.time["optimizer_s"][0] == pytest.approx(second.time["optimizer_s"][0])


def test_tensor_parallelism_leaves_routers_norms_and_down_projections_whole() -> None:
    """Of a sparse layer of DeepSeek-V3: 44 million dense parameters on each of eight ranks, not
    29."""
    problem = question(model="deepseek-v3")
    h = 7168
    whole = h * (1536 + 512 + 64) + 1536 + 512 + 2 * h + h * 256
    q = asked(problem, np.array([NONE]))
    one, eight = (
        layer_size(q.facts[0], q.layers[1], Shard(4096.0, 4096.0 / tp, tp, 1.0, 1.0)).dense
        for tp in (1.0, 8.0)
    )
    assert eight == pytest.approx((one - whole) / 8 + whole)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_of_offloaded_activations_two_layers_worth_stay(recompute: str) -> None:
    """Whatever a layer keeps of them: with full recompute its input, 2 bytes of each element."""
    problem = replace(question(seq_len=65536, global_batch=64), stack=catalogue.stack("maxtext"))
    layouts = [
        Layout(dp_shard=64, zero_stage=3, recompute=recompute, offload_activations=o)
        for o in (False, True)
    ]  # type: ignore[arg-type]
    c = PROFILE.coefficients(problem.scopes)
    found = predict(problem, Layouts.of(layouts), c)
    freed = -np.diff(found.memory["activations_bytes"])[0]
    assert found.host_bytes[1] == pytest.approx(freed * 80 / 78)
    if recompute == "full":
        assert found.host_bytes[1] == pytest.approx(80 * 65536 * 8192 * 2 * c.activation_memory)


def test_what_the_device_must_have_is_what_is_reserved_and_the_runtime() -> None:
    problem = question()
    found = predict(problem, Layouts.of(LAYOUTS), PROFILE.coefficients(problem.scopes))
    assert found.reserved_bytes + found.memory["context_bytes"] == pytest.approx(found.needed_bytes)
    assert found.allocated_bytes + found.memory["fragmentation_bytes"] == pytest.approx(
        found.reserved_bytes
    )


def test_eager_kernels_keep_more_than_fused_ones() -> None:
    """Of each token and layer of Llama-3-8B: two norms of 6 bytes an element, queries and keys, the
    activated gate."""
    base = question(model="llama-3-8b", chips=1, global_batch=1)
    fused, eager = (
        on_stack("torchtitan", base, fused=fused, launch="eager") for fused in (True, False)
    )
    c = PROFILE.coefficients(fused.scopes)
    kept = [
        predict(p, Layouts.of([Layout()]), c).memory["activations_bytes"][0] for p in (fused, eager)
    ]
    more = 32 * 8192 * (2 * 4096 * 6 + (4096 + 1024 * 2) * 2 + 14336 * 2)
    assert kept[1] - kept[0] == pytest.approx(more * c.activation_memory, rel=1e-3)


def test_a_loss_keeps_what_its_kernels_leave_of_the_logits() -> None:
    """6 bytes of each; under PyTorch's cross_entropy 16, which are 20 of a device's part where the
    loss is sharded."""
    base = question(model="llama-3-8b", chips=4)
    layout = Layouts.of([Layout(tp=4)])
    ways = [
        {"parallel_loss": p, "loss": f}
        for p, f in ((True, "fused"), (True, "pytorch"), (False, "pytorch"))
    ]
    problems = [on_stack("aa-scaling", base, **way) for way in ways]
    c = PROFILE.coefficients(problems[0].scopes)
    logits = [predict(p, layout, c).memory["logits_bytes"][0] for p in problems]
    assert logits[1] == pytest.approx(logits[0] * 20 / 6)
    assert logits[2] == pytest.approx(logits[0] * 4 * 16 / 6)


@pytest.mark.parametrize("stack", ["fsdp", "torchtitan", "fms-fsdp", "llm-foundry", "megatron"])
def test_gradients_are_there_when_activations_are(stack: str) -> None:
    """However few micro-batches there are."""
    problem = on_stack(stack, question(model="llama-3-8b", chips=8))
    layouts = Layouts.of([Layout(dp_shard=8, zero_stage=3, micro_batch=m) for m in (16, 8, 1)])
    held = predict(problem, layouts, PROFILE.coefficients(problem.scopes)).memory
    gradients = problem.gradient_bytes * problem.architecture.parameters.total / 8
    assert len(set(held["gradients_bytes"])) == 1
    assert held["gradients_bytes"][0] > gradients


def test_a_loss_in_parts_keeps_a_part_of_the_logits() -> None:
    base = question(model="llama-3-8b", chips=8)
    rows = Layouts.of([Layout(dp_shard=8, zero_stage=3, recompute="full", micro_batch=4)])
    problems = [on_stack("torchtitan", base, loss_chunks=chunks) for chunks in (1, 2)]
    c = PROFILE.coefficients(problems[0].scopes)
    whole, half = (predict(p, rows, c).memory["logits_bytes"][0] for p in problems)
    assert half == pytest.approx(whole / 2)


def test_recompute_by_operations_keeps_every_second_product_of_llama() -> None:
    """Bytes that a layer of Llama-3 8B keeps of a token: its input, queries, values and attention's
    output (4096, 4096, 1024 and 4096 elements), and one up-projection (14336)."""
    a_layer = 2 * (4096 + 4096 + 1024 + 4096 + 14336) * 8192
    # Beside 32 layers that keep this, one works on all that it has.
    assert 32 * a_layer < _bytes_of_another_sequence("selective") < 35 * a_layer


def test_tokens_that_scores_scale_are_kept() -> None:
    """Six experts take each of 4,096 tokens of 2048 elements in 26 of DeepSeek-V2-Lite's layers."""
    base = question(model="deepseek-v2-lite", chips=8, seq_len=4096)
    rows = Layouts.of([Layout(dp_shard=8, zero_stage=3, recompute="none")])
    for launch, size in (("compiled", 2), ("eager", 4)):
        problems = [
            on_stack("torchtitan", base, launch=launch, scaled_token_bytes=size) for size in (0, 2)
        ]
        c = PROFILE.coefficients(problems[0].scopes)
        without, kept = (predict(p, rows, c).memory["activations_bytes"][0] for p in problems)
        elements = 26 * 6 * 4096 * 2048
        assert kept - without == pytest.approx(elements * size * c.activation_memory)


def test_compiled_kernels_keep_neither_norms_nor_activated_gates() -> None:
    """A layer of Llama-3 8B keeps of a token its input, the stream between its blocks, queries,
    keys, values and attention's output, and two up-projections."""
    a_layer = 2 * (2 * 4096 + 4096 + 2 * 1024 + 4096 + 2 * 14336) * 8192
    assert _bytes_of_another_sequence("none") == pytest.approx(32 * a_layer)


def _bytes_of_another_sequence(recompute: str) -> float:
    """The activations that a second sequence of 8,192 tokens adds under compiled torchtitan, as
    they are counted before the profile's factor. Logits are few."""
    base = question(model="llama-3-8b", chips=8, seq_len=8192)
    base = replace(base, architecture=replace(base.architecture, vocab_size=1024))
    problem = on_stack("torchtitan", base, launch="compiled")
    rows = Layouts.of(
        [Layout(dp_shard=8, zero_stage=3, recompute=recompute, micro_batch=n) for n in (1, 2)]
    )
    c = PROFILE.coefficients(problem.scopes)
    one, two = predict(problem, rows, c).memory["activations_bytes"]
    return float((two - one) / c.activation_memory)


def test_a_last_stage_that_keeps_logits_has_those_of_all_micro_batches() -> None:
    """In 16 bits, a device's part of the vocabulary."""
    base = question(model="llama-3-8b", chips=16, global_batch=64)
    rows = Layouts.of(
        [Layout(pp=2, tp=2, dp_shard=4, zero_stage=2, sequence_parallel=True), Layout(dp_shard=16)]
    )
    problems = [on_stack("torchtitan", base, keeps_logits=keeps) for keeps in (False, True)]
    c = PROFILE.coefficients(problems[0].scopes)
    without, kept = (predict(p, rows, c) for p in problems)
    assert kept.memory_stage[0] == 1
    assert kept.memory["logits_bytes"][0] >= 16 * 8192 * 128256 / 2 * 2
    assert kept.allocated_bytes[1] == without.allocated_bytes[1]


def test_gathered_keys_and_values_are_whole_while_a_layer_runs() -> None:
    """And so are their gradients: 2 x 2 bytes for each of 8 x 2 x 128 elements of 131,072 tokens. A
    small vocabulary, or the logits before them would be more."""
    base = question(model="llama-3-8b", chips=16, seq_len=131072, global_batch=1)
    base = replace(base, architecture=replace(base.architecture, vocab_size=1024))
    rows = Layouts.of([Layout(cp=16, recompute="full"), Layout(dp_shard=16)])
    ways = [on_stack("axlearn", base, context=context) for context in ("ring", "allgather")]
    c = PROFILE.coefficients(ways[0].scopes)
    ring, gathered = (predict(p, rows, c).memory["activations_bytes"] for p in ways)
    assert gathered[0] - ring[0] == pytest.approx(131072 * 2048 * 4 * c.activation_memory)
    assert gathered[1] == ring[1]


def test_copies_of_weights_for_gemms_take_memory_with_fp8_only() -> None:
    """Two bytes a parameter of a layer, beside those of the one in use; none where it is itself in
    fp8."""
    rows = Layouts.of([Layout(tp=8, dp_shard=8, zero_stage=1, sequence_parallel=True)])
    held = {}
    for precision in ("bf16", "fp8"):
        for stack in ("megatron", "megatron-bridge"):
            problem = on_stack(stack, question(model="llama-3-8b", precision=precision))
            c = PROFILE.coefficients(problem.scopes)
            held[precision, stack] = predict(problem, rows, c).memory["parameters_bytes"][0]
    more = held["fp8", "megatron"] - held["bf16", "megatron"]
    layers = catalogue.architecture("llama-3-8b").parameters.total - 2 * 128256 * 4096
    assert more == pytest.approx(2 * layers / 8, rel=1e-3)
    assert held["fp8", "megatron-bridge"] == held["bf16", "megatron-bridge"]


def test_adapters_leave_parameters_and_take_the_rest() -> None:
    """Of 70 billion frozen parameters over 64 devices 2 bytes each; gradients, masters and moments
    are those of adapters."""
    problem = on_stack("torchtitan", question())
    lora = Lora(rank=16)
    tuned = replace(problem, workload=replace(problem.workload, lora=lora))
    layout = Layouts.of([Layout(dp_shard=64, zero_stage=3, recompute="full")])
    c = PROFILE.coefficients(problem.scopes)
    memory = predict(tuned, layout, c).memory
    model = problem.architecture
    adapters = model.num_layers * lora.parameters(model.layers[0], model.hidden_size)
    assert memory["gradients_bytes"][0] == pytest.approx(
        adapters / 64 * tuned.gradient_bytes, rel=1e-9
    )
    assert memory["optimizer_bytes"][0] == pytest.approx(adapters / 64 * 12, rel=1e-9)
    more = memory["parameters_bytes"] - predict(problem, layout, c).memory["parameters_bytes"]
    assert more[0] == pytest.approx(2 * model.parameters.total / 64, rel=1e-3)


@pytest.mark.parametrize("bits", [4, 8])
def test_frozen_weights_of_few_bits_take_less_memory_and_more_time(bits: int) -> None:
    problem = on_stack("torchtitan", question())
    layout = Layouts.of([Layout(dp_shard=64, zero_stage=3, recompute="full")])
    whole, few = (
        predict(
            replace(problem, workload=replace(problem.workload, lora=Lora(base_bits=of))),  # type: ignore[arg-type]
            layout,
            PROFILE.coefficients(problem.scopes),
        )
        for of in (16, bits)
    )
    assert few.needed_bytes[0] < whole.needed_bytes[0]
    assert few.step_time_s[0] > whole.step_time_s[0]


def test_a_recurrence_keeps_no_more_in_longer_sequences() -> None:
    mamba = Mamba2(
        num_heads=64, num_key_heads=8, key_head_dim=128, value_head_dim=64, conv_kernel=4
    )
    model = replace(question().architecture, layers=(Layer(recurrence=mamba, num_norms=1),) * 4)
    kept = [
        kept_bytes(question_of(model, seq_len), [NONE])[0] / seq_len for seq_len in (2048, 65536)
    ]
    columns, values = 2 * 4096 + 2 * 1024 + 64, 4096
    hidden = model.hidden_size
    # the layer's input, the norm's output, what the projection puts out, and the recurrence's
    # output before and behind its norm
    assert kept == pytest.approx([2 * (2 * hidden + columns + 2 * values)] * 2)


def question_of(model: Architecture, seq_len: int) -> Problem:
    return replace(question(seq_len=seq_len), architecture=model)


# -- what leaves the device, and what long sequences do not need, as Hugging Face's stacks have it

ZERO_3 = Layout(dp_shard=8, zero_stage=3, recompute="full")
OFFLOADED = replace(ZERO_3, offload_optimizer=True)
FLASH_AND_LIGER = {"attention_kernel": "flash3", "loss": "fused_linear"}


def on_hugging_face(model: str, seq_len: int, stack: str = "deepspeed", **fields: Any) -> Problem:
    return Problem(
        architecture=catalogue.architecture(model),
        cluster=catalogue.cluster("h200", 8),
        workload=Workload(seq_len=seq_len, global_batch=8),
        stack=changed(catalogue.stack(stack), fields),
    )


def predicted(problem: Problem, layout: Layout) -> Predictions:
    return predict(problem, Layouts.of([layout]), PROFILE.coefficients(problem.scopes))


def bytes_of(problem: Problem, layout: Layout, term: str) -> float:
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
    problem = on_hugging_face("llama-2-13b", 2048, parameters_on_host=parameters)
    total = problem.architecture.parameters.total
    per_node = 8 * float(predicted(problem, OFFLOADED).host_bytes[0])
    buffers = problem.stack.host_buffers
    estimate = estimated_host_bytes_of_zero_3(total, parameters=parameters, buffers=buffers)
    assert per_node == pytest.approx(estimate, rel=1e-3)


def test_host_memory_of_zero_2_is_what_deepspeed_estimates() -> None:
    problem = on_hugging_face("llama-2-13b", 2048)
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
    problem = on_hugging_face("llama-2-13b", 2048)
    layout = replace(ZERO_3, zero_stage=stage)
    stay, leave = (
        bytes_of(problem, replace(layout, offload_optimizer=of), "gradients_bytes")
        for of in (False, True)
    )
    shards = problem.gradient_bytes * problem.architecture.parameters.total / 8
    assert stay - leave == pytest.approx(shards, rel=1e-3)
    first = replace(layout, zero_stage=1)
    whole = bytes_of(problem, replace(first, offload_optimizer=True), "gradients_bytes")
    assert whole == bytes_of(problem, first, "gradients_bytes")


def test_parameters_on_the_host_leave_no_shards_and_are_waited_for() -> None:
    on_device, on_host = (
        on_hugging_face("llama-2-13b", 2048, parameters_on_host=of) for of in (False, True)
    )
    shards = 2 * on_device.architecture.parameters.total / 8
    saved = bytes_of(on_device, OFFLOADED, "parameters_bytes")
    saved -= bytes_of(on_host, OFFLOADED, "parameters_bytes")
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
    problem = on_hugging_face("llama-2-13b", 2048, stack="fsdp")
    total = problem.architecture.parameters.total
    host = float(predicted(problem, OFFLOADED).host_bytes[0])
    assert host == pytest.approx(16 * total / 8, rel=1e-3)


def test_a_loss_that_is_fused_with_the_head_never_has_all_logits() -> None:
    """Llama's vocabulary is 32 times its hidden size, so that logits come in 32 chunks."""
    plain = on_hugging_face("llama-3.1-8b", 131072)
    fused = on_hugging_face("llama-3.1-8b", 131072, loss="fused_linear")
    assert (plain.loss_chunks, fused.loss_chunks) == (1, 32)
    assert fused.stack.fused  # Liger's norms and activations come with its loss
    logits = 131072 * 128256
    c = PROFILE.coefficients(plain.scopes)
    assert bytes_of(plain, ZERO_3, "logits_bytes") == pytest.approx(16 * logits * c.logit_memory)
    assert bytes_of(fused, ZERO_3, "logits_bytes") <= 4 * logits / 32 * c.logit_memory


def test_a_published_run_of_256k_tokens_fits_as_it_did() -> None:
    """Llama-3 8B on 8 H200: 124.5 GiB with Liger, FlashAttention-3 and the optimizer on the host
    (stas00/ml-engineering insights/when-to-upgrade-gpus)."""
    problem = on_hugging_face("llama-3.1-8b", 262144, **FLASH_AND_LIGER)
    needed = float(predicted(problem, OFFLOADED).needed_bytes[0]) / GIB
    assert 0.7 < needed / 124.5 < 1.2  # its buffers of gathered parameters are not counted
    eager = on_hugging_face("llama-3.1-8b", 262144)
    assert float(predicted(eager, OFFLOADED).needed_bytes[0]) / GIB > 400


def test_a_tiled_mlp_holds_a_tile_and_multiplies_once_more() -> None:
    plain = on_hugging_face("llama-3.1-8b", 131072, **FLASH_AND_LIGER)
    tiled = on_hugging_face("llama-3.1-8b", 131072, **FLASH_AND_LIGER, tiled_mlp=True)
    held, of_tile = (bytes_of(one, ZERO_3, "activations_bytes") for one in (plain, tiled))
    c = PROFILE.coefficients(plain.scopes)
    widths = 3 * 14336 * 2 * 131072 * c.activation_memory  # of gate, up and their product
    assert held - of_tile == pytest.approx(widths * (1 - 1 / 32), rel=0.01)
    longer = predicted(tiled, ZERO_3).step_time_s[0] / predicted(plain, ZERO_3).step_time_s[0]
    assert 1 < longer < 1.25
