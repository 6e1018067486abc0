"""Prints what is left over, against everything that might explain it.

    python -m tests.benchmarks.residuals --runs FILE > residuals.md

Natural log(measured / predicted) of the step time, by a fit that saw no run of the same model, chip
and stack. If the model had a term wrong, the residual would rise or fall along the rows of its
table. Families weigh alike: in each row the figures are those of runs weighted so that no family
counts for more than another.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from models.columns import Array
from models.spec.profile import shipped_profile
from tests.benchmarks import fidelity
from tests.benchmarks.scores import Scored
from tests.benchmarks.unseen import Unseen

FEWEST = 8
_HEAD = """# What is left over

Printed by `python -m tests.benchmarks.residuals`.

A residual is the natural logarithm of measured over predicted step time: above 0 the run was slower
than predicted. Each run is predicted by a fit that saw no run of the same model, chip and stack.
The tables hold {runs} runs of {families} families. In each row all families weigh alike, however
many runs they have there. A term of the model that is wrong would show as a slope along the rows of
its table. "trend" is the Spearman rank correlation over the runs of a table, by the same weights,
without `ultrascale`, whose pipelined runs dwarf everything else.
"""


def _doubling(value: float) -> str:
    low = 2 ** math.floor(math.log2(max(value, 1)))
    return f"{low:,.0f}"


def _billions(value: float) -> str:
    edges = (1, 3, 10, 30, 100, 300, 1000)
    return next((f"below {edge}e9" for edge in edges if value < edge * 1e9), "above 1000e9")


_REGRESSORS: dict[str, Callable[[Scored], tuple[float, str]]] = {
    "chips": lambda s: (
        s.run.problem.cluster.num_chips,
        _doubling(s.run.problem.cluster.num_chips),
    ),
    "active parameters": lambda s: (_active(s), _billions(_active(s))),
    "tokens of a device and micro-batch": lambda s: (_tokens(s), _doubling(_tokens(s))),
    "sequence length": lambda s: (
        s.run.problem.workload.seq_len,
        _doubling(s.run.problem.workload.seq_len),
    ),
    "micro-batch": lambda s: (s.layout.micro_batch, _doubling(s.layout.micro_batch)),
    "tp": lambda s: (s.layout.tp, str(s.layout.tp)),
    "pp": lambda s: (s.layout.pp, str(s.layout.pp)),
    "cp": lambda s: (s.layout.cp, str(s.layout.cp)),
    "ep": lambda s: (s.layout.ep, str(s.layout.ep)),
    "data-parallel ranks": lambda s: (s.layout.dp, _doubling(s.layout.dp)),
    "recompute": lambda s: (
        ("none", "selective", "full").index(s.layout.recompute),
        s.layout.recompute,
    ),
    "year": lambda s: (_year(s), f"{int(_year(s))}"),
}


def _active(s: Scored) -> float:
    return float(s.run.problem.architecture.parameters.active)


def _tokens(s: Scored) -> float:
    return s.layout.micro_batch * s.run.problem.workload.seq_len / (s.layout.tp * s.layout.cp)


def _year(s: Scored) -> float:
    return shipped_profile().software_year - s.run.problem.stack.age_years


_KINDS: dict[str, Callable[[Scored], str]] = {
    "chip": lambda s: s.run.problem.cluster.chip.id,
    "stack": lambda s: s.run.problem.stack.id,
    "model": lambda s: "sparse" if s.run.problem.architecture.is_moe else "dense",
    "precision": lambda s: s.run.problem.workload.precision,
    "schedule": lambda s: s.layout.schedule if s.layout.pp > 1 else "no pipeline",
    "ZeRO stage": lambda s: str(s.layout.zero_stage),
}


def weights(scored: Sequence[Scored]) -> Array:
    """Families alike."""
    sizes = Counter(s.row["family"] for s in scored)
    return np.array([1 / sizes[s.row["family"]] for s in scored])


def quantiles(values: Array, weight: Array, shares: Sequence[float]) -> list[float]:
    order = np.argsort(values)
    position = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    return [float(np.interp(share, position, values[order])) for share in shares]


def trend(x: Array, y: Array, weight: Array) -> float:
    """Spearman's rank correlation, weighted."""
    ranks = [_ranks(values) for values in (x, y)]
    centred = [rank - np.average(rank, weights=weight) for rank in ranks]
    variance = [float(np.average(c**2, weights=weight)) for c in centred]
    if min(variance) == 0:
        return 0.0
    return float(
        np.average(centred[0] * centred[1], weights=weight) / np.sqrt(variance[0] * variance[1])
    )


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - counts / 2)[inverse])


def table(
    scored: Sequence[Scored], label: Callable[[Scored], str], order: Callable[[Scored], float]
) -> list[str]:
    rows: defaultdict[str, list[Scored]] = defaultdict(list)
    for s in scored:
        rows[label(s)].append(s)
    lines = ["| | runs | families | 10th pct. | median | 90th pct. |", "|---|---|---|---|---|---|"]
    for name, mine in sorted(rows.items(), key=lambda item: min(order(s) for s in item[1])):
        if len(mine) < FEWEST:
            continue
        residuals = np.array([-math.log1p(s.error) for s in mine])
        low, middle, high = quantiles(residuals, weights(mine), (0.1, 0.5, 0.9))
        families = len({s.row["family"] for s in mine})
        lines.append(
            f"| {name} | {len(mine):,} | {families} | {low:+.2f} | {middle:+.2f} | {high:+.2f} |"
        )
    return lines


def page(scored: Sequence[Scored]) -> str:
    families = {s.row["family"] for s in scored}
    lines = [_HEAD.format(runs=f"{len(scored):,}", families=len(families))]
    usual = [s for s in scored if s.row["family"] != "ultrascale"]
    residuals, weight = np.array([-math.log1p(s.error) for s in usual]), weights(usual)
    for name, of in _REGRESSORS.items():
        slope = trend(np.array([of(s)[0] for s in usual]), residuals, weight)
        lines += [f"## By {name} (trend {slope:+.2f})", ""]
        lines += [*table(scored, lambda s, of=of: of(s)[1], lambda s, of=of: of(s)[0]), ""]  # type: ignore[misc]
    for name, kind in _KINDS.items():
        lines += [f"## By {name}", "", *table(scored, kind, lambda s, kind=kind: -len(kind(s))), ""]  # type: ignore[misc]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, required=True)
    rows = fidelity.load(parser.parse_args().runs)
    scored, _ = fidelity.score(rows, shipped_profile())
    print(
        page([s for s in Unseen(rows).left_out(scored, fidelity.fold_of_group) if not s.failed]),
        end="",
    )


if __name__ == "__main__":
    main()
