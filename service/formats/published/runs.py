"""Reads published training runs, to which the shipped profile is fitted. A *row* is one run, a JSON
object of model, cluster, training and measured. A *problem* is the model, the cluster, the workload
and the stack of a run.

Only what was run is read into a question, and never identifiers, titles, notes or measurements.
What a row leaves open is taken as its *stack*, the training software, usually has it, and the names
of such fields are listed in `assumed`. An open micro-batch, recompute or schedule gives several
*alternatives*, which are layouts. Of these the caller takes the fastest under the first recompute
policy, or where none of those fits the fastest of all; and of a stack that takes all sequences at
once, the one with the most sequences that fits.

The software of a row is read in `software`, its cluster in `cluster` and its layouts in `layouts`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.calibration.observation import MemoryKind
from models.errors import Invalid
from models.spec import catalogue
from models.spec.architecture import Architecture, MlaShape, MoeShape
from models.spec.flops import AttentionCount, step_time_from_throughput
from models.spec.hardware import GIB, Cluster
from models.spec.layout import Layout
from models.spec.problem import Problem
from models.spec.stack import Stack
from models.spec.workload import Workload
from service.formats import huggingface
from service.formats.published.cluster import read_cluster
from service.formats.published.layouts import read_degrees, read_layouts
from service.formats.published.software import Row, read_stack

_OPTIMIZERS = {"adafactor": "adafactor", "muon": "muon", "bf16 moments": "adamw_bf16_moments"}
"""By words in the description of an optimizer; all others keep what AdamW keeps."""
_WITHOUT_MASTERS = ("bf16 parameters", "parameters and gradients bf16", "stochastic rounding")
"""Words for parameters whose only copy has 16 bits. Stochastic rounding is what makes up for it."""

_MEMORY_KINDS: dict[str | None, MemoryKind] = {
    None: "reserved",
    "allocated": "allocated",
    "reserved": "reserved",
    "needed": "needed",
    "nvidia_smi": "needed",
}
"""By what a source says that its peak counts; nvidia-smi counts the whole device."""


@dataclass(frozen=True, slots=True)
class Run:
    """A row as a question and its answer."""

    problem: Problem
    alternatives: tuple[Layout, ...]
    """The layouts that the run may have had; one where the row leaves nothing open."""
    assumed: tuple[str, ...]
    """The fields that the row leaves open, and that were taken as its stack usually has them."""
    step_time_s: float | None
    """None where the row states neither this nor FLOP/s nor MFU."""
    converted: bool
    """The step time follows from FLOP/s or MFU."""
    memory_bytes: float | None = None
    """The peak that the source prints."""
    memory_kind: MemoryKind = "reserved"
    """The kind of memory in `memory_bytes`. Most sources that do not say print what the allocator
    reserved."""


def read(row: Row, software_year: float) -> Run:
    """Returns the run of a row: a problem, the layouts that the row may mean, and what was
    measured. Raises Invalid, naming the field, where it cannot be expressed.

    `software_year` is the year of the newest software that the profile describes; the age of the
    run's software counts from there.
    """
    try:
        return _read(row, software_year)
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        rule = f"does not follow the schema of published runs: {error}"
        raise Invalid("row", type(error).__name__, rule) from error


def _read(row: Row, software_year: float) -> Run:
    """Returns the run of a row that follows the schema."""
    assumed: list[str] = []
    training = row["training"]
    architecture = _read_architecture(row["model"])
    cluster = read_cluster(row["cluster"])
    stack = read_stack(row, cluster, software_year, assumed)
    degrees = read_degrees(training, cluster, architecture, stack, assumed)
    workload = _read_workload(training, degrees, cluster, stack, assumed)
    problem = Problem(architecture=architecture, cluster=cluster, workload=workload, stack=stack)
    layouts = read_layouts(row, problem, degrees, assumed)
    seconds, converted = _step_time(row["measured"], problem)
    return Run(
        problem=problem,
        alternatives=layouts,
        assumed=tuple(dict.fromkeys(assumed)),
        step_time_s=seconds,
        converted=converted,
        memory_bytes=_memory_bytes(row),
        memory_kind=_MEMORY_KINDS[row["measured"].get("memory_kind")],
    )


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file with one JSON object on each line. A model given as the path of
    a config.json, relative to the parent of the file's folder, is read from there."""
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    for row in rows:
        model = row.get("model")
        if isinstance(model, dict) and (path := model.get("hf_config")):
            model["config"] = json.loads((file.parent.parent / path).read_text("utf-8"))
    return rows


def _read_architecture(model: Row) -> Architecture:
    """Returns the model of a row, from its config.json or its sizes."""
    if "config" in model:
        return huggingface.read(model["config"], "run")
    # A config says which biases and norms a model has; the sizes of a row do not. They are taken
    # from the model of the catalogue that has these sizes, if there is one.
    return catalogue.with_known_biases(Architecture.from_shape(name="run", **shape_fields(model)))


def _memory_bytes(row: Row) -> float | None:
    """Returns the peak memory of a run that worked, in bytes; None where it is not stated, or where
    the size of micro-batches is not, since activations grow with it. The schedule ZB-H2 (ZB-2p) is
    left out, as it holds twice the activations of the zero-bubble schedules that are modelled."""
    schedule = row["training"].get("pp_schedule") or ""
    has_peak = row.get("outcome", "ok") == "ok" and "2p" not in schedule and "h2" not in schedule
    if not has_peak or row["training"].get("micro_batch_size") is None:
        return None
    # memory_gb is read as GiB, the unit that sources print, whatever its name says.
    return float(row["measured"].get("memory_gb") or 0) * GIB or None


def shape_fields(model: Row) -> dict[str, Any]:
    """Returns the sizes of a model as arguments of Architecture.from_shape, without its name.
    Raises Invalid without a vocabulary, and for heads of two sizes."""
    if model["vocab_size"] is None:
        raise Invalid("model.vocab_size", None, "not stated")
    extra = model.get("extra") or {}
    if "global_head_dim" in extra:
        raise Invalid(
            "model.extra", "global_head_dim", "layers with heads of two shapes are not described"
        )
    mla = model.get("mla")
    return {
        "num_layers": model["num_layers"],
        "hidden_size": model["hidden_size"],
        "intermediate_size": model["intermediate_size"],
        "num_attention_heads": model["num_attention_heads"],
        "num_key_value_heads": model["num_key_value_heads"],
        "head_dim": model.get("head_dim"),
        "vocab_size": model["vocab_size"],
        "gated_mlp": model.get("gated_mlp") is not False,  # most models have a gated one
        "tie_word_embeddings": bool(model.get("tie_word_embeddings")),
        "qk_norm": bool(extra.get("qk_norm")),
        **_window_fields(extra),
        "mla": MlaShape(**mla) if mla else None,
        "moe": _moe_shape(model.get("moe")),
        "mtp_layers": extra.get("mtp_layers") or 0,
    }


def _moe_shape(moe: Row | None) -> MoeShape | None:
    """Returns the experts of a model; None for a dense one. Unknown and empty fields are left
    out."""
    if not moe:
        return None
    known = {name: value for name, value in moe.items() if name in MoeShape.__slots__}
    return MoeShape(**{name: value for name, value in known.items() if value is not None})


def _window_fields(extra: Row) -> dict[str, Any]:
    """Returns the window of local attention in tokens, whether it is chunked, and the period of
    layers that see the whole sequence: 4096, False and 6 of "sliding_window 4096, 5:1"."""
    text = " ".join(
        f"{key} {value}" for key, value in extra.items() if "window" in key or "attention" in key
    )
    # "chunked_attention 8192" -> 8192
    chunk = re.search(r"chunk\D{0,12}(\d{3,})", text)
    window = chunk or re.search(r"sliding_window (\d+)", text)
    local_to_full = re.search(r"(\d+)(?: local)?\s*:\s*1(?: global)?", text)
    share_of_layers = re.search(r"(\d+) of (\d+) layers", text)
    period = 2 if "alternating" in text else None
    # "5:1" is five windowed layers to each full one, and "1 of 6 layers" the same.
    if local_to_full:
        period = int(local_to_full.group(1)) + 1
    elif share_of_layers:
        period = int(share_of_layers.group(2))
    return {
        "sliding_window": int(window.group(1)) if window else None,
        "chunked_attention": chunk is not None,
        "full_attention_period": period if window else None,
    }


def _read_workload(
    training: Row, degrees: Row, cluster: Cluster, stack: Stack, assumed: list[str]
) -> Workload:
    """Returns the workload. A sequence length that the row does not state is the stack's usual
    one. A batch that it does not state follows from the micro-batch, or is the stack's usual one.
    Adds the names of such fields to `assumed`. Raises Invalid where the stack has none."""
    seq_len = training.get("seq_len") or stack.usual_seq_len
    if seq_len is None:
        raise Invalid("training.seq_len", None, "not stated")
    if training.get("seq_len") is None:
        assumed.append("seq_len")
    dp = degrees["dp_shard"] * degrees["dp_replicate"]
    batch = training.get("global_batch_sequences")
    if batch is None and training.get("micro_batch_size"):
        batch = training["micro_batch_size"] * (training.get("grad_accum") or 1) * dp
        assumed.append("global_batch")
    if batch is None and stack.usual_sequences:
        batch = stack.usual_sequences * cluster.num_devices  # it counts those of one device
        assumed.append("global_batch")
    if batch is None:
        raise Invalid(
            "training.global_batch_sequences",
            None,
            "not stated, nor a micro-batch to derive it from",
        )
    if training.get("compute_dtype") is None:
        assumed.append("precision")
    switches = training.get("switches") or {}
    return Workload(
        seq_len=seq_len,
        global_batch=int(batch),
        precision=training.get("compute_dtype") or "bf16",
        optimizer=_optimizer_name(training),
        master_weights=_has_master_weights(training),
        routing="natural" if switches.get("routing") == "natural" else "balanced",
        capacity_factor=_capacity_factor(switches),
    )


def _optimizer_name(training: Row) -> str:
    """Returns the optimizer that a description names, in the words of requests; "adamw" by
    default."""
    description = (training.get("optimizer") or "").lower()
    for words, name in _OPTIMIZERS.items():
        if words in description:
            return name
    return "adamw"


def _capacity_factor(switches: Row) -> float | None:
    """Returns the stated capacity factor of experts; 1 where they have a capacity that is not
    stated, and None where they have none."""
    stated = switches.get("capacity_factor")
    return 1.0 if stated is None and switches.get("routing") == "capacity" else stated


def _has_master_weights(training: Row) -> bool:
    """Returns True unless the row says that parameters have no fp32 copy."""
    switches = training.get("switches") or {}
    description = f"{training.get('optimizer') or ''} {switches.get('autocast') or ''}".lower()
    return not any(words in description for words in _WITHOUT_MASTERS)


def _step_time(measured: Row, problem: Problem) -> tuple[float | None, bool]:
    """Returns the step time in seconds, None where it is not stated, and whether it was
    converted from FLOP/s or MFU, by the row's own way of counting FLOPs."""
    num_chips = problem.cluster.num_chips
    workload = problem.workload
    if seconds := measured.get("step_time_s"):
        return float(seconds), False
    if rate := measured.get("tokens_per_s_per_chip"):
        return workload.tokens / (rate * num_chips), False
    convention = measured.get("flops_counted") or {}
    attention: AttentionCount = convention.get("attention") or "full"
    recompute = bool(convention.get("recompute"))
    flops = measured.get("tflops_per_chip")
    if flops is None:
        ratio = measured.get("mfu") or measured.get("hfu")
        if ratio is None:
            return None, False
        recompute = recompute or measured.get("mfu") is None  # HFU counts recompute
        flops = ratio * problem.cluster.chip.peak_flops(workload.number_format.gemm) / 1e12
    seconds = step_time_from_throughput(
        flops_per_chip_s=flops * 1e12,
        num_chips=num_chips,
        architecture=problem.architecture,
        workload=workload,
        count=attention,
        recompute_counted=recompute,
    )
    return seconds, True
