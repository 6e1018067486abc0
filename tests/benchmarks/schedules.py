"""How long pipelines take in closed form and operation by operation.

    python -m tests.benchmarks.schedules [--write]

Of large and small models as they are, and of some whose kinds of layers take turns, in stages that
differ: a timeline's length over that of the closed form, less one. Every schedule of the generic
stack, balanced and even splits, 2 to 16 stages of 8 H100 each.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from models.layouts.defaults import with_stack_defaults
from models.layouts.rules import broken_rules
from models.prediction.timeline import timeline
from models.spec import catalogue
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.profile import shipped_profile
from models.spec.workload import Workload
from tests.benchmarks import pages

MODELS = "deepseek-v3", "kimi-k2", "qwen3-235b-a22b", "llama-3.1-405b", "gpt-3-175b"
SMALL = "llama-3.1-8b", "llama-3.2-1b", "gemma-2-9b"
ALTERNATING = "llama-4-maverick", "llama-4-scout", "gemma-3-27b", "gpt-oss-20b"
SCHEDULES = (
    ("1f1b", 1), ("afab", 1), ("zero_bubble", 1), ("zero_bubble_v", 2), ("dualpipe", 1),
    ("interleaved", 2),
    ("interleaved", 3), ("interleaved", 4),
)  # fmt: skip
STAGES = 2, 3, 4, 5, 7, 8, 16
PER_STAGE = 0, 0.5, 1, 2, 4, 8  # at least one micro-batch
DATA_PARALLEL = 8
_OPEN = "schedule", "virtual_stages", "balanced"


def excess(
    models: Sequence[str], schedule: str, virtual_stages: int, *, balanced: bool
) -> Iterator[float]:
    """Of every pipeline that is legal."""
    for model, pp, per_stage in product(models, STAGES, PER_STAGE):
        micro_batches = max(int(pp * per_stage), 1)
        problem = Problem(
            architecture=catalogue.architecture(model),
            cluster=catalogue.cluster("h100", pp * DATA_PARALLEL),
            workload=Workload(seq_len=4096, global_batch=micro_batches * DATA_PARALLEL),
            stack=catalogue.stack("generic"),
        )
        knobs = {"schedule": schedule, "virtual_stages": virtual_stages, "balanced": balanced}
        layout = with_stack_defaults(problem, Layout(pp=pp, dp_shard=DATA_PARALLEL, **knobs), _OPEN)
        if broken_rules(problem, layout):
            continue
        found = timeline(problem, shipped_profile(), layout, micro_batches)
        if found.closed_form_s is not None:
            yield found.pipeline_s / found.closed_form_s - 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    asked, rows = parser.parse_args(), []
    of_size = {"large": MODELS, "small": SMALL, "alternating": ALTERNATING}
    for (schedule, virtual_stages), balanced, (size, models) in product(
        SCHEDULES, (True, False), of_size.items()
    ):
        beyond = list(excess(models, schedule, virtual_stages, balanced=balanced))
        if not beyond:
            continue
        spread = [f"{share:+.1%}" for share in np.percentile(beyond, [0, 10, 50, 90, 100])]
        name = f"{schedule} x{virtual_stages}" if virtual_stages > 1 else schedule
        split = "balanced" if balanced else "even"
        rows.append([name, split, size, str(len(beyond)), *spread])
    heads = ["schedule", "split", "models", "pipelines", "least", "10th", "median", "90th", "most"]
    text = pages.table(heads, rows)
    print(text)
    if asked.write:
        command = "python -m tests.benchmarks.schedules --write"
        pages.write_between_markers("accuracy.md", "schedules", text, command)


if __name__ == "__main__":
    main()
