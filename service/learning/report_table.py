"""Reports in brief, with one value a column instead of the whole document: as lines of a CSV table
and as items of a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.schemas.layout import LayoutFields
from service.store.tables import ReportRow

COLUMNS = (
    "id", "created_at", "measured_at", "source", "outcome", "chip", "num_chips", "fabric", "stack",
    "architecture", "seq_len", "global_batch", "precision", "profile_id", "profile_version",
    "step_time_s", "predicted_step_time_s", "predicted_low_s", "predicted_high_s", "residual",
    "within_interval", "reserved_gib", "predicted_reserved_gib", "predicted_fits", "flag", "tenant",
    "rank", "choice", "withdrawn_at", "layout", "tokens_per_s", "tokens_per_s_per_chip",
    "mfu_causal", "predicted_mfu_causal", "check_id", "labels",
)  # fmt: skip


def table_cells(row: ReportRow, document: Mapping[str, Any]) -> list[Any]:
    """Returns the cells of a report's CSV line, in the order of COLUMNS. Labels are joined to one
    cell, such as "team=a;run=7"."""
    brief = report_brief(row, document)
    labels = ";".join(f"{name}={value}" for name, value in brief["labels"].items())
    return [*{**brief, "labels": labels}.values()]


def report_brief(row: ReportRow, document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a report by the names of COLUMNS, in their order. `document` is the
    report as it is now, with its flag."""
    request = document["request"]
    workload = request["workload"]
    predicted = document["prediction"]
    measured = document["measured"] or {}
    memory = document["memory"] or {}
    values = {
        **{name: getattr(row, name) for name in COLUMNS if hasattr(row, name)},
        "created_at": row.created_at.isoformat(),
        "measured_at": row.measured_at.isoformat(),
        "withdrawn_at": row.withdrawn_at and row.withdrawn_at.isoformat(),
        "rank": document["rank"],
        "num_chips": request["cluster"].get("num_chips"),
        "seq_len": workload["seq_len"],
        "global_batch": workload["global_batch"],
        "precision": workload["precision"],
        "predicted_low_s": predicted["step_time_low_s"],
        "predicted_high_s": predicted["step_time_high_s"],
        "reserved_gib": memory.get("reserved_gib"),
        "predicted_reserved_gib": predicted["reserved_gib"],
        "predicted_fits": predicted["fits"],
        "flag": document.get("flag"),
        "layout": LayoutFields.summary(predicted["layout"]),
        "tokens_per_s": measured.get("tokens_per_s"),
        "tokens_per_s_per_chip": measured.get("tokens_per_s_per_chip"),
        "mfu_causal": measured.get("mfu", {}).get("causal"),
        "predicted_mfu_causal": predicted["mfu"]["causal"],
        "labels": document.get("labels", {}),
    }
    return {name: values[name] for name in COLUMNS}
