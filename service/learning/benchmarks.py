"""Micro-benchmarks beside what the models say of them."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any

import numpy as np

from models.calibration.calibrate import Observation
from models.calibration.microbenchmarks import (
    FARTHEST,
    Products,
    Sweep,
    left_over,
    offsets,
    offsets_of_products,
    product_seconds,
    published_seconds,
    sweep_seconds,
    targets,
)
from models.calibration.priors import priors
from models.columns import Array
from models.errors import Invalid
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import Coefficients, Profile
from models.spec.workload import Precision
from service.formats import nccl_tests
from service.identifiers import new_id
from service.json_pointers import instead_of
from service.resolve.profiles import active_profile
from service.resolve.resolution import Resolver
from service.runtime.idempotency import CreatedResource, SaveRows
from service.schemas.benchmark import BenchmarkAnswer, BenchmarkPoint, BenchmarkSubmission
from service.schemas.catalog import CatalogQuery
from service.schemas.prediction import ProfileUsed
from service.schemas.question import Question
from service.store import Rows, Store
from service.store.cursors import read_cursor, write_cursor
from service.store.tables import BenchmarkRow

_MODEL_OF_CHIP = re.compile(r"\b(?:G?[HBAV]\d{2,3}|MI\d{3}X?)")
_IN_SWITCHES = 2.2
"""A switch that reduces halves what an all-reduce sends over its links (SHARP, NVLS); so much
faster may one be."""
_MODEL = "llama-3-8b"
"""Collectives and products are of no model; a question needs one."""


class Benchmarks:
    def __init__(self, store: Store) -> None:
        self._store = store

    @instead_of("workload.precision", "precision")
    def take(self, submission: BenchmarkSubmission, received: str) -> SaveRows:
        table = (
            None
            if submission.nccl_tests is None
            else nccl_tests.read(submission.nccl_tests, submission.operation)
        )
        with self._store.reading() as rows:
            profile = active_profile(rows)
            question = _question(rows, submission, table)
            resolved = Resolver(rows).resolve(question)
        problem = resolved.problem
        published = priors().coefficients(problem.scopes)
        told = (
            _of_products(problem, submission, published)
            if table is None
            else _of_sweep(problem, table, published)
        )
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
            points=told.points,
            unread=0 if table is None else table.unread,
            median_abs_error=median(
                abs(point.predicted_s / point.measured_s - 1) for point in told.points
            ),
            offsets=told.offsets,
        )
        return lambda rows: _save(rows, answer, resolved.request, problem, received)

    def get(self, id_: str) -> dict[str, Any]:
        with self._store.reading() as rows:
            row = rows.benchmarks.get(id_)
            return {**row.document, "submission": row.submission}

    def page(self, query: CatalogQuery) -> dict[str, Any]:
        before = None if query.cursor is None else read_cursor("benchmarks", query.cursor)
        with self._store.reading() as rows:
            found = rows.benchmarks.newest(query.limit + 1, before)
        page = found[: query.limit]
        following = write_cursor("benchmarks", page[-1].id) if len(found) > query.limit else None
        short = [
            {name: value for name, value in row.document.items() if name != "points"}
            for row in page
        ]
        return {"items": short, "next": following}


def benchmark_observation(resolver: Resolver, row: BenchmarkRow, profile: Profile) -> Observation:
    """What a benchmark tells a calibration of this profile. Raises DomainError where it no longer
    means anything."""
    problem = resolver.resolve(Question.model_validate(row.question)).problem
    told = targets(row.document["offsets"], profile.coefficients(problem.scopes))
    source = f"{row.tenant or row.document['source'] or ''}/benchmarks"
    return Observation(
        key=row.id, problem=problem, layout=Layout(), coefficients=told, source=source
    )


def _question(
    rows: Rows, submission: BenchmarkSubmission, table: nccl_tests.Table | None
) -> Question:
    cluster = submission.cluster
    ranks = 1 if table is None else table.ranks
    if table is None or (cluster.num_chips is None and cluster.torus_shape is None and ranks):
        _, _, size = Resolver(rows).cluster_parts(cluster)
        wanted = size.num_chips if table is not None and size.num_chips else ranks
        cluster = cluster.model_copy(
            update={"num_chips": wanted, "torus_shape": None, "chips_per_domain": None}
        )
    return Question.model_validate(
        {
            "model": _MODEL,
            "cluster": cluster,
            "workload": {"seq_len": 4096, "global_batch": 1, "precision": submission.precision},
            "stack": submission.stack,
        }
    )


@dataclass(frozen=True, slots=True)
class _Told:
    """What was measured beside what the models say, and by how much the machine differs from
    published ones."""

    points: list[BenchmarkPoint]
    offsets: dict[str, float]


def _of_sweep(problem: Problem, table: nccl_tests.Table, published: Coefficients) -> _Told:
    sweep = _sweep(problem, table)
    found = offsets(sweep, published)
    _require_possible(found, left_over(sweep, found, published), "nccl_tests")
    columns = (
        sweep.sizes,
        sweep.seconds,
        sweep_seconds(sweep, published),
        published_seconds(sweep, published),
    )
    points = [
        BenchmarkPoint(
            what=f"{int(size)}",
            bytes=int(size),
            measured_s=measured,
            predicted_s=predicted,
            published_s=None if np.isnan(theirs) else theirs,
        )
        for size, measured, predicted, theirs in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
    return _Told(points, found)


def _sweep(problem: Problem, table: nccl_tests.Table) -> Sweep:
    devices = problem.cluster.num_devices
    if devices < 2:
        raise Invalid(
            "cluster.num_chips", problem.cluster.num_chips, "must be more than one for a collective"
        )
    _require_named(problem, table)
    if table.ranks is not None and table.ranks != devices:
        rule = f"has {devices} devices, and the output lists {table.ranks} ranks"
        raise Invalid("cluster.num_chips", problem.cluster.num_chips, rule)
    return Sweep(problem, table.operation, np.array(table.sizes), np.array(table.seconds))


def _require_named(problem: Problem, table: nccl_tests.Table) -> None:
    """The devices that the output lists are of the cluster's chip, as far as either name tells."""
    chip = problem.cluster.chip
    for device in table.devices:
        told = _MODEL_OF_CHIP.search(device.upper())
        mine = _MODEL_OF_CHIP.search(f"{chip.id} {chip.name}".upper())
        if told and mine and told[0] != mine[0]:
            raise Invalid("cluster", None, f"has {chip.id}, and the output lists {device}")


def _require_possible(found: dict[str, float], left: float, field: str) -> None:
    """`left`: how many times longer it would take at the best rates."""
    limits, check = {
        "nccl_tests": ("the links of the cluster", "cluster"),
        "gemms": ("the chip", "unit"),
    }[field]
    refused = {name: "slower" for name, offset in found.items() if abs(offset) >= FARTHEST}
    if left > _IN_SWITCHES:
        refused = dict.fromkeys(found, "faster")
    for name, way in refused.items():
        rule = (
            f"is so much {way} than {limits} would have it that no {name} explains it; check the"
            f" {check}"
        )
        raise Invalid(field, None, rule)


def _of_products(
    problem: Problem, submission: BenchmarkSubmission, published: Coefficients
) -> _Told:
    """Products of one format together, each in the place that it came in."""
    places, products, points = (
        defaultdict[Precision, list[int]](list),
        list[Products](),
        dict[int, BenchmarkPoint](),
    )
    for place, gemm in enumerate(submission.gemms or []):
        places[gemm.dtype or submission.precision].append(place)
    for dtype, mine in places.items():
        each = _products(problem, submission, dtype, mine)
        products.append(each)
        points |= zip(mine, _points(each, dtype, product_seconds(each, published)), strict=True)
    found = offsets_of_products(products, published)
    _require_possible(found, max(left_over(each, found, published) for each in products), "gemms")
    return _Told([points[place] for place in sorted(points)], found)


def _products(
    problem: Problem, submission: BenchmarkSubmission, dtype: Precision, places: list[int]
) -> Products:
    gemms = [(submission.gemms or [])[place] for place in places]
    field = "precision" if gemms[0].dtype is None else f"gemms[{places[0]}].dtype"
    with instead_of("workload.precision", field):
        problem = replace(problem, workload=replace(problem.workload, precision=dtype))
        peak = problem.cluster.peak_flops(problem.workload.number_format.gemm) / 1e12
    m, n, k = (np.array([float(getattr(gemm, dim)) for gemm in gemms]) for dim in ("m", "n", "k"))
    tflops = np.array([gemm.tflops for gemm in gemms])
    for index in np.flatnonzero(tflops > peak):
        rule = f"is above the {peak:g} TFLOP/s of the data sheet in {dtype}; check the unit"
        raise Invalid(f"gemms[{places[index]}].tflops", float(tflops[index]), rule)
    return Products(problem, m, n, k, 2 * m * n * k / (tflops * 1e12))


def _points(products: Products, dtype: Precision, predicted: Array) -> list[BenchmarkPoint]:
    columns = products.m, products.n, products.k, products.seconds, predicted
    return [
        BenchmarkPoint(
            what=f"{int(m)} x {int(n)} x {int(k)}",
            m=int(m),
            n=int(n),
            k=int(k),
            dtype=dtype,
            measured_s=measured,
            predicted_s=model,
        )
        for m, n, k, measured, model in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _save(
    rows: Rows, answer: BenchmarkAnswer, question: dict[str, Any], problem: Problem, received: str
) -> CreatedResource:
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
