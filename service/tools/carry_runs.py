"""Writes published runs in the project's own form, as the evidence that answers show.

`python -m service.tools.carry_runs --runs FILE --out models/data/runs.jsonl`

FILE holds one run a line, as JSON. A model whose layers differ is the path of its config.json
there, and a list of layers here. Runs that the models cannot express are left out, and so are
failures that are not known to be of memory.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from models.errors import DomainError
from models.layouts.defaults import DEFAULTED_KNOBS
from models.spec import catalogue
from models.spec.architecture import Architecture
from models.spec.hardware import GIB, Cluster
from models.spec.layout import Layout
from models.spec.profile import Profile, shipped_profile
from models.spec.stack import Stack
from models.spec.workload import Workload
from service.formats import published
from service.resolve.explicit_models import explicit_fields
from service.schemas.architecture import ShapeFields
from service.schemas.cluster import ClusterSize
from service.schemas.layout import LayoutFields
from service.schemas.stack import StackFields
from service.schemas.workload import WorkloadFields
from service.tools.fit_profile import choose_layout


def published_run_documents(
    rows: Iterable[dict[str, Any]], profile: Profile
) -> Iterator[dict[str, Any]]:
    """Yields a document (service.schemas.evidence.PublishedRun) for every run that the models can
    express and that has a step time or ran out of memory. Runs with one id get a number behind it,
    since the database needs ids that differ."""
    times_seen: Counter[str] = Counter()
    for row in rows:
        if row["outcome"] != "ok" and row["failure"] != "out_of_memory":
            continue
        try:
            run = published.read(row, profile.software_year)
            layout = choose_layout(run, profile)
        except DomainError:  # the models cannot express the run
            continue
        if run.step_time_s is not None or row["outcome"] != "ok":
            times_seen[row["id"]] += 1
            unique_id = _unique_id(row["id"], times_seen[row["id"]])
            yield _document(row, run, layout) | {"id": unique_id}


def _unique_id(id_: str, nth: int) -> str:
    """Returns the id of the nth run, from 1, that has this id: "x", then "x~2", "x~3"."""
    return id_ if nth == 1 else f"{id_}~{nth}"


def _document(row: dict[str, Any], run: published.Run, layout: Layout) -> dict[str, Any]:
    """Returns a published run as a document. `row` is the run as its source has it, `run` what was
    read of it, and `layout` the one that it most likely had."""
    problem = run.problem
    document = {
        "id": row["id"],
        "source": row["source"],
        "family": row["family"],
        "trust": row["trust"],
        "date": row.get("date") and published.software_date(row),
        "outcome": "ok" if row["outcome"] == "ok" else "out_of_memory",
        "model": _model_fields(row["model"], problem.architecture),
        "cluster": _cluster_fields(problem.cluster),
        "workload": _workload_fields(problem.workload),
        "stack": _stack_fields(problem.stack),
        "layout": _layout_fields(layout),
        "assumed": sorted(set(run.assumed)),
        "step_time_s": run.step_time_s,
        "converted": run.converted,
        "memory_gib": None if run.memory_bytes is None else run.memory_bytes / GIB,
        "parameters": problem.architecture.parameters.total,
        "active_parameters": problem.architecture.parameters.active,
    }
    return _without_nulls(document)


def _without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that are not null, recursively. Dataclasses become dictionaries."""
    plain = {
        name: asdict(value) if hasattr(value, "__dataclass_fields__") else value
        for name, value in values.items()
    }
    return {
        name: _without_nulls(value) if isinstance(value, dict) else value
        for name, value in plain.items()
        if value is not None
    }


def _model_fields(model: dict[str, Any], architecture: Architecture) -> dict[str, Any]:
    """Returns the model of a row in the form of a request. Where the row has a config.json, all
    fields of the resolved architecture are given, layer by layer; otherwise the fields of its shape
    that differ from a request's defaults."""
    if "config" in model:
        return {"name": model["name"], **explicit_fields(architecture)}
    shape = _without_nulls(published.shape_fields(model))
    defaults = {name: field.default for name, field in ShapeFields.model_fields.items()}
    changed = {name: value for name, value in shape.items() if value != defaults[name]}
    return {"name": model["name"], **changed}


def _cluster_fields(cluster: Cluster) -> dict[str, Any]:
    """Returns the cluster in the form of a request: by the name of the catalogue's fabric, or by
    its chip with a torus, a scale-out bandwidth or its levels of links."""
    fabric = cluster.fabric
    if fabric.torus is None and fabric == catalogue.fabrics().get(fabric.id):
        return {"preset": fabric.id, "num_chips": cluster.num_chips}
    document: dict[str, Any] = {"chip": cluster.chip.id, "num_chips": cluster.num_chips}
    if fabric.torus is not None:
        if cluster.torus_shape:
            document["torus_shape"] = [*cluster.torus_shape]
        return document
    if (scale_out := _scale_out_if_only_change(cluster)) is not None:
        return document | {"scale_out_gb_s": scale_out}
    levels = [_without_nulls(asdict(level)) for level in fabric.levels]
    for level in levels:
        del level["scale"]  # it follows from the order: the innermost is up, the others are out
    return document | {"levels": levels}


def _scale_out_if_only_change(cluster: Cluster) -> float | None:
    """Returns the bandwidth in GB/s per chip beyond the scale-up domain, if it is all in which the
    cluster's links differ from the fabric of its chip; None otherwise. Such a cluster is written
    without a list of its links, so that what a profile has learnt about that fabric applies."""
    outer = cluster.fabric.levels[len(cluster.fabric.scale_up) :]
    if not outer or cluster.fabric.id != cluster.chip.fabric.id:
        return None
    scale_out = outer[0].gb_s_per_chip
    size = ClusterSize(num_chips=cluster.num_chips, scale_out_gb_s=scale_out)
    alike = size.build(cluster.chip, cluster.chip.fabric)
    return scale_out if alike.fabric.levels == cluster.fabric.levels else None


def _workload_fields(workload: Workload) -> dict[str, Any]:
    """Returns the fields of a workload that differ from a request's defaults."""
    defaults = {name: field.default for name, field in WorkloadFields.model_fields.items()}
    return {name: value for name, value in asdict(workload).items() if value != defaults[name]}


def _stack_fields(stack: Stack) -> dict[str, Any]:
    """Returns the name of the catalogue's stack, and the fields in which the run's software differs
    from it. Age and version are left out, as they follow from the date of the run."""
    base = asdict(catalogue.stack(stack.id))
    known = StackFields.model_fields.keys() - {"age_years", "version"}
    changes = {
        name: value
        for name, value in asdict(stack).items()
        if name in known and value != base[name]
    }
    # A request with expert_loop has experts_at_once False by default: here it is always stated.
    if "expert_loop" in changes:
        changes["experts_at_once"] = stack.experts_at_once
    return {"name": stack.id, **changes}


def _layout_fields(layout: Layout) -> dict[str, Any]:
    """Returns the fields of a layout that differ from their defaults, and those that the stack
    would otherwise decide."""
    fields = LayoutFields.of(layout)
    return {
        **{name: getattr(fields, name) for name in DEFAULTED_KNOBS},
        **fields.model_dump(exclude_defaults=True),
    }


def main() -> None:
    """Writes the documents of published runs to a file, one a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = published.read_rows(arguments.runs)
    documents = [
        json.dumps(document, separators=(",", ":"))
        for document in published_run_documents(rows, shipped_profile())
    ]
    arguments.out.write_text("\n".join(documents) + "\n")


if __name__ == "__main__":
    main()
