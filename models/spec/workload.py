"""A workload: sequences, batch, number formats, optimizer and load balancing of training.

The *recipe* is all of these but the sequences and the batch. *Master weights* are fp32 copies of
16-bit parameters, which the optimizer updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from models.errors import Invalid
from models.spec.adapters import Lora

Precision = Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"]
LoadBalancing = Literal["none", "micro_batch_loss", "global_batch_loss", "bias"]
Routing = Literal["balanced", "natural"]
Head = Literal["vocabulary", "score"]

# The largest values that a request may have. They keep out numbers that no training has.
MAX_SEQ_LEN = 10**8
MAX_BATCH = 10**7
MAX_SPREAD = 10.0
MAX_CAPACITY = 100.0
MAX_FORWARDS = 16.0
MAX_MOMENT_RANK = 2**20  # no matrix has a longer side


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """The number formats of a training recipe; bytes are bytes of one element."""

    gemm: str
    """The format whose peak linear layers run at (a key of Chip.peak_tflops)."""
    gemm_bytes: float
    """The bytes of an operand of linear layers, with its share of the scales."""
    activation_bytes: float
    """The bytes of activations, parameters in use and operands of attention: 4 for fp32, and 2 in
    all other recipes here."""
    block: int = 1
    """The number that must divide the sides of operands; other operands have no kernels."""

    @property
    def gathered_bytes(self) -> float:
        """Bytes of a parameter on the wire where it is gathered in the format of GEMMs. Formats
        that scale by blocks are converted after they are gathered (Megatron-Core
        distributed_data_parallel.py, torchao float8 and mx_formats)."""
        # Formats that scale by blocks have fractions of bytes, for the scales.
        return self.gemm_bytes if self.gemm_bytes in (1, 2) else self.activation_bytes


NUMBER_FORMATS: dict[str, NumberFormat] = {
    "fp32": NumberFormat("tf32", 4, 4),
    "fp16": NumberFormat("fp16", 2, 2),
    "bf16": NumberFormat("bf16", 2, 2),
    # The block is from Transformer Engine pytorch/utils.py, assert_dim_for_fp8_exec.
    "fp8": NumberFormat("fp8", 1, 2, 16),
    # One scale byte is shared by 32 elements (OCP MX v1.0).
    "mxfp8": NumberFormat("fp8", 1 + 1 / 32, 2, 32),
    # One scale byte is shared by 16 elements.
    "nvfp4": NumberFormat("fp4", 0.5 + 1 / 16, 2, 16),
    "int8": NumberFormat("int8", 1, 2),
}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The bytes that an optimizer keeps of every parameter, beside the parameter in use."""

    master_bytes: float
    """The bytes of the fp32 master copy."""
    moment_bytes: float
    """The bytes of all moments together."""


OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": Optimizer(4, 8),
    "adamw_bf16_moments": Optimizer(4, 4),
    "adamw_8bit": Optimizer(4, 2),
    # bitsandbytes moves pages of the moments to the host where the device is full; here they stay.
    "paged_adamw": Optimizer(4, 8),
    "paged_adamw_8bit": Optimizer(4, 2),
    "lion": Optimizer(4, 4),
    "lion_8bit": Optimizer(4, 1),
    # Adafactor keeps the first moment; the second is factored to almost nothing.
    "adafactor": Optimizer(4, 4),
    "muon": Optimizer(4, 4),
    "sgd_momentum": Optimizer(4, 4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Sequences are packed with documents, and attention does not cross from one to another."""

    mean_length: float
    """Tokens of a document on average."""
    spread: float = 0.0
    """Standard deviation of the lengths over their mean."""

    def __post_init__(self) -> None:
        if not 1 <= self.mean_length <= MAX_SEQ_LEN:
            rule = f"must be between 1 and {MAX_SEQ_LEN} tokens"
            raise Invalid("workload.packing.mean_length", self.mean_length, rule)
        if not 0 <= self.spread <= MAX_SPREAD:
            rule = f"must be between 0 and {MAX_SPREAD:g}: a standard deviation over a mean"
            raise Invalid("workload.packing.spread", self.spread, rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Forward passes without gradients whose outputs a loss compares with those of training."""

    forwards: float = 1.0
    """Forward passes of every sequence: one in DPO, three in KTO, which also takes mismatched pairs
    through both models."""
    own_weights: bool = True
    """A frozen copy of the model runs them, beside the model that is trained. Where it is false,
    adapters are switched off, or the trained model runs them itself."""

    def __post_init__(self) -> None:
        if not 0 < self.forwards <= MAX_FORWARDS:
            rule = f"must be above 0 and at most {MAX_FORWARDS:g}"
            raise Invalid("workload.reference.forwards", self.forwards, rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Some of the model's own parameters are trained, and the others are frozen."""

    layers: tuple[int, ...] | None = None
    """Numbers of the layers that are trained whole, counted from 0, or from -1 at the end; None
    stands for all. Numbers beyond the depth of the model name no layer."""
    embedding: bool = False
    head: bool = False
    """The output projection is trained. It is the embedding where the two are tied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of every training step: `global_batch` sequences of `seq_len` tokens, and the
    recipe."""

    seq_len: int
    global_batch: int
    """Sequences of one step, over all devices."""
    precision: Precision = "bf16"
    optimizer: str = "adamw"
    load_balancing: LoadBalancing = "none"
    """The method that keeps the experts of a mixture busy. "global_batch_loss" is an auxiliary loss
    over the whole global batch, which needs every forward before the first backward.
    "micro_batch_loss", "bias" (without an auxiliary loss, DeepSeek-V3 §2.1.2) and "none" do not."""
    routing: Routing = "natural"
    """The distribution of tokens over experts: "natural", or forced to be equal ("balanced"), as in
    benchmarks."""
    capacity_factor: float | None = None
    """The tokens that every expert works on, as a multiple of its even share: fewer are padded, and
    more are dropped (Fedus et al., arXiv 2101.03961 §2.2). None stands for dropping none."""
    token_budget: float | None = None
    """Tokens of the whole training run; None where that is not known."""
    packing: Packing | None = None
    """The documents in a sequence. None stands for one document a sequence, or for attention that
    crosses documents."""
    master_weights: bool = True
    """The optimizer updates an fp32 copy of 16-bit parameters. Where it is false, its moments have
    16 bits too, unless they have 8; updates are rounded, stochastically or not."""
    lora: Lora | None = None
    """Adapters, which are trained in place of the model's own weights, or of those of its
    layers."""
    trained: Trained | None = None
    """The model's own parameters that are trained. None stands for all of them, or for none beside
    adapters."""
    reference: Reference | None = None
    """The forward passes that a loss needs beside the one of training. None stands for no further
    ones, as in supervised training."""
    head: Head = "vocabulary"
    """The output of the last projection for every token: a logit for each word, or one number, like
    that of a reward model."""
    moment_rank: int | None = None
    """The rank that gradients are projected to. The optimizer keeps moments of this rank for the
    matrices of layers (GaLore, arXiv 2403.03507; APOLLO, arXiv 2412.05270). None stands for no
    projection."""

    def __post_init__(self) -> None:
        _require_between("seq_len", self.seq_len, 1, MAX_SEQ_LEN)
        _require_between("global_batch", self.global_batch, 1, MAX_BATCH)
        _require_one_of("precision", self.precision, get_args(Precision))
        _require_one_of("optimizer", self.optimizer, tuple(OPTIMIZERS))
        _require_one_of("load_balancing", self.load_balancing, get_args(LoadBalancing))
        _require_one_of("routing", self.routing, get_args(Routing))
        _require_one_of("head", self.head, get_args(Head))
        if self.moment_rank is not None:
            _require_between("moment_rank", self.moment_rank, 1, MAX_MOMENT_RANK)
        # () trains no layer itself, but perhaps embedding or head; None trains all layers.
        if self.lora and self.trained and self.trained.layers != ():
            rule = "must be [] beside workload.lora, whose adapters are all that layers train"
            layers = None if self.trained.layers is None else list(self.trained.layers)
            raise Invalid("workload.trained.layers", layers, rule)
        if not self.master_weights and self.precision == "fp32":
            rule = "must be true with precision fp32, whose parameters are the fp32 copy"
            raise Invalid("workload.master_weights", False, rule)
        if self.packing:
            self._require_documents_within_sequences(self.packing)
        if self.capacity_factor is not None and not 0 < self.capacity_factor <= MAX_CAPACITY:
            rule = f"must be above 0 and at most {MAX_CAPACITY:g} times an expert's even share"
            raise Invalid("workload.capacity_factor", self.capacity_factor, rule)
        if self.token_budget is not None and not 0 < self.token_budget < float("inf"):
            rule = "must be a positive number of tokens"
            raise Invalid("workload.token_budget", self.token_budget, rule)

    def _require_documents_within_sequences(self, packing: Packing) -> None:
        """Raise Invalid where documents would be longer than a sequence, by their mean or by their
        spread. If none is longer, the mean square of lengths is at most the mean times seq_len,
        which bounds the spread."""
        if packing.mean_length > self.seq_len:
            rule = f"must be at most seq_len = {self.seq_len}: longer documents are cut"
            raise Invalid("workload.packing.mean_length", packing.mean_length, rule)
        # E[l²] = mean² · (1 + spread²) <= mean · seq_len
        most = (self.seq_len / packing.mean_length - 1) ** 0.5
        if packing.spread > most:
            rule = (
                f"must be at most {most:.3g} with mean_length = {packing.mean_length:g} and seq_len"
                f" = {self.seq_len}, beyond which no document is longer"
            )
            raise Invalid("workload.packing.spread", packing.spread, rule)

    @property
    def number_format(self) -> NumberFormat:
        return NUMBER_FORMATS[self.precision]

    @property
    def optimizer_state(self) -> Optimizer:
        """The bytes that the optimizer keeps of every parameter. Without fp32 master weights,
        moments that would be fp32 have the 16 bits of the parameters too."""
        state = OPTIMIZERS[self.optimizer]
        if self.master_weights:
            return state
        has_narrow_moments = self.optimizer.endswith(("_8bit", "_bf16_moments"))
        moment_bytes = state.moment_bytes / (1 if has_narrow_moments else 2)
        return Optimizer(master_bytes=0.0, moment_bytes=moment_bytes)

    @property
    def attended_length(self) -> float:
        """The length of a sequence without packing in which a token sees as many tokens on average
        as within the packed documents: E[l²] / E[l] for documents of l tokens. Attention is priced
        at this length."""
        if self.packing is None:
            return self.seq_len
        # E[l²] = mean² · (1 + spread²)
        length = self.packing.mean_length * (1 + self.packing.spread**2)
        return min(length, self.seq_len)

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.seq_len * self.global_batch


def _require_between(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise Invalid(f"workload.{field}", value, f"must be between {low} and {high}")


def _require_one_of(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise Invalid(f"workload.{field}", value, f"must be one of {', '.join(choices)}")
