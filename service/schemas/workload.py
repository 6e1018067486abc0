"""What is trained on: sequences, batch, number formats, optimizer and load balancing."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from models.spec.workload import (
    MAX_BATCH,
    MAX_SEQ_LEN,
    OPTIMIZERS,
    LoadBalancing,
    Precision,
    Routing,
    Workload,
)
from service.schemas.wire import Wire


def _lower(name: object) -> object:
    return name.lower() if isinstance(name, str) else name


class WorkloadFields(Wire):
    """One training step is `global_batch` sequences of `seq_len` tokens."""

    seq_len: Annotated[int, Field(ge=1, le=MAX_SEQ_LEN)]
    global_batch: Annotated[int, Field(ge=1, le=MAX_BATCH)]
    """Sequences, not tokens."""
    precision: Annotated[Precision, BeforeValidator(_lower)] = "bf16"
    """Upper or lower case."""
    optimizer: Annotated[str, Field(max_length=60, json_schema_extra={"enum": [*OPTIMIZERS]})] = (
        "adamw"
    )
    load_balancing: LoadBalancing = "none"
    """Of experts. "global_batch_loss" needs every forward before the first backward."""
    routing: Routing = "natural"
    """"balanced" is forced, as benchmarks run."""
    token_budget: Annotated[float, Field(gt=0, le=1e18)] | None = None
    """Tokens of the whole training."""

    def build(self) -> Workload:
        return Workload(**self.model_dump())
