"""Wire schemas of a workload: sequences, batch, number formats, optimizer and load balancing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, get_args

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from models.spec.adapters import MAX_RANK, BaseBits, Lora, Module, Target
from models.spec.architecture import MAX_LAYERS
from models.spec.catalogue import as_tuples
from models.spec.workload import (
    MAX_BATCH,
    MAX_CAPACITY,
    MAX_FORWARDS,
    MAX_MOMENT_RANK,
    MAX_SEQ_LEN,
    MAX_SPREAD,
    OPTIMIZERS,
    Head,
    LoadBalancing,
    Packing,
    Precision,
    Reference,
    Routing,
    Trained,
    Workload,
)
from service.schemas.wire import Wire


def _lower_of(known: Collection[str]) -> BeforeValidator:
    """Returns a validator that takes known names in capitals too. Others stay as they are written,
    for the error."""

    def lower(name: object) -> object:
        return name.lower() if isinstance(name, str) and name.lower() in known else name

    return BeforeValidator(lower)


def sequences_in(tokens: int, seq_len: int) -> int:
    """Returns the number of sequences in some tokens. Raises ValueError where it is not whole, with
    the nearest numbers of tokens that would do."""
    sequences, remainder = divmod(tokens, seq_len)
    if not remainder:
        return sequences
    near = [count * seq_len for count in (sequences, sequences + 1) if count]
    raise ValueError(
        f"must be a multiple of seq_len = {seq_len} (with packing, the packed length): the nearest"
        f" {'are' if len(near) > 1 else 'is'} {' and '.join(map(str, near))}"
    )


class PackingFields(Wire):
    """Sequences are packed with documents that attention does not cross."""

    mean_length: Annotated[float, Field(ge=1, le=MAX_SEQ_LEN)]
    """Tokens of a document on average."""
    spread: Annotated[float, Field(ge=0, le=MAX_SPREAD)] = 0.0
    """Standard deviation of the lengths over their mean. Ranks with longer documents keep the
    others waiting."""


class LoraFields(Wire):
    """Low-rank adapters are trained, and nothing else."""

    rank: Annotated[int, Field(ge=1, le=MAX_RANK)] = 16
    targets: Annotated[list[Target], Field(min_length=1, max_length=3)] = [
        "attention",
        "mlp",
        "experts",
    ]
    """The matrices that have adapters; "experts" are the routed ones."""
    modules: Annotated[list[Module], Field(max_length=7)] = []
    """The matrices that have an adapter each, by their names in transformers, as PEFT counts them.
    All matrices of the targets have one where none are named."""
    base_bits: BaseBits = 16
    """The bits of a frozen weight in memory: fewer than 16 are QLoRA."""


class TrainedFields(Wire):
    """Some of the model's own parameters are trained, and the others are frozen."""

    layers: (
        Annotated[
            list[Annotated[int, Field(ge=-MAX_LAYERS, lt=MAX_LAYERS)]], Field(max_length=MAX_LAYERS)
        ]
        | None
    ) = None
    """Numbers of the layers that are trained whole, from 0, or from -1 at the end; all of them
    where it is left out. Layers that the model does not have are of no account."""
    embedding: bool = False
    """True where the input embedding is trained, and with it a head that it is tied to."""
    head: bool = False
    """True where the output projection is trained, and with it an embedding that it is tied to."""


class ReferenceFields(Wire):
    """Forward passes without gradients, whose outputs the loss compares with those of training."""

    forwards: Annotated[float, Field(gt=0, le=MAX_FORWARDS)] = 1.0
    """The number of forwards without gradients for every sequence: 1 for DPO, 3 for KTO, which
    takes mismatched pairs through both models too."""
    own_weights: bool = True
    """True where a frozen copy of the model stays in memory and runs the forwards. False where
    adapters are switched off for them, or where the model runs them itself."""


class WorkloadFields(Wire):
    """One training step is `global_batch` sequences of `seq_len` tokens. Whoever knows the batch in
    tokens gives `global_batch_tokens` in its place."""

    model_config = ConfigDict(json_schema_extra={"required": ["seq_len"]})

    seq_len: Annotated[int, Field(ge=1, le=MAX_SEQ_LEN)]
    global_batch: Annotated[int, Field(ge=1, le=MAX_BATCH)]
    """Sequences, not tokens. Required unless `global_batch_tokens` is given."""
    global_batch_tokens: Annotated[int, Field(ge=1, le=MAX_SEQ_LEN * MAX_BATCH)] | None = Field(
        default=None, exclude=True
    )
    """The global batch in tokens, a multiple of `seq_len`. Answers have it in sequences."""
    precision: Annotated[Precision, _lower_of(get_args(Precision))] = "bf16"
    """Upper or lower case."""
    optimizer: Annotated[
        str,
        Field(max_length=60, json_schema_extra={"enum": [*OPTIMIZERS]}),
        _lower_of(OPTIMIZERS),
    ] = "adamw"
    """Upper or lower case."""
    load_balancing: LoadBalancing = "none"
    """The load balancing of experts. "global_batch_loss" needs every forward before the first
    backward."""
    routing: Routing = "natural"
    """"balanced" is forced, as benchmarks run."""
    capacity_factor: Annotated[float, Field(gt=0, le=MAX_CAPACITY)] | None = None
    """Every expert works on so many times its even share of the tokens: fewer are padded, and more
    are dropped. Without it no token is dropped."""
    token_budget: Annotated[float, Field(gt=0, le=1e18)] | None = None
    """Tokens of the whole training."""
    packing: PackingFields | None = None
    """The packing of several documents into each sequence."""
    master_weights: bool = True
    """False trains 16-bit parameters without an fp32 copy; moments have 16 bits then, unless they
    have 8. Updates may be rounded stochastically or not."""
    lora: LoraFields | None = None
    """Fine-tuning by adapters. Without it all parameters are trained, or those of `trained`."""
    trained: TrainedFields | None = None
    """The parts of the model's own parameters that are trained, where others are frozen. Beside
    `lora`, whose adapters are all that layers train, `layers` is []."""
    reference: ReferenceFields | None = None
    """The reference forwards of preference training, such as DPO. A pair of answers is two
    sequences."""
    head: Head = "vocabulary"
    """"score" is the head of a reward model: one number for a token, and no logits."""
    moment_rank: Annotated[int, Field(ge=1, le=MAX_MOMENT_RANK)] | None = None
    """The rank of projected gradients, where the optimizer keeps moments of these (GaLore,
    APOLLO)."""

    @model_validator(mode="before")
    @classmethod
    def _batch_in_sequences(cls, given: Any) -> Any:
        """Adds `global_batch` in sequences where the batch is given in tokens. Tokens that are no
        whole sequences are refused later (`_require_tokens_of_batch`)."""
        if not isinstance(given, Mapping) or given.get("global_batch") is not None:
            return given
        tokens, seq_len = given.get("global_batch_tokens"), given.get("seq_len")
        if tokens is None:
            return {**given, "global_batch": None}  # refused by `_require_batch`
        # `given` is not validated yet: 1 stands in until its wrong field is refused.
        are_usable = type(tokens) is int and type(seq_len) is int and tokens >= seq_len > 0
        return {**given, "global_batch": tokens // seq_len if are_usable else 1}

    @field_validator("global_batch", mode="before")
    @classmethod
    def _require_batch(cls, batch: Any) -> Any:
        """Raises an error that names both ways in which the batch can be given."""
        if batch is None:
            rule = "is required: give it in sequences, or global_batch_tokens in its place"
            raise PydanticCustomError("missing_batch", rule)
        return batch

    @field_validator("global_batch_tokens")
    @classmethod
    def _require_tokens_of_batch(cls, tokens: int | None, info: ValidationInfo) -> int | None:
        """Raises ValueError where the tokens are no whole sequences, or contradict
        `global_batch`."""
        # A field that is missing here is invalid, and has an error of its own.
        if tokens is None or not {"seq_len", "global_batch"} <= info.data.keys():
            return tokens
        seq_len, batch = info.data["seq_len"], info.data["global_batch"]
        sequences = sequences_in(tokens, seq_len)
        if batch != sequences:
            raise ValueError(
                f"is {sequences} sequences of seq_len = {seq_len}, and global_batch = {batch}: give"
                " one of the two"
            )
        return tokens

    @property
    def batch_field(self) -> str:
        """Returns the field in which the batch was given, in sequences or in tokens."""
        return "global_batch" if self.global_batch_tokens is None else "global_batch_tokens"

    def build(self) -> Workload:
        """Returns the workload, with each of its objects, such as `lora`, as the models' class."""
        fields = self.model_dump()
        for name, part in _PARTS.items():
            if fields[name] is not None:
                members = {member: as_tuples(value) for member, value in fields[name].items()}
                fields[name] = part(**members)
        return Workload(**fields)


_PARTS: dict[str, Callable[..., object]] = {
    "packing": Packing,
    "lora": Lora,
    "trained": Trained,
    "reference": Reference,
}
"""The fields of a workload that are objects, with their classes in the models."""
