"""Micro-benchmarks (collectives and matrix products): stored beside what the models predict of
them, and learnt from.

An *offset* is how far the machine lies from published machines in one coefficient of the cost
model. *Published* coefficients are those of published runs alone. A *problem* is a question with
all its names resolved: its cluster is that of the benchmark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any

import numpy as np

from models.calibration.microbenchmarks import (
    MAX_OFFSET,
    CollectiveTimings,
    GemmTimings,
    coefficients_with_offsets,
    collective_offsets,
    collective_seconds,
    gemm_offsets,
    gemm_seconds,
    published_collective_seconds,
    remaining_slowdown,
)
from models.calibration.observation import Observation
from models.columns import Array
from models.errors import Invalid
from models.spec import catalogue
from models.spec.hardware import Chip
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Coefficients, Profile, priors
from models.spec.workload import Precision
from service.formats.logs.devices import printed_devices
from service.formats.tables import nccl_tests
from service.formats.tables.nccl_tests_output import Output, read_output
from service.identifiers import new_id
from service.json_pointers import relocate_errors
from service.learning.withdrawals import (
    current_document,
    end_own_version,
    may_withdraw,
    withdrawal_etag,
)
from service.resolve.profiles import active_profile
from service.resolve.resolution import Resolver
from service.runtime.admission import IsDisconnected
from service.runtime.idempotency import CreatedResource, SaveRows
from service.runtime.text_process import TextProcess
from service.schemas.benchmark import (
    BenchmarkAnswer,
    BenchmarkPoint,
    BenchmarkQuery,
    BenchmarkSubmission,
)
from service.schemas.prediction import ProfileUsed
from service.schemas.question import Question
from service.schemas.stored import read_stored
from service.store import Rows, Store, UseCase
from service.store.cursors import cut_page, read_cursor
from service.store.tables import BenchmarkRow

_MOST_SPEEDUP = 2.2
"""A collective may be this many times faster than the links allow. A switch that reduces (SHARP,
NVLS) halves what an all-reduce sends over its links."""
_PLACEHOLDER_MODEL = "llama-3-8b"
"""A question needs a model, though collectives and matrix products belong to none."""


class Benchmarks(UseCase):
    def __init__(self, store: Store, texts: TextProcess) -> None:
        super().__init__(store)
        self._texts = texts

    async def read_output(
        self, submission: BenchmarkSubmission, is_disconnected: IsDisconnected
    ) -> Output | None:
        """Returns the table in the output of nccl-tests; None where the submission has no output.
        Long output is read once it is the tenant's turn."""
        text = submission.nccl_tests
        if text is None:
            return None
        return await self._texts.read(is_disconnected, self._store.tenant, read_output, text)

    @relocate_errors("workload.precision", "precision")
    def prepare(
        self, submission: BenchmarkSubmission, received: str, output: Output | None
    ) -> SaveRows:
        """Compares a benchmark with the cost model, and returns the function that stores it.
        `received` is the request's text; `output` is what nccl-tests printed, or None for matrix
        products."""
        table = None
        if output is not None:
            table = nccl_tests.table_of(output, submission.operation)
        with self._store.reading() as rows:
            profile = active_profile(rows)
            question = _question_of_cluster(rows, submission, table)
            resolved = Resolver(rows).resolve(question)
        problem = resolved.problem
        published = priors().coefficients(problem.scopes)
        if table is None:
            compared = _compare_gemms(problem, submission, published)
        else:
            compared = _compare_collective(problem, table, published)
        errors = [abs(point.predicted_s / point.measured_s - 1) for point in compared.points]
        now = datetime.now(UTC)
        answer = BenchmarkAnswer(
            id=new_id(),
            created_at=now,
            measured_at=submission.measured_at or now,
            source=submission.source,
            kind="gemm" if table is None else "collective",
            operation=None if table is None else table.operation,
            chip=problem.cluster.chip.id,
            num_chips=problem.cluster.num_chips,
            profile=ProfileUsed(id=profile.id, version=profile.version),
            points=compared.points,
            unread=0 if table is None else table.unread,
            median_abs_error=median(errors),
            offsets=compared.offsets,
        )
        return lambda rows: _save(rows, answer, resolved.request, problem, received)

    def get(self, id_: str) -> tuple[dict[str, Any], str]:
        """Returns the benchmark with its submission, and its ETag."""
        with self._store.reading() as rows:
            row = rows.benchmarks.get(id_)
            return {**current_document(row), "submission": row.submission}, withdrawal_etag(row)

    def withdraw(self, id_: str, etags: Sequence[str]) -> tuple[dict[str, Any], str]:
        """Withdraws a benchmark for good, if its ETag is among `etags`. Returns it with its new
        ETag. A benchmark that is withdrawn already stays unchanged, whatever `etags` are."""
        with self._store.writing() as rows:
            row = rows.benchmarks.get_for_update(id_)
            if may_withdraw(row, etags):
                row.withdrawn_at = datetime.now(UTC)
                rows.audit.add("benchmark.withdrawn", id_, of_tenant=row.tenant)
                end_own_version(rows, row)
        return current_document(row), withdrawal_etag(row)

    def page(self, query: BenchmarkQuery) -> dict[str, Any]:
        """Returns a page of benchmarks without their points, newest first, and the cursor of the
        next page."""
        before = read_cursor("benchmarks", query.cursor)
        with self._store.reading() as rows:
            # One more than the page has shows whether the list goes on.
            benchmarks = rows.benchmarks.newest(
                query.limit + 1, before, include_withdrawn=query.include_withdrawn
            )
        page, following = cut_page("benchmarks", benchmarks, query.limit, lambda row: row.id)
        items = [
            {name: value for name, value in current_document(row).items() if name != "points"}
            for row in page
        ]
        return {"items": items, "next": following}


def benchmark_observation(resolver: Resolver, row: BenchmarkRow, profile: Profile) -> Observation:
    """Returns the benchmark as an observation for a calibration of this profile. Raises DomainError
    where the catalogue no longer has its chip, fabric or stack."""
    problem = resolver.resolve(read_stored(Question, row.question)).problem
    coefficients = coefficients_with_offsets(
        profile.coefficients(problem.scopes), row.document["offsets"]
    )
    # The benchmarks of a tenant are a source apart from its runs, whose errors they do not share.
    source = f"{row.tenant or row.document['source'] or ''}/benchmarks"
    # A benchmark runs no layout. One with all degrees 1 stands in, and decides nothing here.
    return Observation(
        key=row.id, problem=problem, layout=Layout(), coefficients=coefficients, source=source
    )


def _question_of_cluster(
    rows: Rows, submission: BenchmarkSubmission, table: nccl_tests.Table | None
) -> Question:
    """Returns a question with the cluster of the benchmark and a placeholder for the model, so that
    its hardware is resolved as that of any question. For matrix products the cluster has one chip.
    For a collective it has the chips of the request, or else of the preset, or else one for each
    rank in `table`."""
    cluster = submission.cluster
    precision = submission.precision
    ranks = 1 if table is None else table.ranks
    chip, _, size = Resolver(rows).cluster_parts(cluster)
    if table is not None:
        precision = _any_precision(chip.value)
    says_no_size = cluster.num_chips is None and cluster.torus_shape is None
    if table is None or (says_no_size and ranks):  # output may not tell its ranks: None
        num_chips = size.num_chips if table is not None and size.num_chips else ranks
        cluster = cluster.model_copy(
            update={"num_chips": num_chips, "torus_shape": None, "chips_per_domain": None}
        )
    return Question.model_validate(
        {
            "model": _PLACEHOLDER_MODEL,
            "cluster": cluster,
            # Of the workload only the precision matters to a benchmark.
            "workload": {"seq_len": 4096, "global_batch": 1, "precision": precision},
            "stack": submission.stack,
        }
    )


def _any_precision(chip: Chip) -> Precision:
    """Returns a number format in which the chip multiplies matrices. A question needs one, though a
    collective does not depend on it."""
    for precision in ("bf16", "fp16", "fp32"):
        if precision in chip.peak_tflops:
            return precision
    return "bf16"


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The measured points beside the model's predictions. `offsets` has, by coefficient, how far
    the machine lies from published machines (models.calibration.microbenchmarks)."""

    points: list[BenchmarkPoint]
    offsets: dict[str, float]


def _compare_collective(
    problem: Problem, table: nccl_tests.Table, published: Coefficients
) -> _Comparison:
    """Compares the measured times of a collective with predicted times. Raises Invalid for times
    that no machine makes."""
    timings = _collective_timings(problem, table)
    machine_offsets = collective_offsets(timings, published)
    _require_possible(
        machine_offsets, remaining_slowdown(timings, machine_offsets, published), "nccl_tests"
    )
    columns = (
        timings.sizes,
        timings.seconds,
        collective_seconds(timings, published),
        published_collective_seconds(timings, published),
    )
    points = [
        BenchmarkPoint(
            what=f"{int(size)}",
            bytes=int(size),
            measured_s=measured_s,
            predicted_s=predicted_s,
            # NaN: nothing is published for this size.
            published_s=None if np.isnan(published_s) else published_s,
        )
        for size, measured_s, predicted_s, published_s in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
    return _Comparison(points, machine_offsets)


def _collective_timings(problem: Problem, table: nccl_tests.Table) -> CollectiveTimings:
    """Returns the table's times as arrays, by message size. Raises Invalid where the cluster of the
    request cannot have printed the table: it has another chip, another number of devices, or only
    one."""
    devices = problem.cluster.num_devices
    if devices < 2:
        rule = "must be more than one for a collective"
        raise Invalid("cluster.num_chips", problem.cluster.num_chips, rule)
    _require_named_chip(problem, table)
    if table.ranks is not None and table.ranks != devices:
        rule = f"has {devices} devices, and the output is of {table.ranks} ranks"
        raise Invalid("cluster.num_chips", problem.cluster.num_chips, rule)
    return CollectiveTimings(
        problem, table.operation, np.array(table.sizes), np.array(table.seconds)
    )


def _require_named_chip(problem: Problem, table: nccl_tests.Table) -> None:
    """Raises Invalid if the output lists devices of another chip than the cluster's, as far as
    their names tell."""
    chip = problem.cluster.chip
    chips_by_id = {candidate.id: candidate for candidate in (chip, *catalogue.chips().values())}
    # A chip that the request describes may be called anything, such as "our-asic". Only a chip that
    # is called like the device that drivers print, such as "NVIDIA H100", can be compared.
    if not any(chip in device.matching([chip]) for device in printed_devices(chip.name)):
        return
    for printed in table.devices:
        for device in printed_devices(printed):
            if chip not in device.matching(chips_by_id.values()):
                raise Invalid("cluster", None, f"has {chip.id}, and the output lists {printed}")


def _require_possible(machine_offsets: dict[str, float], times_longer: float, field: str) -> None:
    """Raises Invalid for measurements that no machine makes, in this field of the request. The
    measured time is too long where an offset is at its limit. It is too short where `times_longer`,
    which is predicted over measured time with the offsets applied, is far above 1."""
    hardware, suspect = {
        "nccl_tests": ("the links of the cluster", "cluster"),
        "gemms": ("the chip", "unit"),
    }[field]
    refused = {
        name: "slower" for name, offset in machine_offsets.items() if abs(offset) >= MAX_OFFSET
    }
    if times_longer > _MOST_SPEEDUP:
        refused = dict.fromkeys(machine_offsets, "faster")
    for name, direction in refused.items():
        rule = (
            f"is so much {direction} than {hardware} would have it that no {name} explains it;"
            f" check the {suspect}"
        )
        raise Invalid(field, None, rule)


def _compare_gemms(
    problem: Problem, submission: BenchmarkSubmission, published: Coefficients
) -> _Comparison:
    """Compares matrix products with the cost model. Products of one number format share the chip's
    peak rate, and are predicted together. The points are in the order of the submission. Raises
    Invalid for rates that no machine reaches."""
    positions_by_format: defaultdict[Precision, list[int]] = defaultdict(list)
    for position, gemm in enumerate(submission.gemms or []):
        positions_by_format[gemm.dtype or submission.precision].append(position)
    products: list[GemmTimings] = []
    points: dict[int, BenchmarkPoint] = {}
    for dtype, positions in positions_by_format.items():
        timings = _gemm_timings(problem, submission, dtype, positions)
        products.append(timings)
        compared = _gemm_points(timings, dtype, gemm_seconds(timings, published))
        points |= zip(positions, compared, strict=True)
    machine_offsets = gemm_offsets(products, published)
    times_longer = max(
        remaining_slowdown(timings, machine_offsets, published) for timings in products
    )
    _require_possible(machine_offsets, times_longer, "gemms")
    return _Comparison([points[position] for position in sorted(points)], machine_offsets)


def _gemm_timings(
    problem: Problem, submission: BenchmarkSubmission, dtype: Precision, positions: list[int]
) -> GemmTimings:
    """Returns the dimensions and seconds of the products at these positions of the submission, all
    in one number format. Raises Invalid for a rate above the chip's peak."""
    gemms = [(submission.gemms or [])[position] for position in positions]
    field = "precision" if gemms[0].dtype is None else f"gemms[{positions[0]}].dtype"
    with relocate_errors("workload.precision", field):  # errors name the field that the user gave
        problem = replace(problem, workload=replace(problem.workload, precision=dtype))
        peak = problem.cluster.peak_flops(problem.workload.number_format.gemm) / 1e12
    m, n, k = (np.array([float(getattr(gemm, dim)) for gemm in gemms]) for dim in ("m", "n", "k"))
    tflops = np.array([gemm.tflops for gemm in gemms])
    for index in np.flatnonzero(tflops > peak):
        rule = f"is above the {peak:g} TFLOP/s of the data sheet in {dtype}; check the unit"
        raise Invalid(f"gemms[{positions[index]}].tflops", float(tflops[index]), rule)
    # A product takes m * n * k multiplications and as many additions.
    return GemmTimings(problem, m, n, k, 2 * m * n * k / (tflops * 1e12))


def _gemm_points(
    products: GemmTimings, dtype: Precision, predicted_seconds: Array
) -> list[BenchmarkPoint]:
    """Returns the measured and the predicted seconds of each matrix product, as the answer shows
    them."""
    columns = products.m, products.n, products.k, products.seconds, predicted_seconds
    return [
        BenchmarkPoint(
            what=f"{int(m)} x {int(n)} x {int(k)}",
            m=int(m),
            n=int(n),
            k=int(k),
            dtype=dtype,
            measured_s=measured_s,
            predicted_s=predicted_s,
        )
        for m, n, k, measured_s, predicted_s in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


def _save(
    rows: Rows, answer: BenchmarkAnswer, question: dict[str, Any], problem: Problem, received: str
) -> CreatedResource:
    """Stores the benchmark. `question` is the request with all names resolved, `received` its text
    as it was sent."""
    stored = rows.benchmarks.add(
        {
            "chip": problem.cluster.chip.id,
            "stack": problem.stack.id,
            "submission": received,
            "question": question,
            "document": answer.model_dump(mode="json"),
        }
    )
    return CreatedResource(f"/v1/benchmarks/{stored['id']}", stored["document"])
