"""Micro-benchmarks beside what the models say of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import numpy as np

from models.array import Array
from models.calibration import Observation
from models.errors import Invalid
from models.layout import Layout
from models.parts import (
    FARTHEST,
    Products,
    Sweep,
    left_over,
    offsets,
    product_seconds,
    published_seconds,
    sweep_seconds,
    targets,
)
from models.priors import priors
from models.problem import Problem
from models.profile import Coefficients, Profile
from service.creation import Created, Save
from service.cursors import read_cursor, write_cursor
from service.formats import nccl_tests
from service.identifiers import new_id
from service.pointers import instead_of
from service.profiles import active_profile
from service.resolution import Resolver
from service.schemas.benchmark import BenchmarkAnswer, BenchmarkPoint, BenchmarkSubmission
from service.schemas.catalog import CatalogQuery
from service.schemas.prediction import ProfileUsed
from service.schemas.question import Question
from service.store import Rows, Store
from service.tables import BenchmarkRow

_MODEL_OF_CHIP = re.compile(r"\b(?:G?[HBAV]\d{2,3}|MI\d{3}X?)")
_IN_SWITCHES = 2.2
"""A switch that reduces halves what an all-reduce sends over its links (SHARP, NVLS); so much faster may one be."""
_MODEL = "llama-3-8b"
"""Collectives and products are of no model; a question needs one."""


class Benchmarks:
    def __init__(self, store: Store) -> None:
        self._store = store

    @instead_of("workload.precision", "precision")
    def take(self, submission: BenchmarkSubmission, received: str) -> Save:
        table = None if submission.nccl_tests is None else nccl_tests.read(submission.nccl_tests, submission.operation)
        with self._store.reading() as rows:
            profile = active_profile(rows)
            question = _question(rows, submission, table)
            resolved = Resolver(rows).problem(question)
        problem = resolved.problem
        part = _products(problem, submission) if table is None else _sweep(problem, table)
        published = priors().coefficients(problem.scopes)
        predicted = sweep_seconds(part, published) if isinstance(part, Sweep) else product_seconds(part, published)
        found = offsets(part, published)
        _require_possible(found, left_over(part, found, published), "nccl_tests" if table else "gemms")
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
            points=_points(part, predicted, published),
            unread=0 if table is None else table.unread,
            median_abs_error=float(np.median(np.abs(predicted / part.seconds - 1))),
            offsets=found,
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
        short = [{name: value for name, value in row.document.items() if name != "points"} for row in page]
        return {"items": short, "next": following}


def observed(resolver: Resolver, row: BenchmarkRow, profile: Profile) -> Observation:
    """What a benchmark tells a calibration of this profile. Raises DomainError where it no longer means anything."""
    problem = resolver.problem(Question.model_validate(row.question)).problem
    told = targets(row.document["offsets"], profile.coefficients(problem.scopes))
    source = f"{row.tenant or row.document['source'] or ''}/benchmarks"
    return Observation(key=row.id, problem=problem, layout=Layout(), coefficients=told, source=source)


def _question(rows: Rows, submission: BenchmarkSubmission, table: nccl_tests.Table | None) -> Question:
    cluster = submission.cluster
    ranks = 1 if table is None else table.ranks
    if table is None or (cluster.num_chips is None and cluster.torus_shape is None and ranks):
        _, _, size = Resolver(rows).cluster(cluster)
        wanted = size.num_chips if table is not None and size.num_chips else ranks
        cluster = cluster.model_copy(update={"num_chips": wanted, "torus_shape": None, "chips_per_domain": None})
    return Question.model_validate(
        {
            "model": _MODEL,
            "cluster": cluster,
            "workload": {"seq_len": 4096, "global_batch": 1, "precision": submission.precision},
            "stack": submission.stack,
        }
    )


def _sweep(problem: Problem, table: nccl_tests.Table) -> Sweep:
    devices = problem.cluster.num_devices
    if devices < 2:
        raise Invalid("cluster.num_chips", problem.cluster.num_chips, "must be more than one for a collective")
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
    limits, check = {"nccl_tests": ("the links of the cluster", "cluster"), "gemms": ("the chip", "unit")}[field]
    refused = {name: "slower" for name, offset in found.items() if abs(offset) >= FARTHEST}
    if left > _IN_SWITCHES:
        refused = dict.fromkeys(found, "faster")
    for name, way in refused.items():
        rule = f"is so much {way} than {limits} would have it that no {name} explains it; check the {check}"
        raise Invalid(field, None, rule)


def _products(problem: Problem, submission: BenchmarkSubmission) -> Products:
    gemms = submission.gemms or []
    m, n, k = (np.array([float(getattr(gemm, dim)) for gemm in gemms]) for dim in ("m", "n", "k"))
    tflops = np.array([gemm.tflops for gemm in gemms])
    peak = problem.cluster.peak_flops(problem.workload.number_format.gemm) / 1e12
    for index in np.flatnonzero(tflops > peak):
        rule = f"is above the {peak:g} TFLOP/s of the data sheet in {submission.precision}; check the unit"
        raise Invalid(f"gemms[{index}].tflops", float(tflops[index]), rule)
    return Products(problem, m, n, k, 2 * m * n * k / (tflops * 1e12))


def _points(part: Sweep | Products, predicted: Array, published: Coefficients) -> list[BenchmarkPoint]:
    named: dict[str, Array] = {"bytes": part.sizes} if isinstance(part, Sweep) else {d: getattr(part, d) for d in "mnk"}
    known = published_seconds(part, published) if isinstance(part, Sweep) else np.full(len(part.m), np.nan)
    seconds = part.seconds, np.broadcast_to(predicted, len(known)), known
    return [
        BenchmarkPoint(
            what=" x ".join(f"{int(size)}" for size in sizes),
            **{name: int(size) for name, size in zip(named, sizes, strict=True)},
            measured_s=float(measured),
            predicted_s=float(model),
            published_s=None if np.isnan(theirs) else float(theirs),
        )
        for sizes, measured, model, theirs in zip(zip(*named.values(), strict=True), *seconds, strict=True)
    ]


def _save(rows: Rows, answer: BenchmarkAnswer, question: dict[str, Any], problem: Problem, received: str) -> Created:
    stored = rows.benchmarks.add(
        {
            "chip": problem.cluster.chip.id,
            "stack": problem.stack.id,
            "submission": received,
            "question": question,
            "document": answer.model_dump(mode="json"),
        }
    )
    return Created(f"/v1/benchmarks/{stored['id']}", stored["document"])
