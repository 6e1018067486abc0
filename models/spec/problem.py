"""A problem: what to train, on what, with which software. Everything but the layout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from models.errors import Invalid
from models.spec.architecture import Architecture, Layer
from models.spec.flops import head_forward_flops, layer_forward_flops, model_flops
from models.spec.hardware import Cluster
from models.spec.profile import FLEET
from models.spec.recompute import STACK_SELECTIVE, Recomputed, policy_code, recomputed
from models.spec.stack import VENDORS, Stack
from models.spec.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Problem:
    architecture: Architecture
    cluster: Cluster
    workload: Workload
    stack: Stack

    def __post_init__(self) -> None:
        vendor, stack = self.cluster.chip.vendor, self.stack
        if stack.vendors and vendor in VENDORS and vendor not in stack.vendors:
            rule = (
                f"runs on chips of {', '.join(stack.vendors)}, not on {self.cluster.chip.id}"
                f" ({vendor})"
            )
            raise Invalid("stack", stack.id, rule)
        chip, precision = self.cluster.chip, self.workload.precision
        if vendor in VENDORS and (lacking := stack.missing_kernel_reason(chip.generation, vendor)):
            raise Invalid("stack.attention_kernel", self.kernel, lacking)
        if precision == "mxfp8" and not {"fp4", "fp6"} & chip.peak_tflops.keys():
            rule = (
                "needs matrix units that scale by blocks, which come with fp4 or fp6, and"
                f" {chip.id} has neither"
            )
            raise Invalid("workload.precision", precision, rule)
        if precision == "nvfp4" and vendor in VENDORS and vendor != "nvidia":
            rule = f"is a format of NVIDIA's tensor cores, which {chip.id} ({vendor}) does not have"
            raise Invalid("workload.precision", precision, rule)

    @cached_property
    def kernel(self) -> str:
        return self.stack.kernel_on(self.cluster.chip.generation)

    @property
    def launch(self) -> str:
        """What submits kernels: "eager", "compiled" or "graph"."""
        return "graph" if self.is_captured else self.stack.launch

    @property
    def is_captured(self) -> bool:
        """Whether a step is replayed as one graph of the device's own, without the gaps that
        launches leave."""
        return self.architecture.is_moe and self.stack.captures_experts

    @property
    def overlaps_tensor(self) -> bool:
        """Whether tensor-parallel traffic runs beside compute."""
        return (
            self.stack.overlap_tensor
            and self.workload.precision not in self.stack.overlap_tensor_not_in
        )

    @property
    def materialises_scores(self) -> bool:
        """Whether the attention kernel writes the scores of all pairs of tokens to memory."""
        return self.kernel in ("unfused", "fused_softmax")

    @property
    def parameter_bytes(self) -> float:
        """An element of a parameter in use."""
        return self.workload.number_format.activation_bytes

    @property
    def operand_bytes(self) -> float:
        """Copies of a parameter of a layer that GEMMs read, beside the one in use."""
        number = self.workload.number_format
        return 2 * number.gemm_bytes if self.stack.keeps_operands and number.gemm_bytes < 2 else 0.0

    @property
    def gradient_bytes(self) -> float:
        """An element of the accumulated gradient, in memory and on the wire."""
        return max(self.stack.gradient_bytes, self.workload.number_format.activation_bytes)

    @property
    def gradient_reduction_bytes(self) -> float:
        """An element of a gradient while it is reduced: as backward leaves it, and as it is sent
        where that is wider (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py,
        foreach_reduce)."""
        return self.parameter_bytes + (
            self.gradient_bytes if self.gradient_bytes > self.parameter_bytes else 0.0
        )

    @property
    def shard_copy_bytes(self) -> tuple[float, float]:
        """Read and written for an element of what is sharded, by copies beside its collectives:
        when it is gathered, and when its gradient is reduced."""
        cast = self.parameter_bytes + self.gradient_bytes
        if self.stack.shards == "each":
            return 2 * self.gather_bytes, cast
        if self.stack.shards == "flat":
            return 0.0, 2 * self.parameter_bytes + (
                cast if self.gradient_bytes > self.parameter_bytes else 0.0
            )
        return 0.0, 0.0

    @property
    def gather_bytes(self) -> float:
        """An element of a gathered parameter on the wire."""
        return max(self.stack.gather_bytes, self.workload.number_format.gathered_bytes)

    @property
    def master_bytes(self) -> float:
        """Of an fp32 copy beside the parameter in use; where that is fp32 itself there is none."""
        return 0.0 if self.parameter_bytes >= 4 else self.workload.optimizer_state.master_bytes

    def recomputed(self, number: int, layer: Layer) -> Recomputed:
        """What of a layer a recompute policy does again."""
        number = (
            policy_code("selective", self.stack.selective[0])
            if number == STACK_SELECTIVE
            else number
        )
        skips_last = self.skips_last_product(layer)
        unsent_share = 0.0 if not skips_last or layer.moe else 0.5 if layer.parallel else 0.25
        return replace(recomputed(number, layer), skips_last=skips_last, unsent_share=unsent_share)

    def skips_last_product(self, layer: Layer) -> bool:
        """Whether recompute leaves out the down-projection of a layer's dense MLP or shared expert:
        only a residual sum follows, no norm or gate whose backward would need it."""
        gated = layer.moe is not None and layer.moe.shared_gate
        return not (
            self.stack.recomputes_last or layer.dense is None or layer.norm_follows or gated
        )

    def has_module(self, name: str) -> bool:
        """Whether some layer has it (models.spec.recompute.MODULES)."""
        return any(
            recomputed(policy_code("selective", [name]), kind).pieces
            for kind in self.architecture.kinds
        )

    def effective_modules(self, modules: tuple[str, ...]) -> tuple[str, ...]:
        """Of modules to recompute, those that some layer has; all where none has any."""
        return tuple(filter(self.has_module, modules)) or modules

    @cached_property
    def forward_flops(self) -> tuple[tuple[float, ...], float]:
        """Of one token, by layer kind, and of the head: the weights of a stage partition."""
        architecture, seq_len = self.architecture, self.workload.seq_len
        layers = tuple(
            float(layer_forward_flops(architecture, kind, seq_len)) for kind in architecture.kinds
        )
        return layers, float(head_forward_flops(architecture, seq_len))

    @property
    def step_time_at_peak_s(self) -> float:
        """A step, were its model FLOPs done at the peak of all chips: no layout takes less."""
        peak = self.cluster.chip.peak_flops(self.workload.number_format.gemm)
        return model_flops(self.architecture, self.workload) / (self.cluster.num_chips * peak)

    @property
    def experts_keep_tensor(self) -> bool:
        """Whether experts are sharded over tensor parallelism as the rest is, since the stack knows
        no other way."""
        return self.architecture.is_moe and self.stack.expert_folding == "beside_tensor"

    @property
    def density(self) -> str:
        return "sparse" if self.architecture.is_moe else "dense"

    @property
    def neighbourhood_scopes(self) -> tuple[str, ...]:
        """Kinds of runs that this one is of, widest first (models.spec.profile.Neighbourhood)."""
        return (
            "all",
            f"all/{self.density}",
            f"stack:{self.stack.calibrated_as}/{self.density}",
            self.fleet_scopes["pair"],
        )

    @cached_property
    def scopes(self) -> tuple[str, ...]:
        """The profile scopes that apply, widest first."""
        chip, stack = self.cluster.chip, self.stack
        return (
            f"launch:{self.launch}",
            f"steps:{'captured' if self.is_captured else 'launched'}",
            f"routing:{'fused' if stack.fused_routing else 'separate'}",
            f"fusion:{'fused' if stack.fused else 'unfused'}",
            f"generation:{chip.generation}",
            f"kernel:{self.kernel}/{chip.generation}",
            f"stack:{stack.calibrated_as}",
            f"chip:{chip.id}",
            f"fabric:{self.cluster.fabric.id}",
            *self.fleet_scopes.values(),
        )

    @property
    def fleet_scopes(self) -> dict[str, str]:
        """Of the deployment that reports come from (models.calibration.fleet_effects), by what they
        are of."""
        chip, stack = self.cluster.chip.id, self.stack.calibrated_as
        return {
            "all": f"{FLEET}:all",
            "chip": f"{FLEET}:chip:{chip}",
            "stack": f"{FLEET}:stack:{stack}",
            "pair": f"{FLEET}:{chip}/{stack}",
        }


def number_by_problem(problems: Iterable[Problem]) -> list[int]:
    """A number for each, from 0 in order of appearance; equal ones have the same. What comes again
    is hashed once."""
    problems, place = list(problems), dict[Problem, int]()
    number = {
        key: place.setdefault(one, len(place))
        for key, one in {id(one): one for one in problems}.items()
    }
    return [number[id(one)] for one in problems]
