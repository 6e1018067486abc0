"""What is trained on: sequences, batch, number formats, optimizer and load balancing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from models.errors import Invalid

Precision = Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"]
LoadBalancing = Literal["none", "micro_batch_loss", "global_batch_loss", "bias"]
Routing = Literal["balanced", "natural"]

MAX_SEQ_LEN = 10**8
MAX_BATCH = 10**7


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """`gemm`: the peak that linear layers run at. `gemm_bytes`: an operand element on the wire and
    in cache. `block`: the sides of an operand that kernels take are multiples of it.

    Activations, parameters in use and attention stay at 2 bytes (4 for fp32) in every recipe here.
    """

    gemm: str
    gemm_bytes: float
    activation_bytes: float
    block: int = 1

    @property
    def gathered_bytes(self) -> float:
        """An element of a parameter that is gathered as GEMMs read it: with scales by blocks,
        before it is brought to its format (Megatron-Core distributed_data_parallel.py, torchao
        float8 and mx_formats)."""
        return self.gemm_bytes if self.gemm_bytes in (1, 2) else self.activation_bytes


NUMBER_FORMATS: dict[str, NumberFormat] = {
    "fp32": NumberFormat("tf32", 4, 4),
    "fp16": NumberFormat("fp16", 2, 2),
    "bf16": NumberFormat("bf16", 2, 2),
    "fp8": NumberFormat(
        "fp8", 1, 2, 16
    ),  # Transformer Engine pytorch/utils.py, assert_dim_for_fp8_exec
    "mxfp8": NumberFormat(
        "fp8", 1 + 1 / 32, 2, 32
    ),  # one shared scale byte for 32 elements (OCP MX v1.0)
    "nvfp4": NumberFormat("fp4", 0.5 + 1 / 16, 2, 16),  # one scale byte for 16 elements
    "int8": NumberFormat("int8", 1, 2),
}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Bytes of state a parameter holds beside the parameter in use: fp32 master copy and
    moments."""

    master_bytes: float
    moment_bytes: float


OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": Optimizer(4, 8),
    "adamw_bf16_moments": Optimizer(4, 4),
    "adamw_8bit": Optimizer(4, 2),
    "adafactor": Optimizer(4, 4),  # first moment kept, second factored to almost nothing
    "muon": Optimizer(4, 4),
    "sgd_momentum": Optimizer(4, 4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training step: `global_batch` sequences of `seq_len` tokens.

    `load_balancing` matters for MoE: "global_batch_loss" is an auxiliary loss over the whole global
    batch, which needs every forward before the first backward; "micro_batch_loss", "bias"
    (auxiliary-loss-free, DeepSeek-V3 report §2.1.2) and "none" do not. `routing` "balanced" is
    forced balance, as benchmarks run; "natural" is not.
    """

    seq_len: int
    global_batch: int
    precision: Precision = "bf16"
    optimizer: str = "adamw"
    load_balancing: LoadBalancing = "none"
    routing: Routing = "natural"
    token_budget: float | None = None

    def __post_init__(self) -> None:
        _between("seq_len", self.seq_len, 1, MAX_SEQ_LEN)
        _between("global_batch", self.global_batch, 1, MAX_BATCH)
        _one_of("precision", self.precision, get_args(Precision))
        _one_of("optimizer", self.optimizer, tuple(OPTIMIZERS))
        _one_of("load_balancing", self.load_balancing, get_args(LoadBalancing))
        _one_of("routing", self.routing, get_args(Routing))
        if self.token_budget is not None and not 0 < self.token_budget < float("inf"):
            raise Invalid(
                "workload.token_budget", self.token_budget, "must be a positive number of tokens"
            )

    @property
    def number_format(self) -> NumberFormat:
        return NUMBER_FORMATS[self.precision]

    @property
    def optimizer_state(self) -> Optimizer:
        return OPTIMIZERS[self.optimizer]

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.seq_len * self.global_batch


def _between(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise Invalid(f"workload.{field}", value, f"must be between {low} and {high}")


def _one_of(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise Invalid(f"workload.{field}", value, f"must be one of {', '.join(choices)}")
