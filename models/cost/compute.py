"""Compute time of a layer and of the ends of a model on one device, for one micro-batch.

`f` are the facts of the problem and `c` the coefficients of its profile (models.cost.facts). The
*ends* of a model are its embedding and its head. A *piece* is a share of a layer's forward that
recompute may repeat by itself, such as its norms (models.spec.recompute.PIECES).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from models.columns import Array
from models.compilation.compiled import compiled
from models.cost.facts import (
    ATTENTION,
    CUT_INPUTS,
    CUT_OUTPUTS,
    DENSE,
    DENSE_ACT,
    DENSE_HALF,
    EXPERT_ACT,
    EXPERTS,
    GROUPED,
    GROUPS,
    INPUTS,
    IS_UP,
    KEYS,
    KV_OUTPUTS,
    LAST_PRODUCT,
    NORM,
    OUT_PROJECTION,
    OUTPUTS,
    ROWS_LOCAL,
    UP,
    CoefficientRecord,
    Facts,
    LayerFacts,
)
from models.cost.kernels import (
    Passes,
    add,
    attention,
    backward,
    choice_of_keys,
    gemm_efficiency,
    grouped,
    linear,
    linear_16,
    move,
    recurrence,
    scale,
)
from models.cost.shard import Shard, kv_share, routed_tokens
from models.spec.problem import Problem

OLDEST_YEARS = 3.0
"""The most years of age that slow software down. Older runs are on other chips and models, whose
effect cannot be told from that of age."""
SETTLED_YEARS = 0.5
"""Years during which software counts as new: dense runs of one layout stayed as fast for longer
than this (docs/lab/age.md)."""
_LARGEST = np.array([NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) for n in 2.0 ** np.arange(15)])
"""The mean largest of 1, 2, 4, ... normal values, in standard deviations (Blom 1958, Statistical
Estimates and Transformed Beta-Variables)."""
EAGER_NORM = 18
"""Elements of 16 bits that an RMSNorm moves for each element of its input when it runs operation by
operation: to fp32, squared, averaged, scaled, back, times its weight, 6 + 8 + 4 + 8 + 6 + 4 bytes.
One fused kernel moves 2."""
EAGER_ROTARY = 9
"""Elements that eager rotary embeddings move for each element: two products, a rotated copy and a
sum. One fused kernel moves 2."""
EAGER_GATE = 2
"""Elements that an eager gated activation moves beyond a fused one: the activated gate is written
and read again."""
RECURRENCE_LAUNCHES = 8
"""Kernels of a linear mixer's forward: its convolution, the steps over chunks (four to six in
flash-linear-attention and mamba_ssm), its norm and its gate."""
SENDING = 0.5
"""The share of a sparse layer's routing launches that send tokens to experts and back. Where CUDA
graphs replay all of a step but its experts, these launches are not among those that are replayed
(Megatron-Core captures moe_router and moe_preprocess)."""
VOCABULARY_MULTIPLE = 128
"""The columns of a rank are rounded up to a multiple of this where the vocabulary is padded
(Megatron-LM --make-vocab-size-divisible-by)."""
EXPERT_OPERATIONS = 9
"""Kernels that Python launches for an expert beside its matrix products: two to find its tokens,
one to gather them and one to gather their weights, an activation function, a product with the gate,
a product with the weights, and two to add the result to that of other experts (transformers 4.52.4
models/qwen3_moe/modeling_qwen3_moe.py, Qwen3MoeSparseMoeBlock)."""
CHOICE_LAUNCHES = 6
"""Kernels that score, choose and gather keys, or pool them."""


class LayerTime(NamedTuple):
    """Seconds of one layer, or of an end of the model, for one micro-batch.

    `backward` has input and weight gradients; `weight` is the part that weight gradients add to it,
    which zero-bubble schedules move. `attention_forward` and `attention_backward` are the part of
    forward and backward in the attention kernel. `idle_forward` and `idle_backward` are gaps within
    them in which the device waits for the host. The host takes `host` for forward and twice that
    for backward.
    """

    forward: float
    backward: float
    weight: float
    attention_forward: float
    attention_backward: float
    idle_forward: float
    idle_backward: float
    host: float


@compiled
def plain_time(forward: float, backward: float, weight: float, factor: float) -> LayerTime:
    """Return a LayerTime of these seconds, each times `factor`, for work that has no attention and
    never waits for the host."""
    return LayerTime(
        forward=forward * factor,
        backward=backward * factor,
        weight=weight * factor,
        attention_forward=0.0,
        attention_backward=0.0,
        idle_forward=0.0,
        idle_backward=0.0,
        host=0.0,
    )


@compiled
def overhead(f: Facts, c: CoefficientRecord) -> float:
    """Return the factor by which compute takes longer than its kernels. It grows with the age of
    the software, from SETTLED_YEARS to OLDEST_YEARS. Software counts as no younger than that of the
    runs on the chip's generation (`kernel_age`), since no run shows what younger software does."""
    age = min(max(f.age_years, c.kernel_age), OLDEST_YEARS)
    return c.compute_overhead * math.exp(c.ageing * max(age - SETTLED_YEARS, 0.0))


@compiled
def layer_time(
    f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord, piece_bits: int, pieces: Array
) -> LayerTime:
    """Return the time of one layer for a micro-batch.

    Write into `pieces` the forward seconds of each piece that a recompute policy may repeat. UP,
    KEYS, OUT_PROJECTION and DENSE_HALF need products of their own: they are written only where
    their bit in `piece_bits` is set.
    """
    pieces[:] = 0.0
    products = add(
        projections(f, layer, shard, c), dense_products(f, layer, shard, c, piece_bits, pieces)
    )
    core = Passes(0.0, 0.0, 0.0)  # attention itself, without its projections
    if layer.attends:
        core = attention(f, layer, c, shard.tokens, layer.num_attention_heads / shard.tp)
        pieces[ATTENTION] = core.forward
    if layer.scoring_flops > 0:  # An indexer scores keys and chooses those to attend to.
        core = add(core, choice_of_keys(f, layer, c, shard.local_tokens))
    if layer.recurs:
        # All tokens with 1/tp of the heads take as long as 1/tp of the tokens with all heads.
        products = add(products, recurrence(f, layer, c, shard.tokens / shard.tp))
    light = body_traffic(f, layer, shard, c, pieces)
    if layer.sparse:
        experts = expert_products(f, layer, shard, c)
        router = routing(f, layer, shard, c)
        products = add(add(products, experts), router)
        light += expert_traffic(f, layer, shard, c, pieces)
        # Recompute repeats the router with the exchange of tokens, which is the piece EXPERTS.
        pieces[EXPERTS] += router.forward
        pieces[GROUPED] += experts.forward
    if piece_bits >> UP & 1 and layer.mla:
        pieces[UP] = mla_up(f, layer, shard, c)
    if piece_bits >> KEYS & 1 and layer.attends:
        pieces[KEYS] = key_projection(f, layer, shard, c)
    if piece_bits >> OUT_PROJECTION & 1 and layer.attends:
        pieces[OUT_PROJECTION] = output_projection(f, layer, shard, c)
    if not layer.trains_weights:  # Frozen weights have no gradients; adapters have.
        frozen = Passes(products.forward, products.input, 0.0)
        products = add(frozen, adapter_products(f, layer, shard, c))
    return time_beside_host(
        f=f, layer=layer, shard=shard, c=c, products=products, core=core, light=light, pieces=pieces
    )


@compiled
def adapter_products(f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord) -> Passes:
    """Return the time of the products of a layer's adapters, which run in 16 bits: two FLOPs for
    each trained parameter and token, in forward and for either gradient."""
    if layer.adapters == 0:
        return Passes(0.0, 0.0, 0.0)
    flops = 2.0 * shard.tokens * layer.trained_dense / shard.tp
    # While the search has not decided ep and etp (num_experts is 0), a lower bound is returned.
    if layer.sparse and layer.num_experts > 0:
        expert_parameters = layer.trained_expert / layer.num_experts
        flops += 2.0 * routed_tokens(layer, shard) * expert_parameters / shard.etp
    seconds = flops / (f.flops_16 * c.gemm_16)
    return Passes(seconds, seconds, seconds)


@compiled
def time_beside_host(
    f: Facts,
    layer: LayerFacts,
    shard: Shard,
    c: CoefficientRecord,
    products: Passes,
    core: Passes,
    light: float,
    pieces: Array,
) -> LayerTime:
    """Return the time of a layer, of which each pass takes no less than the host needs to launch
    it. Its kernels are `products`, attention (`core`), and memory-bound work of `light` seconds in
    forward and twice that in backward. `pieces` are scaled in place by the overhead of compute."""
    factor = overhead(f, c)
    host = host_seconds(f, layer, shard, c)
    device_forward = products.forward + core.forward + light
    device_backward = backward(products) + backward(core) + 2 * light
    forward = slower_of(device_forward, host)
    back = slower_of(device_backward, 2 * host)  # Backward has two products for one of forward.
    # Weight gradients hide the host's time too. What they add to backward is therefore the time by
    # which it is longer with them than without.
    without_weights = slower_of(device_backward - products.weight, 2 * host)
    for piece in range(len(pieces)):
        pieces[piece] *= factor
    # Frozen layers below all that is trained have no backward.
    factor_back = factor if layer.has_backward else 0.0
    return LayerTime(
        forward=forward * factor,
        backward=back * factor_back,
        weight=(back - without_weights) * factor_back,
        attention_forward=core.forward * factor,
        attention_backward=backward(core) * factor_back,
        idle_forward=(forward - device_forward) * factor,
        idle_backward=(back - device_backward) * factor_back,
        host=host * factor,
    )


@compiled
def slower_of(device: float, host: float) -> float:
    """Return the seconds of work that the device and the host do side by side: a smooth maximum,
    (device⁴ + host⁴)^¼, which exceeds the longer one where both are close."""
    device, host = device * device, host * host
    return math.sqrt(math.sqrt(device * device + host * host))


@compiled
def embedding_time(f: Facts, shard: Shard, c: CoefficientRecord) -> LayerTime:
    """Return the time of the look-up of input embeddings, and of the scatter of their gradients in
    backward. Either pass counts three accesses to memory for each element of the device's tokens.
    """
    # Weight gradients are 0.0: the scatter is not among those that a schedule may move.
    seconds = move(f, c, 3 * shard.local_tokens * f.hidden_size * f.activation_bytes)
    return plain_time(seconds, seconds if f.trains_embedding else 0.0, 0.0, overhead(f, c))


@compiled
def head_time(f: Facts, shard: Shard, c: CoefficientRecord) -> LayerTime:
    """Return the time of the output projection and of cross-entropy over fp32 logits. Every module
    of multi-token prediction adds a head and a projection; its layer is counted with the layers.
    Tensor parallelism divides the vocabulary, and the loss only where it is computed in parallel.
    """
    columns = f.vocab_size / shard.tp
    if f.pads_vocabulary:
        columns = math.ceil(columns / VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    product = linear_16(f, c, shard.tokens, f.hidden_size, columns)
    vocabulary = f.vocab_size / shard.tp if f.parallel_loss else f.vocab_size
    # Half of the traffic counts for forward, and half for backward.
    logits = move(f, c, shard.tokens * vocabulary * f.loss_traffic_bytes) * 0.5
    heads, mtp = 1 + f.mtp_layers, mtp_projection(f, shard, c)
    if not f.trains_head:
        product = Passes(product.forward, product.input, 0.0)
        mtp = Passes(mtp.forward, mtp.input, 0.0)
    return plain_time(
        heads * (product.forward + logits) + f.mtp_layers * mtp.forward,
        heads * (backward(product) + logits) + f.mtp_layers * backward(mtp),
        heads * product.weight + f.mtp_layers * mtp.weight,
        overhead(f, c),
    )


@compiled
def mtp_projection(f: Facts, shard: Shard, c: CoefficientRecord) -> Passes:
    """Return the time of the projection of a module of multi-token prediction, which joins the two
    inputs of its layer into one."""
    if f.mtp_layers == 0:
        return Passes(0.0, 0.0, 0.0)
    return linear(f, c, shard.tokens, 2 * f.hidden_size, f.hidden_size / shard.tp)


# -- matrix products


@compiled
def projections(f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord) -> Passes:
    """Return the time of all projections of a layer's mixers (attention, recurrence) on a device.
    Tensor parallelism divides heads; projections to latents are whole on every device, which
    multiplies its own tokens with them."""
    total = Passes(0.0, 0.0, 0.0)
    for index in range(layer.num_products):
        total = add(total, projection(f, layer, shard, c, index))
    return total


@compiled
def projection(
    f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord, index: int
) -> Passes:
    """Return the time of one matrix product of a mixer (attention or a recurrence) on a device.
    `index` is its row in layer.products, whose columns say how tensor parallelism cuts it."""
    matrix, tp = layer.products[index], shard.tp
    # Products to latents are done by each device for its own share of the sequence, before that is
    # gathered for the heads.
    tokens = shard.local_tokens if matrix[ROWS_LOCAL] else shard.tokens
    inputs = matrix[INPUTS] / tp if matrix[CUT_INPUTS] else matrix[INPUTS]
    outputs = matrix[OUTPUTS] / tp if matrix[CUT_OUTPUTS] else matrix[OUTPUTS]
    outputs += matrix[KV_OUTPUTS] * kv_share(layer, tp)  # more than 1 / tp with few key-value heads
    if matrix[GROUPS] == 1:
        return linear(f, c, tokens, inputs, outputs)
    # Each block of a block-diagonal matrix has its part of the inputs and of the outputs. Tensor
    # parallelism divides the blocks, of which every rank has at least one; `outputs` are those of
    # the rank's own blocks.
    groups = max(matrix[GROUPS] / tp, 1.0)
    return grouped(f, c, tokens, inputs / matrix[GROUPS], outputs / groups, groups)


@compiled
def mla_up(f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord) -> float:
    """Return the forward seconds of MLA's projections from latents up to heads, which are the piece
    UP."""
    seconds = 0.0
    for index in range(layer.num_products):
        if layer.products[index, IS_UP]:
            seconds += projection(f, layer, shard, c, index).forward
    return seconds


@compiled
def key_projection(f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord) -> float:
    """Return the forward seconds of the product that makes attention's keys, which is the piece
    KEYS. Keys are half of the elements of keys and values."""
    key_size = layer.kv_dim / 2 * kv_share(layer, shard.tp)
    return linear(f, c, shard.tokens, f.hidden_size, key_size).forward


@compiled
def output_projection(f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord) -> float:
    """Return the forward seconds of the product that takes the output of heads back to the residual
    stream, which is the piece OUT_PROJECTION."""
    values = layer.num_attention_heads * layer.v_head_dim / shard.tp
    return linear(f, c, shard.tokens, values, f.hidden_size).forward


@compiled
def dense_products(
    f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord, piece_bits: int, pieces: Array
) -> Passes:
    """Return the time of the products of a layer's dense MLP or shared expert: up (with its gate),
    and down. Write their forward seconds into the pieces DENSE, DENSE_HALF (what a policy repeats
    that keeps every second product of a layer) and LAST_PRODUCT, without counting any twice. An MLP
    that works on tiles of tokens repeats its forward within backward."""
    if layer.dense_width == 0:
        return Passes(0.0, 0.0, 0.0)
    width = layer.dense_width / shard.tp
    up = linear(f, c, shard.tokens, f.hidden_size, width * (layer.dense_matrices - 1))
    down = linear(f, c, shard.tokens, width, f.hidden_size)
    # Backward does not need the layer's last output, so that some stacks do not compute it again.
    skipped = down.forward if layer.skips_last_product else 0.0
    repeated_down = down.forward - skipped
    if piece_bits >> DENSE_HALF & 1:  # Some policy repeats it; else the piece stays 0.
        pieces[DENSE_HALF] = every_second_product(f, layer, shard, c, repeated_down)
    pieces[LAST_PRODUCT] = skipped
    pieces[DENSE] = up.forward + repeated_down - pieces[DENSE_HALF]
    passes = add(up, down)
    if f.tiled_mlp:
        return Passes(passes.forward, passes.input + passes.forward, passes.weight)
    return passes


@compiled
def every_second_product(
    f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord, down: float
) -> float:
    """Return the forward seconds of those products of an MLP that are the second, fourth and so on
    of their layer. A policy that keeps every second product (alternate_mm) repeats these. `down` is
    the seconds of the MLP's last product, or 0 where it is not repeated."""
    # An MLP has gate, up and down, or up and down. They come after MLA's five products, where the
    # first and third are even ones of the layer, or after attention's four, where the second is.
    up = linear(f, c, shard.tokens, f.hidden_size, layer.dense_width / shard.tp).forward
    if layer.mla:
        return up + down if layer.gated else up
    return up if layer.gated else down


@compiled
def expert_products(f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord) -> Passes:
    """Return the time of a device's routed experts as grouped products, each over an equal share of
    the tokens, times the load of the busiest device over the mean (`skew`)."""
    # To bound layouts whose ep and etp are not decided yet, the search sets num_experts to 0.
    if layer.num_experts == 0:
        return least_expert_products(f, layer, shard, c)
    local_experts = layer.num_experts / shard.ep
    tokens = routed_tokens(layer, shard) / local_experts
    width = layer.expert_width / shard.etp
    up_width = width * (layer.expert_matrices - 1)  # up, and gate if there is one, at once
    up = grouped(f, c, tokens, layer.expert_input, up_width, local_experts)
    down = grouped(f, c, tokens, width, layer.expert_input, local_experts)
    return scale(add(up, down), skew(f, layer, c, shard.ep))


@compiled
def routing(f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord) -> Passes:
    """Return the time of the product that scores experts for each token, in 16 bits. It is 0 while
    the search has not decided ep and etp (`num_experts` is 0) and needs a lower bound."""
    if layer.num_experts == 0:
        return Passes(0.0, 0.0, 0.0)
    return linear_16(f, c, shard.local_tokens, f.hidden_size, layer.num_experts)


@compiled
def least_expert_products(
    f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord
) -> Passes:
    """Return a lower bound of the time of routed experts that holds for all degrees of ep and etp:
    their FLOPs at the rate of the largest products. The weights of a whole expert count, because a
    rank of an etp group has a slice of each, and multiplies it by the tokens of the whole group
    (routed_tokens); ep moves tokens between devices, and leaves their mean number."""
    weights = layer.expert_matrices * layer.expert_width * layer.expert_input
    flops = 2.0 * shard.local_tokens * layer.experts_per_token * weights
    seconds = flops / (f.gemm_flops * gemm_efficiency(f, c))
    return Passes(seconds, seconds, seconds)


@compiled
def skew(f: Facts, layer: LayerFacts, c: CoefficientRecord, ep: float) -> float:
    """Return the tokens of the busiest device's experts over those of the mean device. Under a
    capacity factor every device is padded to that many; forced balance makes it 1."""
    if f.capacity_factor > 0:
        return f.capacity_factor
    if not f.natural_routing:
        return 1.0
    return 1 + c.imbalance * busiest_deviations(layer.num_experts, ep)


@compiled
def busiest_deviations(num_experts: float, ep: float) -> float:
    """Return how far the share of tokens of the busiest of ep devices is expected to lie above the
    mean, in standard deviations of one expert's share. A device's share is the mean over its E/ep
    experts, whose shares are taken to be normal and independent."""
    return expected_maximum(ep) * math.sqrt(ep / num_experts)


@compiled
def expected_maximum(count: float) -> float:
    """Return the expected largest of `count` normal values, in standard deviations above their
    mean, since a step waits for the rank with most work. It is interpolated between powers of two,
    and stays the same above 2^14 values."""
    doublings = min(math.log2(count), len(_LARGEST) - 1.0)
    below = min(int(doublings), len(_LARGEST) - 2)
    fraction = doublings - below
    return _LARGEST[below] + fraction * (_LARGEST[below + 1] - _LARGEST[below])


def implied_imbalance(problem: Problem, ep: int, measured: float) -> float | None:
    """Return the coefficient `imbalance` (the relative deviation of one expert's share of tokens)
    that a measured imbalance implies. The measured one is the excess of the busiest of ep devices
    over the mean, as a share of the mean. Return None where all experts are on one device or
    balance is forced, since such runs do not show how tokens choose experts. Diagnoses of runs
    predict with the result, to see what part of a residual the imbalance explains."""
    moe = next((kind.moe for kind in problem.architecture.kinds if kind.moe), None)
    if moe is None or ep == 1 or problem.workload.routing != "natural":
        return None
    return measured / busiest_deviations(float(moe.num_experts), float(ep))


# -- memory-bound work


@compiled
def body_traffic(
    f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord, pieces: Array
) -> float:
    """Return the forward seconds of memory-bound work outside experts: norms, residuals, rotary
    embeddings, the dense activation function, casts and the rest. Write those of norms and of the
    activation function into `pieces`."""
    tp, stream = shard.tp, shard.local_tokens * f.hidden_size
    # Without fused kernels, only gated (Llama-like) layers run operation by operation.
    eager = layer.gated and not f.fused
    # Bytes of norms, with the casts of what they put out. A fused norm, as fused rotary embeddings
    # below, reads and writes each element once.
    per_element = EAGER_NORM if eager and not f.fused_norm else 2
    norms = stream * per_element * layer.num_norms * f.activation_bytes
    norms += layer.blocks * f.hidden_size * input_cast_bytes(f, shard)
    # Elements of the rest outside the MLP. A sum or a product reads two and writes one.
    heads = layer.num_attention_heads / tp + layer.num_key_value_heads * kv_share(layer, tp)
    rotary = (EAGER_ROTARY if eager else 2) * shard.tokens * heads * layer.head_dim
    residuals = stream * 3 * layer.blocks * f.residual_streams
    mixers = shard.tokens * (layer.recurrence_light + 3 * layer.gate + layer.adapter_elements) / tp
    values = shard.tokens * layer.num_attention_heads * layer.v_head_dim / tp
    rest = (residuals + rotary + mixers) * f.activation_bytes + values * f.cast_bytes
    rest += converted_bytes(f, layer, shard)
    rest += layer.dense_parameters / tp * f.weight_cast_bytes
    # The activation function reads what all matrices but the last put out, and writes its result.
    width = shard.tokens * layer.dense_width / tp
    accesses = layer.dense_matrices + (EAGER_GATE if eager else 0)
    activation = width * accesses * f.activation_bytes + width * f.cast_bytes
    pieces[NORM] = elementwise(f, c, norms)
    pieces[DENSE_ACT] = elementwise(f, c, activation)
    return elementwise(f, c, norms + rest + activation)


@compiled
def expert_traffic(
    f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord, pieces: Array
) -> float:
    """Return the forward seconds of memory-bound work of experts: activation functions and biases,
    and sorting tokens by expert and back. Write them into the pieces EXPERT_ACT, EXPERTS and
    GROUPED."""
    routed, width = routed_tokens(layer, shard), layer.expert_width / shard.etp
    # The activation function reads what all matrices but the last put out, and writes its result.
    act = routed * width * layer.expert_matrices * f.activation_bytes
    act += routed * width * f.cast_bytes
    act += routed * layer.expert_adapter_elements / shard.etp * f.activation_bytes
    if layer.expert_bias:
        outputs = width * (layer.expert_matrices - 1) + layer.expert_input
        act += routed * outputs * f.activation_bytes * c.bias_traffic
    # Software of earlier years sorts tokens more slowly.
    older = math.exp(c.routing_ageing * min(f.age_years, OLDEST_YEARS))
    # Elements are read and written on the way to experts, and again on the way back.
    sorting = 4 * routed * layer.expert_input * c.routing_traffic * older * f.activation_bytes
    sorting += routed * layer.expert_input * f.cast_bytes
    pieces[EXPERT_ACT] = elementwise(f, c, act)
    # The half on the way to experts is repeated with the grouped products, unless tokens come from
    # other devices. While ep is not decided (num_experts is 0), a lower bound repeats none of it.
    sorted_in = 0.5 if shard.ep == 1 and layer.num_experts > 0 else 0.0
    pieces[EXPERTS] = elementwise(f, c, sorting * (1 - sorted_in))
    pieces[GROUPED] = elementwise(f, c, sorting * sorted_in)
    return elementwise(f, c, act + sorting)


@compiled
def elementwise(f: Facts, c: CoefficientRecord, size: float) -> float:
    return move(f, c, size * c.elementwise_traffic)


@compiled
def converted_bytes(f: Facts, layer: LayerFacts, shard: Shard) -> float:
    """Return the bytes moved in one pass to convert frozen weights stored in few bits (as QLoRA
    does) to the format that they are multiplied in; 0 for other weights."""
    if f.base_bytes >= f.parameter_bytes:
        return 0.0
    weights = layer.dense_parameters / shard.tp
    # While the search has not decided ep and etp, num_experts is 0 and a lower bound is returned.
    if layer.num_experts > 0:
        weights += layer.expert_parameters / (shard.ep * shard.etp)
    # Stored weights are read; converted ones are written, and read again by the product.
    return weights * (f.base_bytes + 2 * f.activation_bytes)


@compiled
def input_cast_bytes(f: Facts, shard: Shard) -> float:
    """Return the bytes that a device moves in its memory to cast the input of a block to the GEMM
    format, for each element of the hidden size. Sequence parallelism gathers the input before or
    after the cast; without it the kernel that writes the input casts it."""
    if shard.tokens == shard.local_tokens:
        return shard.tokens * f.cast_bytes
    # Gathered, then cast. With scales of rows the gathered rows are read once more: no kernel of
    # this device wrote them and could have cast them then.
    if f.tensor_gather_bytes >= f.activation_bytes:
        read = shard.tokens * f.activation_bytes if f.scales_rows else 0.0
        return shard.tokens * f.cast_bytes + read
    # Cast, then gathered: a device casts its own tokens and transposes all.
    own = shard.local_tokens * (f.activation_bytes + f.gemm_bytes)
    return own + shard.tokens * 2 * f.gemm_bytes


# -- launches


@compiled
def host_seconds(f: Facts, layer: LayerFacts, shard: Shard, c: CoefficientRecord) -> float:
    """Return the seconds that the host takes to launch a layer's forward.

    It launches projections, attention and element-wise kernels, and routing and dispatch where the
    layer is sparse. Experts add a few launches for all at once, a few for every local expert from a
    loop in C++, or every operation of every local expert from a loop in Python. Where CUDA graphs
    replay all of a step but its experts, only these and their dispatch are launched.
    """
    # A product in a low format has a conversion of each operand before it.
    per_product = 3.0 if f.gemm_bytes < 2 else 1.0
    experts = 0.0
    if layer.sparse and f.experts_in_python:
        launches = EXPERT_OPERATIONS + layer.expert_matrices * per_product
        experts = layer.num_experts / shard.ep * launches * c.launch_s
    elif layer.sparse:
        experts = 1.0 if f.experts_at_once else layer.num_experts / shard.ep
        experts *= 2 * per_product * c.expert_launch_s  # up, with its gate, and down
    # Software of earlier years launches more slowly.
    older = math.exp(c.launch_ageing * min(f.age_years, OLDEST_YEARS))
    if f.partly_captured:
        # SENDING is the share of routing's launches that send tokens to experts and back.
        sent = c.routing_launches * SENDING if layer.sparse else 0.0
        return (sent * c.launch_s + experts) * older
    products = layer.num_products + (2 if layer.dense_width > 0 else 0)  # dense up and down
    count = products * per_product
    count += 2 if layer.attends else 0
    count += CHOICE_LAUNCHES if layer.chooses_keys else 0
    count += 3 * layer.adapters  # the products down and up, and the sum with the frozen product
    count += RECURRENCE_LAUNCHES if layer.recurs else 0
    # Norms, and then the other element-wise work; eager software has a kernel for each operation.
    count += layer.num_norms * (1 if f.fused else 3) + (4 if f.fused else 10)
    if layer.sparse:
        count += c.routing_launches
    return (count * c.launch_s + experts) * older
