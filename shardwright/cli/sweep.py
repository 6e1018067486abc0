"""`shardwright sweep`: the best layout for every combination of models, clusters and batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product, starmap
from typing import Annotated, Any

import typer

from shardwright.cli import question
from shardwright.cli.output import Output, step_interval
from shardwright.cli.session import asking


def sweep(
    context: typer.Context,
    model: Annotated[list[str], typer.Option(help="A model; again for another.")],
    on: Annotated[
        list[str], typer.Option("--on", help="A cluster and its chips, such as h100:64; again too.")
    ],
    seq_len: Annotated[list[int], typer.Option(min=1, help="Tokens of a sequence; again too.")],
    batch: Annotated[list[int], typer.Option(min=1, help="Sequences of a step; again too.")],
    stack: Annotated[list[str], typer.Option(help="The training framework; again too.")],
    local: question.Local = False,
    json: question.AsJson = None,
) -> None:
    """Search every combination, and list what is recommended for each."""
    output = Output(as_json=json)
    with asking(context, output, None, local=local) as client:
        request: Any = {
            "models": [question.model_part(name) for name in model],
            "clusters": [question.cluster_part(place, None, None, None) for place in on],
            "workloads": list(starmap(question.workload_part, product(seq_len, batch))),
            "stacks": stack,
        }
        created: Any = client.create_sweep(request)
        with _bar(output, created["total"]) as advance:
            for event in client.watch_sweep(created["id"]):
                if event.name == "item":
                    advance()
        items: Any = [*client.list_sweep_items(created["id"])]
    output.answer(items, partial(_show, sweep_id=created["id"]))


def _show(output: Output, items: list[dict[str, Any]], sweep_id: str) -> None:
    """Prints the items of a sweep for people, as a table."""
    columns = ["model", "chips", "sequence", "batch", "stack", "layout", "a step takes"]
    output.table(columns, [_row(item) for item in items])
    output.more(f"sweep {sweep_id}")


@contextmanager
def _bar(output: Output, total: int) -> Iterator[Any]:
    """Shows a progress bar on a terminal while the block runs. Yields a function that the block
    calls after each item."""
    from rich.progress import Progress  # which other commands do without

    with Progress(console=output.errors, disable=not output.errors.is_terminal) as progress:
        task = progress.add_task("searching", total=total)
        yield lambda: progress.advance(task)


def _row(item: dict[str, Any]) -> list[str]:
    """Returns an item of the sweep as a row of the table. An item without a layout has its outcome
    instead."""
    recommended = item["recommended"]
    layout = item["outcome"]
    step = ""
    if recommended is not None:
        layout = recommended["layout_summary"]
        step = step_interval(recommended)
    chips = f"{item['num_chips']} {item['chip']}"
    numbers = [str(item["seq_len"]), str(item["global_batch"])]
    return [item["model"], chips, *numbers, item["stack"], layout, step]
