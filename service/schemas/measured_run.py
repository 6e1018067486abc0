"""Measurements of a run, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from models.errors import Invalid
from models.spec.flops import AttentionCount
from service.schemas.cluster import Dtype, Tflops
from service.schemas.label import Labels
from service.schemas.wire import Wire

Outcome = Literal["ok", "out_of_memory", "crashed", "aborted"]
"""The outcome says how a run ended. "aborted" means that somebody stopped it early, which says
nothing of its speed."""
SpeedForm = Literal[
    "step_time_s", "tokens_per_s", "tokens_per_s_per_chip", "tflops_per_chip", "mfu"
]
Seconds = Annotated[float, Field(ge=1e-6, le=1e7)]
Rate = Annotated[float, Field(ge=1e-6, le=1e15)]
Gib = Annotated[float, Field(ge=1e-6, le=1e6)]
_MOST_MFU = 1.5  # more than 1, since a peak may be stated too low


class _Part(Wire):
    """A part of a report that is an object, of which a bare number is told the shape."""

    EXAMPLE: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _require_object(cls, value: Any) -> Any:
        """Raises ValueError, with an example, for a bare value in place of the object."""
        if isinstance(value, (str, bool, int, float, list)):
            raise ValueError(f"must be an object, such as {cls.EXAMPLE}")
        return value


class MeasuredMfu(_Part):
    """MFU in the convention of whoever measured it."""

    EXAMPLE: ClassVar[str] = '{"value": 0.41, "attention": "causal"}'

    value: Annotated[float, Field(gt=0, le=_MOST_MFU)]
    """A fraction: 0.41, not 41."""
    attention: AttentionCount
    """Attention FLOPs over causal keys, the full sequence, or not counted."""
    peak_tflops: Tflops | None = None
    """The peak of one chip; without it the dense peak of `peak_dtype`."""
    peak_dtype: Dtype | None = None
    """Without it the format of the matrix multiplications."""

    @field_validator("value", mode="before")
    @classmethod
    def _refuse_percentage(cls, value: Any) -> Any:
        """Raises ValueError, with the fraction, for an MFU that is given in percent."""
        if isinstance(value, (int, float)) and _MOST_MFU < value <= 100:
            raise ValueError(f"is a fraction: give {value / 100:g} for {value:g}%")
        return value

    @model_validator(mode="after")
    def _refuse_both_peaks(self) -> Self:
        """Raises ValueError where the peak is given in two ways."""
        if self.peak_tflops is not None and self.peak_dtype is not None:
            raise ValueError("give peak_tflops or peak_dtype, not both")
        return self


class MeasuredTflops(_Part):
    """Model TFLOP/s of a chip, recompute not counted."""

    EXAMPLE: ClassVar[str] = '{"value": 400.0, "attention": "causal"}'

    value: Tflops
    attention: AttentionCount
    """Attention FLOPs over causal keys, the full sequence, or not counted."""


class Measured(_Part):
    """The speed, in exactly one of these ways."""

    EXAMPLE: ClassVar[str] = '{"step_time_s": 2.0}'

    step_time_s: Seconds | None = None
    tokens_per_s: Rate | None = None
    """The tokens per second of the whole cluster."""
    tokens_per_s_per_chip: Rate | None = None
    tflops_per_chip: MeasuredTflops | None = None
    mfu: MeasuredMfu | None = None

    @model_validator(mode="after")
    def _require_exactly_one(self) -> Self:
        """Raises ValueError unless the speed is given in exactly one way."""
        names = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(names) != 1:
            raise ValueError(
                f"give exactly one of {', '.join(type(self).model_fields)}; got {names}"
            )
        return self


_EXAMPLES = {"tflops_per_chip": MeasuredTflops.EXAMPLE, "mfu": MeasuredMfu.EXAMPLE}
"""Examples of the forms of a speed that are objects."""


class MeasuredMemory(_Part):
    """On the fullest device, or on that of `stage`."""

    EXAMPLE: ClassVar[str] = '{"reserved_gib": 61.5}'

    allocated_gib: Gib | None = None
    """The peak of what tensors take, as torch.cuda.max_memory_allocated has it. Without
    `reserved_gib` a calibration adds what the prediction of the run has the allocator hold beyond
    it (`fragmentation_gib`)."""
    reserved_gib: Gib | None = None
    """The peak of what the framework holds for them, as torch.cuda.max_memory_reserved has it."""
    stage: Annotated[int, Field(ge=0, le=10**6)] | None = None
    """The pipeline stage, from 0."""

    @model_validator(mode="after")
    def _require_a_figure(self) -> Self:
        """Raises ValueError where no figure is given."""
        if self.allocated_gib is None and self.reserved_gib is None:
            raise ValueError("give allocated_gib or reserved_gib, or leave memory out")
        return self


class MeasuredParts(_Part):
    """Parts of a step, as a profiler measured them."""

    EXAMPLE: ClassVar[str] = '{"exposed_communication_s": 0.2}'

    exposed_communication_s: Seconds | None = None
    """Communication of a step, on the slowest stage, that no compute hides."""
    expert_imbalance: Annotated[float, Field(ge=0, le=1000)] | None = None
    """Tokens of the busiest expert-parallel rank over the mean, less 1: 0.2 is a fifth more."""

    @model_validator(mode="after")
    def _require_a_part(self) -> Self:
        """Raises ValueError where no part is given."""
        if not self.model_fields_set:
            raise ValueError("give at least one part, or leave parts out")
        return self


class Failure(_Part):
    """Where a run failed."""

    EXAMPLE: ClassVar[str] = '{"peak_gib": 79.1}'

    stage: Annotated[int, Field(ge=0, le=10**6)] | None = None
    """Pipeline stage, from 0."""
    peak_gib: Gib | None = None
    """The most that was seen on its device, before or when it failed."""


class MeasuredRun(Wire):
    """A run, with its outcome and its measurements."""

    outcome: Outcome
    measured: Measured | None = None
    """With another outcome than ok: of the steps before it failed or was stopped, if there were
    any."""
    memory: MeasuredMemory | None = None
    failure: Failure | None = None
    parts: MeasuredParts | None = None
    labels: Labels = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_speed_outside_measured(cls, value: Any) -> Any:
        """Raises Invalid for a speed outside of `measured`, with an example of where it goes."""
        if isinstance(value, Mapping):
            for name in Measured.model_fields:
                if name in value:
                    example = _EXAMPLES.get(name, "2.0")
                    rule = f'goes into measured, as in "measured": {{"{name}": {example}}}'
                    raise Invalid(name, value[name], rule)
        return value

    def require_consistent(self) -> None:
        """Raises Invalid where the outcome and the figures contradict each other."""
        if self.measured is None and self.outcome == "ok":
            raise Invalid("measured", None, "is required with outcome ok")
        if self.parts is not None and self.measured is None:
            raise Invalid("parts", None, "goes with measured")
        if self.failure is not None and self.outcome not in ("out_of_memory", "crashed"):
            raise Invalid("failure", None, "goes with outcome out_of_memory or crashed")
        self._require_room()

    def _require_room(self) -> None:
        """Raises Invalid where tensors take more memory than the framework reserved for them."""
        memory = self.memory
        if memory is None or memory.allocated_gib is None or memory.reserved_gib is None:
            return
        if memory.allocated_gib > memory.reserved_gib:
            rule = f"must not exceed memory.reserved_gib = {memory.reserved_gib:g}"
            raise Invalid("memory.allocated_gib", memory.allocated_gib, rule)
