"""A problem: model, workload, cluster and software, which is everything but the layout.

A *scope* says for which problems a term of a profile holds, such as one chip or one stack. A
*fleet* is the machines of one deployment, whose runs are reported (models.spec.profile).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from models.errors import Invalid
from models.spec import catalogue
from models.spec.architecture import Architecture
from models.spec.encoder import Encoder
from models.spec.flops import encoder_flops, head_forward_flops, layer_forward_flops, model_flops
from models.spec.hardware import Chip, Cluster
from models.spec.identity import cached_by_identity
from models.spec.moments import mean_moment_bytes
from models.spec.profile import FLEET
from models.spec.recompute import policy_code, recomputed
from models.spec.stack import VENDORS, Stack
from models.spec.workload import Workload

_KEPT_MODULES = 1024  # answers for all models together: a model has one for each module


def _wrong_vendor_rule(stack: Stack, chip: Chip) -> str:
    """Return the rule that a stack breaks on a chip of another vendor, in words. It names the
    vendors that the stack runs on, and the stacks that run on the chip."""
    stacks = dict.fromkeys(catalogue.stacks().values())  # each once, not again by its aliases
    able = [other.id for other in stacks if not other.vendors or chip.vendor in other.vendors]
    rule = f"runs on chips of {', '.join(stack.vendors)}, not on {chip.id} ({chip.vendor})"
    return f"{rule}, on which {', '.join(able)} run"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The question that layouts answer: what to train, on which chips, with which software. Raise
    Invalid where its parts do not go together.

    Properties that end in `_bytes` are bytes of one element, unless they say otherwise.
    """

    architecture: Architecture
    cluster: Cluster
    workload: Workload
    stack: Stack

    def __post_init__(self) -> None:
        chip = self.cluster.chip
        stack = self.stack
        precision = self.workload.precision
        # Nothing is refused for vendors of whose software nothing is known.
        is_known_vendor = chip.vendor in VENDORS
        if stack.vendors and is_known_vendor and chip.vendor not in stack.vendors:
            raise Invalid("stack", stack.id, _wrong_vendor_rule(stack, chip))
        if is_known_vendor:
            reason = stack.missing_kernel_reason(chip.generation, chip.vendor)
            if reason:
                raise Invalid("stack.attention_kernel", self.attention_kernel, reason)
        if precision == "mxfp8" and not {"fp4", "fp6"} & chip.peak_tflops.keys():
            rule = (
                "needs matrix units that scale by blocks, which come with fp4 or fp6, and"
                f" {chip.id} has neither"
            )
            raise Invalid("workload.precision", precision, rule)
        if precision == "nvfp4" and is_known_vendor and chip.vendor != "nvidia":
            tensor_cores = "is a format of NVIDIA's tensor cores"
            rule = f"{tensor_cores}, which {chip.id} ({chip.vendor}) does not have"
            raise Invalid("workload.precision", precision, rule)
        if self.architecture.encoder:
            self._check_encoder(self.architecture.encoder)
        lora = self.workload.lora
        if lora is not None and not self.adapter_parameters:
            targets = ", ".join(lora.targets)
            if lora.modules:
                rule = f"must name a matrix of {targets} that the model has"
                raise Invalid("workload.lora.modules", list(lora.modules), rule)
            rule = f"trains nothing: the model has no matrices of {targets}"
            raise Invalid("workload.lora.targets", list(lora.targets), rule)

    def _check_encoder(self, encoder: Encoder) -> None:
        """Raise Invalid where the encoder's tokens do not fit into a sequence, or where its
        projector is trained beside adapters."""
        seq_len = self.workload.seq_len
        for name in ("tokens_per_sequence", "tokens_per_image"):
            tokens = getattr(encoder, name)
            if tokens > seq_len:
                rule = f"must be at most workload.seq_len = {seq_len}, whose tokens they are among"
                raise Invalid(f"model.encoder.{name}", tokens, rule)
        if self.workload.lora and encoder.projector_trained:
            name = "trained" if encoder.trained else "projector_trained"
            rule = "must be false beside workload.lora, which trains adapters and nothing else"
            raise Invalid(f"model.encoder.{name}", True, rule)

    @cached_property
    def attention_kernel(self) -> str:
        """The attention kernel that the stack runs on the chip."""
        return self.stack.kernel_on(self.cluster.chip.generation)

    @property
    def launch(self) -> str:
        """The way in which kernels are launched: "eager", "compiled", or "graph" where a step is
        replayed as a CUDA graph."""
        return "graph" if self.is_captured else self.stack.launch

    @property
    def routing(self) -> str:
        """The kernels that send tokens to experts: "padded" where every expert has a fixed number
        of tokens, which spares the host waiting for their counts; otherwise "fused" (few kernels)
        or "separate" (a kernel for every operation)."""
        if self.workload.capacity_factor is not None or self.stack.static_experts:
            return "padded"
        return "fused" if self.stack.fused_routing else "separate"

    @property
    def scaled_token_bytes(self) -> float:
        """Bytes that are kept for backward of each element of a token that a routing score
        multiplies in fp32; 0 where backward needs none. Eager kernels keep the fp32 input of the
        product. Compiled code may keep the 16-bit values that it was cast from."""
        compiled_bytes = self.stack.scaled_token_bytes
        return 4.0 if compiled_bytes and self.launch == "eager" else compiled_bytes

    @property
    def rematerialises(self) -> bool:
        """True where a compiler has backward compute anew what norms and activation functions put
        out, within the kernels that read it (PyTorch torch/_functorch/partitioners.py,
        min_cut_rematerialization_partition)."""
        return self.launch == "compiled"

    @property
    def is_captured(self) -> bool:
        """True where a step is captured once and replayed as a graph on the device, which leaves no
        gaps between kernels."""
        return self.architecture.is_moe and self.stack.moe_graphs == "full"

    @property
    def is_partly_captured(self) -> bool:
        """True where a whole step is captured as a graph but for the experts."""
        return self.architecture.is_moe and self.stack.moe_graphs == "partial"

    @property
    def loss_chunks(self) -> int:
        """The number of parts of a micro-batch for which head and loss run one after the other, so
        that only one part's logits are in memory. Where one kernel computes head and loss, a part
        is so small that its logits take no more memory than the input of the head (liger_kernel
        ops/fused_linear_cross_entropy.py: chunks of tokens by the ratio of vocabulary to hidden
        size)."""
        model, chunks = self.architecture, self.stack.loss_chunks
        if self.stack.loss != "fused_linear":
            return chunks
        return max(chunks, math.ceil(model.head_outputs / model.hidden_size))

    @property
    def pads_products(self) -> bool:
        """True where compiled code pads products until rows of matrices are whole vectors."""
        return self.stack.pads == "products" and self.launch != "eager"

    @property
    def max_virtual_stages(self) -> int:
        """The most chunks of the model that a device may hold. Some stacks have no virtual stages
        for hybrid models (with Mamba-2 layers, or a mixer or network alone in a layer), which they
        run with other code."""
        holds_several = self.stack.interleaves_hybrids or not self.architecture.is_hybrid
        return self.stack.max_virtual_stages if holds_several else 1

    @property
    def overlaps_tensor(self) -> bool:
        """True where tensor-parallel traffic runs beside compute."""
        return (
            self.stack.overlap_tensor
            and self.workload.precision not in self.stack.overlap_tensor_not_in
        )

    @property
    def overlaps_experts(self) -> bool:
        """True where all-to-alls of experts may run beside compute of another micro-batch."""
        # Frameworks run hybrid models with other code, which may lack the overlap.
        has_code = self.stack.overlap_expert_of_hybrids or not self.architecture.is_hybrid
        return self.stack.overlap_expert and has_code

    @property
    def materialises_scores(self) -> bool:
        """True where the attention kernel writes the scores of all pairs of tokens to memory."""
        return self.attention_kernel in ("unfused", "fused_softmax")

    @property
    def parameter_bytes(self) -> float:
        """The bytes of a parameter as layers use it, beside any fp32 master copy."""
        return self.workload.number_format.activation_bytes

    @property
    def operand_bytes(self) -> float:
        """The bytes of the fp8 or fp4 copies of a parameter that GEMMs read and that stay in memory
        beside the parameter; 0 where none stay."""
        gemm_bytes = self.workload.number_format.gemm_bytes
        # Forward reads one copy, laid out like the parameter, and backward a transposed one.
        return 2 * gemm_bytes if self.stack.keeps_operands and gemm_bytes < 2 else 0.0

    @property
    def scales_rows(self) -> bool:
        """True where every row of an operand in fp8 has a scale of its own."""
        return self.workload.precision == "fp8" and self.stack.fp8_scaling == "rowwise"

    @property
    def tensor_gather_bytes(self) -> float:
        """Under sequence parallelism, the bytes of each element of a product's input that tensor
        parallelism gathers."""
        number_format = self.workload.number_format
        # Some stacks cast an input before they gather it, but never with a scale for each row.
        is_cast_before = self.workload.precision in self.stack.tensor_gathers_in
        if is_cast_before and not self.scales_rows:
            return min(number_format.gemm_bytes, number_format.activation_bytes)
        return number_format.activation_bytes

    @property
    def cast_bytes(self) -> float:
        """The bytes read and written to bring an element of a product's input to the format that it
        is multiplied in, both as it is and transposed.

        One pass does it where both casts have the same scale. Scales of rows and of columns differ:
        then one pass writes the cast of rows and a transposed copy, and a second pass casts that
        copy (torchao testing/training/roofline_utils.py, get_tensor_memory_traffic_ovhd_s).
        """
        number_format = self.workload.number_format
        wide, narrow = number_format.activation_bytes, number_format.gemm_bytes
        if narrow >= wide:
            return 0.0
        return (2 * wide if self.scales_rows else wide) + 2 * narrow

    @property
    def weight_cast_bytes(self) -> float:
        """The bytes read and written in one forward for each element of a weight that is cast with
        every use; 0 where weights are not. Forward and backward each cast it, and one of them also
        copies it transposed. A third of the sum is returned, because backward is counted as two
        forwards (models.cost.compute)."""
        # Weights are cast with every use only where each row has a scale (`scales_rows`).
        number_format = self.workload.number_format
        wide, narrow = number_format.activation_bytes, number_format.gemm_bytes
        # Two casts read wide and write narrow elements; the transposed copy reads and writes wide.
        return (4 * wide + 2 * narrow) / 3 if self.scales_rows else 0.0

    @property
    def gradient_bytes(self) -> float:
        """The bytes of an accumulated gradient."""
        return self._gradient_element_bytes(self.stack.gradient_bytes)

    @property
    def reduce_bytes(self) -> float:
        """The bytes of a gradient on the wire: those of an accumulated one unless the stack has
        others."""
        return self._gradient_element_bytes(self.stack.reduce_bytes or self.stack.gradient_bytes)

    def _gradient_element_bytes(self, stack_bytes: float) -> float:
        """Return the bytes of an element of a gradient for which the stack's format has
        `stack_bytes`: at least those of a parameter in use, the format in which backward leaves
        it."""
        parameter_bytes = self.parameter_bytes
        # Without fp32 master weights, the optimizer updates parameters in their own format, and so
        # reads gradients in that format too.
        return (
            max(stack_bytes, parameter_bytes) if self.workload.master_weights else parameter_bytes
        )

    @property
    def gradient_reduction_bytes(self) -> float:
        """The bytes of a gradient while it is reduced: the gradient that backward leaves and, where
        it is sent in a wider format, the wider copy too
        (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce)."""
        wider_copy = self.reduce_bytes if self._sends_wider_gradients else 0.0
        return self.parameter_bytes + wider_copy

    @property
    def _sends_wider_gradients(self) -> bool:
        return self.reduce_bytes > self.parameter_bytes

    @property
    def shard_copy_bytes(self) -> tuple[float, float]:
        """The bytes that copies beside the collectives of ZeRO 3 read and write for each sharded
        element: when a parameter is gathered, and when its gradient is reduced. Which copies there
        are depends on Stack.shards."""
        # A gradient is read, and written in the format in which it is sent.
        cast = self.parameter_bytes + self.reduce_bytes
        if self.stack.shards == "each":  # tensors are copied out of the gathered buffer
            return 2 * self.gather_bytes, cast
        if self.stack.shards == "flat":  # tensors are views of one, into which gradients are joined
            join = 2 * self.parameter_bytes  # each gradient is read and written
            return 0.0, join + (cast if self._sends_wider_gradients else 0.0)
        return 0.0, 0.0  # "in_place": collectives work on the tensors themselves

    @property
    def gather_bytes(self) -> float:
        """The bytes of a parameter on the wire where ZeRO 3 or a distributed optimizer gathers it:
        those of the stack's format, but no fewer than the workload's format allows."""
        # With a scale for every row, a weight is cast to fp8 with every use, after it is gathered.
        if self.scales_rows:
            return self.parameter_bytes
        # A stack with 0 gathers in the format of GEMMs, the least that a workload allows.
        return max(self.stack.gather_bytes, self.workload.number_format.gathered_bytes)

    @property
    def master_bytes(self) -> float:
        """The bytes of the fp32 copy beside the parameter in use; 0 where the parameter in use is
        fp32 itself."""
        return 0.0 if self.parameter_bytes >= 4 else self.workload.optimizer_state.master_bytes

    @property
    def base_bytes(self) -> float:
        """The bytes of a parameter as it lies in memory. Frozen parameters may have fewer bits,
        with a scale for every 64 of them (QLoRA, arXiv 2305.14314 §3)."""
        lora = self.workload.lora
        if lora is None or lora.base_bits == 16:
            return self.parameter_bytes
        return lora.base_bits / 8 + 1 / 64  # a scale is one byte

    @property
    def adapter_parameters(self) -> int:
        """The number of trained parameters in adapters of all layers; 0 without adapters."""
        lora, model = self.workload.lora, self.architecture
        total = 0
        if lora is not None:
            for kind, count in zip(model.kinds, model.layers_per_kind_with_mtp, strict=True):
                total += count * lora.parameters(kind, model.hidden_size)
                total += count * lora.expert_parameters(kind, model.hidden_size)
        return total

    @property
    def trained_layer_parameters(self) -> int:
        """The number of trained parameters in layers: those of adapters, or the model's own."""
        if self.workload.lora:
            return self.adapter_parameters
        model = self.architecture
        return sum(
            count * kind.parameters(model.hidden_size)
            for kind, count in zip(model.kinds, model.layers_per_kind, strict=True)
            if kind.gradients == "weights"
        )

    @cached_property
    def moment_bytes(self) -> float:
        """The bytes of all moments of a parameter, on average over the parameters."""
        return mean_moment_bytes(self.architecture, self.workload)

    @property
    def keeps_sharded_parameters(self) -> bool:
        """True where ZeRO 3 keeps shards of the parameters in the format that layers use. Otherwise
        it keeps only shards of their fp32 copy, which frozen parameters do not have."""
        workload = self.workload
        has_frozen = workload.lora is not None or workload.trained is not None
        return self.stack.parameter_shards or has_frozen or not workload.master_weights

    def has_module(self, name: str) -> bool:
        """Say whether some layer has this module of models.spec.recompute.MODULES."""
        return _has_module(self.architecture, name)

    def effective_modules(self, modules: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of `modules` that some layer of the model has, so that policies with equal
        effect compare equal. Return all of them where no layer has any: selective recompute without
        modules would stand for the stack's own."""
        return tuple(filter(self.has_module, modules)) or modules

    @cached_property
    def forward_flops(self) -> tuple[tuple[float, ...], float]:
        """Forward FLOPs of one token through each kind of layer, and through the head. They are the
        weights by which layers are split over pipeline stages."""
        seq_len, model = self.workload.attended_length, self.architecture
        layers = (layer_forward_flops(kind, model.hidden_size, seq_len) for kind in model.kinds)
        return tuple(map(float, layers)), float(head_forward_flops(model, seq_len))

    @cached_property
    def encoder_flops(self) -> float:
        """A third of the encoder's FLOPs in a step, for one token of a sequence: its forward FLOPs
        where it is trained, and a third of them where it is frozen and has no backward. It weighs
        the encoder against layers when a pipeline is split, which goes by forward FLOPs: for
        layers, too, a third of a step."""
        encoder = self.architecture.encoder
        return encoder_flops(encoder) / 3 / self.workload.seq_len if encoder else 0.0

    @property
    def step_time_at_peak_s(self) -> float:
        """The step time in seconds if the model FLOPs ran at the peak of all chips. No layout takes
        less."""
        peak = self.cluster.chip.peak_flops(self.workload.number_format.gemm)
        return model_flops(self.architecture, self.workload) / (self.cluster.num_chips * peak)

    @property
    def experts_keep_tensor(self) -> bool:
        """True where experts are sharded over tensor parallelism like the rest of the model,
        because the stack has no other way."""
        return self.architecture.is_moe and self.stack.expert_folding == "beside_tensor"

    @property
    def density(self) -> str:
        return "sparse" if self.architecture.is_moe else "dense"

    @property
    def neighbourhood_scopes(self) -> tuple[str, ...]:
        """The kinds of runs that a run of this problem belongs to, from the widest on, such as
        ("all", "all/sparse", "stack:megatron/sparse", "fleet:h100/megatron"). A profile may say of
        each how far its runs lie from predictions (models.spec.profile.Neighbourhood)."""
        return (
            "all",
            f"all/{self.density}",
            f"stack:{self.stack.calibrated_as}/{self.density}",
            self.fleet_scopes["pair"],
        )

    @cached_property
    def scopes(self) -> tuple[str, ...]:
        """The scopes whose terms add up to the coefficients of this problem, beside those of scope
        "all", from the widest on."""
        chip = self.cluster.chip
        stack = self.stack
        return (
            f"launch:{self.launch}",
            f"steps:{'captured' if self.is_captured else 'launched'}",
            f"routing:{self.routing}",
            f"fusion:{'fused' if stack.fused else 'unfused'}",
            f"generation:{chip.generation}",
            f"kernel:{self.attention_kernel}/{chip.generation}",
            f"stack:{stack.calibrated_as}",
            f"chip:{chip.id}",
            f"fabric:{self.cluster.fabric.id}",
            *self.fleet_scopes.values(),
        )

    @property
    def fleet_scopes(self) -> dict[str, str]:
        """The scopes of the deployment that reports come from (models.calibration.fleet_effects),
        by their kind: "all" of it, its "chip", its "stack", the "pair" of both, the "model", told
        by its number of parameters, and the length of a "sequence". A sparse model has one more:
        "sparse" for all sparse models on that pair."""
        chip = self.cluster.chip.id
        stack = self.stack.calibrated_as
        scopes = {
            "all": f"{FLEET}:all",
            "chip": f"{FLEET}:chip:{chip}",
            "stack": f"{FLEET}:stack:{stack}",
            "pair": f"{FLEET}:{chip}/{stack}",
            "model": f"{FLEET}:model:{self.architecture.parameters.total}",
            "sequence": f"{FLEET}:sequence:{self.workload.seq_len}",
        }
        if self.architecture.is_moe:
            scopes["sparse"] = f"{FLEET}:{chip}/{stack}/sparse"
        return scopes


@cached_by_identity(_KEPT_MODULES)
def _has_module(architecture: Architecture, name: str) -> bool:
    """Say whether some layer of the model has this module, such as "moe_act", so that selective
    recompute of the module would repeat any work."""
    policy = policy_code("selective", [name])
    return any(recomputed(policy, layer).pieces for layer in architecture.kinds)


def number_by_problem(problems: Iterable[Problem]) -> list[int]:
    """Return a number for each problem, counted from 0 in order of appearance. Equal problems have
    the same number, so that callers can group their layouts and predict them in one call."""
    problems = list(problems)
    # Hashing a problem is slow, and the same object often comes many times: it is hashed once.
    by_identity = {id(problem): problem for problem in problems}
    number_of = dict[Problem, int]()
    numbers = {
        key: number_of.setdefault(problem, len(number_of)) for key, problem in by_identity.items()
    }
    return [numbers[id(problem)] for problem in problems]
