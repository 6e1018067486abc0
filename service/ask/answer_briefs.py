"""Shortens stored answers to what a launcher needs.

A *brief* has one layout of the answer, its figures and a few sentences, in at most 4 KiB. A
*launcher* is a program that submits the job with that layout. A *knob* is one choice of a layout,
such as tp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.spec.layout import Layout
from service.formats.launch.formats import format_of_stack
from service.resolve.recommended_layouts import RecommendedLayouts
from service.schemas.brief import MAX_REASONS, CheckBrief, PredictionBrief, RecommendationBrief
from service.schemas.check import SettingChange
from service.schemas.layout import LayoutFields

_MAX_REASON_BYTES = 500  # with these limits a brief keeps its 4 KiB, whatever was asked
_MAX_NOTE_BYTES = 300
_MAX_CHUNKS = 128  # a longer list of layers per chunk would fill the brief alone
_MAX_SETTINGS = 8  # of a change: a layout has about as many
_STACK_DECIDES = (
    "zero_stage",
    "schedule",
    "virtual_stages",
    "balanced",
    "recompute",
    "recompute_modules",
    "sequence_parallel",
)
"""Knobs whose usual value is the stack's: they are shown even where they are off."""
_FIGURES = (
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "needed_gib",
    "usable_gib",
    "fit_probability",
)
_BEFORE_LAYOUTS = ("slip", "out_of_memory", "cluster", "fewest_chips", "fewer_chips")
"""Kinds of reasons that say what to beware of, or what else was answered than was asked."""
_DEFAULTS = LayoutFields.of(Layout()).model_dump(mode="json")


def recommendation_brief(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the brief of a recommendation: the recommended layout, and the reasons that a
    launcher needs. `document` is the stored answer."""
    recommended = RecommendedLayouts.of(document).default
    return RecommendationBrief(
        **_shared_fields("recommendations", document, recommended),
        notes=_notes(document),
        chips_used=document["chips_used"],
        exact=document["certificate"]["exact"],
        reasons=[_cut(reason) for reason in _reasons_for_launcher(document)],
    ).model_dump(mode="json")


def prediction_brief(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the brief of a prediction: the fastest of its layouts that fit, or of all where
    none fits. Its `rank` is the position of that layout in the answer, from 1. Its `notes` are
    those on launching the answer's first layout, and left out for any other. `document` is the
    stored answer."""
    layouts = document["layouts"]
    indices = range(len(layouts))
    # False sorts before True: layouts that fit come first, and among equals the fastest.
    best = min(indices, key=lambda i: (not layouts[i]["fits"], layouts[i]["step_time_s"]))
    query = f"?rank={best + 1}" if len(layouts) > 1 else ""
    return PredictionBrief(
        **_shared_fields("predictions", document, layouts[best], query),
        # The answer's launch configuration is that of its first layout.
        notes=_notes(document) if best == 0 else [],
        rank=best + 1,
        of=len(layouts),
        warnings=[_cut(warning) for warning in document.get("warnings", [])[:MAX_REASONS]],
    ).model_dump(mode="json")


def check_brief(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the brief of a check: the verdict, the first change, and the gravest problems.
    `document` is the answer."""
    prediction = document["prediction"] or {}
    fits = document["fits"] or {}
    change = document["first_change"]
    layout = document["layout"]
    # Of these figures the brief of a check has only the step time and its interval.
    figures = {name: prediction.get(name) for name in _FIGURES if name.startswith("step_time")}
    return CheckBrief(
        id=document.get("id"),
        location=document.get("location"),
        verdict=document["verdict"],
        summary=_cut(document["summary"]),
        layout_summary=None if layout is None else LayoutFields.summary(layout),
        **figures,
        fit_probability=fits.get("probability"),
        first_change=None if change is None else _cut(change["words"]),
        settings=[]
        if change is None
        else [_setting_change(setting) for setting in change["settings"][:_MAX_SETTINGS]],
        problems=[_cut(problem, _MAX_NOTE_BYTES) for problem in _problems(document)[:MAX_REASONS]],
    ).model_dump(mode="json", by_alias=True)


def _setting_change(change: Mapping[str, Any]) -> SettingChange:
    """Returns the name and the values of a setting's change, without fields that a later release
    may have stored."""
    return SettingChange(name=change["name"], before=change["from"], after=change["to"])


def _problems(document: Mapping[str, Any]) -> list[str]:
    """Returns sentences on the gravest kind of problems that a job has: broken rules, or else
    settings that were not understood, or else warnings."""
    broken = [
        f"{rule['setting'] or rule['field']}: {rule['rule']}; {rule['cure']}"
        for rule in document["broken_rules"]
    ]
    not_understood = [
        f"{reservation['setting']}: {reservation['reason']}; {reservation['cure']}"
        for reservation in document["reservations"]
    ]
    return broken or not_understood or [warning["message"] for warning in document["warnings"]]


def _shared_fields(
    kind: str, document: Mapping[str, Any], prediction: Mapping[str, Any], query: str = ""
) -> dict[str, Any]:
    """Returns the fields that the briefs of recommendations and predictions share. `prediction` is
    that of the layout to launch, and `query` selects it in the answer."""
    location = f"/v1/{kind}/{document['id']}"
    slurm = (document.get("launch") or {}).get("slurm", {})  # options of sbatch
    return {
        "id": document["id"],
        "created_at": document["created_at"],
        "location": location,
        "launch": _launch_address(location, document, query),
        "nodes": slurm.get("nodes"),
        "devices_per_node": slurm.get("gpus-per-node"),
        "layout": _knobs_to_write(prediction["layout"]),
        "layout_summary": LayoutFields.summary(prediction["layout"]),
        **{name: prediction.get(name) for name in _FIGURES},
    }


def _launch_address(location: str, document: Mapping[str, Any], query: str) -> str | None:
    """Returns the path of the launch configuration. None where there is no launch format for the
    framework, or the format cannot express the layout."""
    format_ = format_of_stack(document["catalogue"]["stack"]["name"])
    if format_ is None or "error" in (document.get("launch") or {}):
        return None
    return f"{location}/launch/{format_.name}{query}"


def _knobs_to_write(layout: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the knobs that a request has to state to mean this layout. Knobs that this release
    does not know are left out, because a request with them would be refused."""
    # A knob with its default need not be stated, unless the stack decides what is left out.
    knobs = {
        knob: layout[knob]
        for knob, default in _DEFAULTS.items()
        if layout.get(knob) is not None and (knob in _STACK_DECIDES or layout[knob] != default)
    }
    # The brief is to stay short; the answer itself has the whole list.
    if len(knobs.get("layers_per_chunk", [])) > _MAX_CHUNKS:
        del knobs["layers_per_chunk"]
    return knobs


def _notes(document: Mapping[str, Any]) -> list[str]:
    """Returns the notes on the launch configuration in the answer."""
    notes = (document.get("launch") or {}).get("notes", [])
    return [_cut(note, _MAX_NOTE_BYTES) for note in notes[:MAX_REASONS]]


def _reasons_for_launcher(document: Mapping[str, Any]) -> list[str]:
    """Returns the reasons that a launcher needs, at most MAX_REASONS, in the order of the answer.
    First taken are one warning, the memory, and why the layout is not the fastest; others follow
    while there is room. Answers of earlier releases do not say of which kind a reason is: the
    first of their reasons are returned."""
    reasons = document["reasons"]
    kinds = [facts["kind"] for facts in document.get("reason_facts", [])]
    if len(kinds) != len(reasons):
        return list(reasons[:MAX_REASONS])
    is_slower = document.get("recommended") != document.get("fastest")
    first = [i for i, kind in enumerate(kinds) if kind in _BEFORE_LAYOUTS][:1]
    memory = [i for i, kind in enumerate(kinds) if kind == "memory"]
    why = [i for i, kind in enumerate(kinds) if kind == "recommended" and is_slower]
    # Any other "recommended" reason says only that the fastest is recommended, and comes last.
    others = [i for i, kind in enumerate(kinds) if kind != "recommended"]
    chosen = [*dict.fromkeys([*first, *memory, *why, *others, *range(len(kinds))])][:MAX_REASONS]
    return [reasons[i] for i in sorted(chosen)]


def _cut(sentence: str, limit: int = _MAX_REASON_BYTES) -> str:
    """Returns a sentence cut to `limit` bytes of UTF-8, with an ellipsis if it was longer."""
    encoded = sentence.encode()
    if len(encoded) <= limit:
        return sentence
    # A character that the cut divides is dropped.
    return encoded[:limit].decode(errors="ignore") + "…"
