"""Micro-benchmarks: collectives and matrix products on their own."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from models.calibration.microbenchmarks import Operation
from models.errors import Invalid
from models.spec.workload import Precision
from service.schemas.cluster import ClusterForm
from service.schemas.list_query import ListQuery
from service.schemas.prediction import ProfileUsed
from service.schemas.stack import StackForm
from service.schemas.wire import Document, Instant, Label, Page, Wire

Dim = Annotated[int, Field(ge=1, le=2**24)]


class GemmFields(Wire):
    """A product of m x k by k x n."""

    m: Dim
    n: Dim
    k: Dim
    dtype: Precision | None = None
    """Precision of this product; without it `precision`."""
    tflops: Annotated[float, Field(ge=1e-6, le=1e5)]


class BenchmarkSubmission(Wire):
    """Measurements of parts of a cluster: an nccl-tests table of all its devices (a collective that
    layouts use, or sendrecv, as pipelines do), or matrix products on one of them."""

    cluster: ClusterForm
    """The cluster that it ran on: for a collective, as many chips as took part."""
    stack: StackForm = "generic"
    """Whose predictions it should inform, besides those of every other stack."""
    nccl_tests: Annotated[str, Field(min_length=1)] | None = None
    """The output as it is, with its header: the table, whatever a launcher puts before its lines,
    or the JSON of --json. Output of a run that failed is refused."""
    operation: Operation | None = None
    """The collective of the output, where that does not name it, or names several."""
    gemms: Annotated[list[GemmFields], Field(min_length=1, max_length=1000)] | None = None
    precision: Precision = "bf16"
    """Precision of the matrix products that name no `dtype`."""
    measured_at: Instant | None = None
    source: Label | None = None

    @model_validator(mode="after")
    def _require_one_kind(self) -> Self:
        """Raises Invalid unless there is one kind of measurement, with the fields that belong to
        it."""
        if (self.nccl_tests is None) == (self.gemms is None):
            raise Invalid("nccl_tests", None, "give either nccl_tests or gemms")
        for name, needed_by in (("operation", "nccl_tests"), ("precision", "gemms")):
            if name in self.model_fields_set and getattr(self, needed_by) is None:
                raise Invalid(name, getattr(self, name), f"goes with {needed_by}")
        return self


class BenchmarkPoint(Document):
    what: str
    """Bytes of a collective, or m x n x k."""
    bytes: int | None = None
    """Size of a collective: the whole vector, as nccl-tests counts; of a send_recv what each rank
    sends."""
    m: int | None = None
    """With `n` and `k`: of a product of m x k by k x n."""
    n: int | None = None
    k: int | None = None
    dtype: Precision | None = None
    """Precision of a product."""
    measured_s: float
    predicted_s: float
    """Seconds that are predicted, on the grounds that `predicted_from` names."""
    published_s: float | None = None
    """Seconds that published benchmarks of the same collective took on such chips; null where there
    are none, as for sizes between 64 KiB and 64 MiB. `offsets` are from these, where reductions
    inside a switch, say, are not as predicted."""


PREDICTED_FROM = (
    "priors: what data sheets and published measurements say of parts alone, not the profile"
)


class BenchmarkSummary(Document):
    id: str
    created_at: AwareDatetime
    measured_at: AwareDatetime
    source: str | None
    kind: Literal["collective", "gemm"]
    operation: Operation | None
    chip: str
    num_chips: int
    profile: ProfileUsed
    """The version that was active when it came."""
    predicted_from: str = PREDICTED_FROM
    """The grounds of `predicted_s`: a profile says what parts achieve within training runs, which
    is less."""
    unread: int
    """Lines of the table that could not be read, or whose result was wrong."""
    median_abs_error: float
    """Median error of the predicted over the measured seconds, without its sign."""
    offsets: dict[str, float]
    """By coefficient, how far this machine lies from published ones, on the coefficient's unbounded
    scale; the next calibration learns them as the fleet's. Empty where no message or product is
    large or small enough to tell."""

    withdrawn_at: AwareDatetime | None = None


class BenchmarkAnswer(BenchmarkSummary):
    points: list[BenchmarkPoint]


class StoredBenchmark(BenchmarkAnswer):
    submission: str
    """The body as it was received."""


class BenchmarkQuery(ListQuery):
    """Newest first."""

    include_withdrawn: Annotated[bool, Field(strict=False)] = False


class BenchmarkPage(Page):
    items: list[BenchmarkSummary]
