"""The tools. They are few and made by hand: one for each route would be 37, with 900 kB of schemas
that an agent has to read before it starts."""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server.mcpserver import Context
from pydantic import Field

from shardwright.mcp.asking import asking, given
from shardwright.secrets import mask_secrets

Model = Annotated[
    str | dict[str, Any],
    Field(description="A name such as llama-3.1-70b, or the config.json of Hugging Face as it is."),
]
Cluster = Annotated[str, Field(description="A chip or cluster, such as h100, gb200 or v5p-128.")]
NumChips = Annotated[int, Field(ge=1, description="How many chips there are in all.")]
Stack = Annotated[
    str, Field(description="The training framework, such as megatron, torchtitan or maxtext.")
]
SeqLen = Annotated[int, Field(ge=1, description="Tokens of a sequence.")]
Batch = Annotated[int, Field(ge=1, description="Sequences of a step, over all chips.")]
Script = Annotated[
    str,
    Field(
        description="The script, command line or configuration of the job as it is: a shell or"
        " Slurm script, YAML of Kubernetes or SkyPilot, arguments of the framework."
    ),
]
Files = Annotated[
    dict[str, str] | None,
    Field(description="Texts of files that the script names, by the names it has for them."),
]
Log = Annotated[str, Field(description="The log of the run as it is, from its first line.")]
CheckId = Annotated[
    str | None, Field(description="The id of the check that the job belongs to, if there is one.")
]


async def ask(
    context: Context,
    model: Model,
    cluster: Cluster,
    num_chips: NumChips,
    seq_len: SeqLen,
    global_batch: Batch,
    stack: Stack,
) -> dict[str, Any]:
    """Recommend how to launch a training: the parallel layout (data, tensor, pipeline, context and
    expert parallelism, micro-batch, recompute), its step time, MFU and memory with 80% intervals,
    and why. The search is exact under the cost model. Use it when there is no job yet."""
    body: Any = {
        "model": model,
        "cluster": {"preset": cluster, "num_chips": num_chips},
        "workload": {"seq_len": seq_len, "global_batch": global_batch},
        "stack": stack,
    }
    async with asking(context) as client:
        answer: Any = await client.create_recommendation(body, view="brief")
        return dict(answer)


async def check(
    context: Context,
    script: Script,
    cluster: Cluster | None = None,
    num_chips: NumChips | None = None,
    files: Files = None,
    model: Model | None = None,
) -> dict[str, Any]:
    """Check a training job before it is submitted: whether its framework starts it, whether it fits
    in memory, how fast it is, and what to change first. The verdict is go, go_with_warnings,
    will_not_fit, illegal, or cannot_tell, where `reservations` say what is missing. Keep the `id`
    for a report of the run."""
    body: Any = given(
        launch=_launch(script, files), cluster=_cluster(cluster, num_chips), model=model, store=True
    )
    async with asking(context) as client:
        answer: Any = await client.check(body)
        return {name: answer.get(name) for name in _OF_CHECK}


async def explain(
    context: Context,
    log: Log,
    script: Script | None = None,
    cluster: Cluster | None = None,
    num_chips: NumChips | None = None,
    files: Files = None,
    check_id: CheckId = None,
) -> dict[str, Any]:
    """Explain a run by its log: why it was slow, or what it died of, and what to try first. Give
    the job's script, or the id of its check, and the cluster that it ran on."""
    launch = None if script is None else _launch(script, files)
    body: Any = given(
        log=mask_secrets(log),
        launch=launch,
        cluster=_cluster(cluster, num_chips),
        check_id=check_id,
    )
    async with asking(context) as client:
        answer: Any = await client.explain(body)
        return dict(answer)


async def report(
    context: Context,
    log: Log,
    check_id: CheckId = None,
    script: Script | None = None,
    cluster: Cluster | None = None,
    num_chips: NumChips | None = None,
    files: Files = None,
    source: Annotated[str | None, Field(description="A name for where it ran.")] = None,
) -> dict[str, Any]:
    """Report a run that has ended by its log, so that later predictions learn from it. Give the id
    of its check, or its script and cluster. The answer compares what was measured with what was
    predicted."""
    launch = None if script is None else _launch(script, files)
    body: Any = given(
        log=mask_secrets(log),
        check_id=check_id,
        launch=launch,
        cluster=_cluster(cluster, num_chips),
        source=source,
    )
    async with asking(context) as client:
        answer: Any = await client.create_report_from_log(body)
        stored = answer["report"]
        return {name: stored.get(name) for name in _OF_REPORT}


async def evidence(
    context: Context,
    model: Annotated[str | None, Field(description="A name such as llama-3.1-70b.")] = None,
    cluster: Cluster | None = None,
    num_chips: NumChips | None = None,
    stack: Stack | None = None,
    limit: Annotated[int, Field(ge=1, le=20, description="How many runs at most.")] = 5,
) -> list[Any]:
    """List published training runs that are most like a question, measured and predicted, with
    their sources."""
    async with asking(context) as client:
        answer: Any = await client.list_evidence(
            model=model, cluster=cluster, num_chips=num_chips, stack=stack, limit=limit
        )
        return list(answer["items"])


TOOLS = (ask, check, explain, report, evidence)
_OF_CHECK = (
    *("id", "verdict", "summary", "broken_rules", "fits", "first_change", "warnings"),
    *("reservations", "best", "assumptions"),
)
"""The members of a check that an agent acts on; the stored check has the others."""
_OF_REPORT = ("id", "outcome", "measured", "residual", "within_interval", "flag", "reservations")


def _launch(script: str, files: dict[str, str] | None) -> dict[str, Any]:
    texts = {name: mask_secrets(text) for name, text in (files or {}).items()}
    return given(arguments=mask_secrets(script), files=texts)


def _cluster(cluster: str | None, num_chips: int | None) -> dict[str, Any] | None:
    return None if cluster is None else given(preset=cluster, num_chips=num_chips)
