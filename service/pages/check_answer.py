"""A check as the Check page shows it: rows of its tables, out of the API's document.

The *text* is the launch script or command as it was typed. A *knob* is a field of a layout, and a
*setting* is what the framework calls it. A *reservation* is a setting that was not understood.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from service.formats.launch.knob_settings import KNOB_SETTINGS
from service.pages.glossary import LAYOUT
from service.pages.script_text import changed, diff, line_of, number_of

_WORKLOAD = ("seq_len", "global_batch", "precision", "optimizer")
_OTHER_NAMES = {
    "seq_len": ("seq-length", "seq_length"),
    "global_batch": ("global-batch-size",),
    "precision": ("bf16", "fp16", "fp8-format"),
    "num_key_value_heads": ("num-query-groups",),
    "intermediate_size": ("ffn-hidden-size",),
    "gated_mlp": ("swiglu",),
    "tie_word_embeddings": ("untie-embeddings-and-output-weights",),
}
"""The names that frameworks give to fields that have other names here."""


@dataclass(frozen=True, slots=True)
class SettingRead:
    part: str
    """The part of the question that it belongs to: layout, workload, model or cluster."""
    label: str
    value: str
    line: int | None
    """The line of the text that has it; None where it is a default, follows from other settings or
    was typed into another field of the form."""


def settings_read(check: Mapping[str, Any], text: str) -> list[SettingRead]:
    """Returns every setting that the check read or assumed, with the line of `text` that says
    it."""
    return [
        *_layout_read(check, text),
        *_workload_read(check, text),
        *_model_read(check, text),
        *_cluster_read(check),
    ]


def _layout_read(check: Mapping[str, Any], text: str) -> Iterator[SettingRead]:
    """Yields the settings of the layout that was checked. Lists, such as a stage partition, are
    left out: a table row has no room for them."""
    # The names by which this format of launch sets the fields of a layout.
    own_names = KNOB_SETTINGS[check["launch_read"]["format"]]
    for knob, entry in LAYOUT.items():
        # `layout` is null where the framework stops before it has one.
        value = (check["layout"] or {}).get(knob)
        if value is not None and not isinstance(value, list):
            names = _spellings(own_names[knob]) if knob in own_names else []
            yield SettingRead("layout", entry.label, _text_of_value(value), line_of(text, names))


def _spellings(setting: str) -> list[str]:
    """Returns the names by which a text may give a setting: in full, and by its last part, as files
    with sections have it. "--training.seq_len" gives ["--training.seq_len", "seq_len"]."""
    return list(dict.fromkeys((setting, setting.lstrip("-").rpartition(".")[2])))


def _workload_read(check: Mapping[str, Any], text: str) -> Iterator[SettingRead]:
    """Yields the settings of the workload, with the lines of the text that say them."""
    for name in _WORKLOAD:
        yield _field_read("workload", name, check["request"]["workload"][name], text)


def _model_read(check: Mapping[str, Any], text: str) -> Iterator[SettingRead]:
    """Yields the settings of the model: its name, for which no line is looked up, or the fields of
    an architecture that the text describes. Nested fields are left out."""
    model = check["request"]["model"]
    if not isinstance(model, Mapping):
        yield SettingRead("model", "name", str(model), None)
        return
    for name, value in model.items():
        if value is not None and not isinstance(value, Mapping | list):
            yield _field_read("model", name, value, text)


def _field_read(part: str, name: str, value: Any, text: str) -> SettingRead:
    """Returns a setting named by its field in the API. `part` is the part of the question, such as
    "model". Frameworks have other names for some fields: the line that says it may use any of
    these."""
    names = (name, *_OTHER_NAMES.get(name, ()))
    shown = _text_of_value(value)
    # Megatron pads the vocabulary: the number that the check used is not the one in the text.
    if name == "vocab_size" and (typed := number_of(text, names)) not in (None, value):
        shown += f", padded from {typed}"
    return SettingRead(part, name.replace("_", " "), shown, line_of(text, names))


def _cluster_read(check: Mapping[str, Any]) -> Iterator[SettingRead]:
    """Yields the chip and the number of chips. No line of the text is looked up for them."""
    yield SettingRead("cluster", "chip", check["catalogue"]["chip"]["name"], None)
    yield SettingRead("cluster", "chips", str(check["request"]["cluster"]["num_chips"]), None)


def _text_of_value(value: Any) -> str:
    """Returns a value of a setting in words: "on" or "off" for a switch."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def first_change(check: Mapping[str, Any], text: str) -> dict[str, Any] | None:
    """Returns the template's fields on the change of the layout to make first: the `change`, the
    `text` with it, the `diff` to that text, and in `left` the settings that have no place in the
    text. None where the check proposes no change."""
    change = check["first_change"]
    if change is None:
        return None
    settings_of_format = KNOB_SETTINGS[check["launch_read"]["format"]].values()
    # The change may need an option that the text lacks: it is put in front of the first of these
    # that the text has.
    known_spellings = [*chain.from_iterable(map(_spellings, settings_of_format))]
    after, without_place = changed(text, change["settings"], known_spellings)
    return {"change": change, "diff": diff(text, after), "left": without_place, "text": after}


def marked_lines(check: Mapping[str, Any], text: str) -> list[tuple[str, bool]]:
    """Returns the lines of the text, each with True where it has a setting that the check did not
    understand."""
    unread_lines = set[int | None]()
    for reservation in check["reservations"]:
        setting = reservation["setting"]
        if setting.strip():
            # The setting is quoted as "name value" or "name=value". The text may be spaced
            # otherwise, and then the line is found by the name alone.
            name = setting.split("=")[0].split()[0]
            unread_lines.add(line_of(text, (setting, name)))
    lines = enumerate(text.splitlines(), start=1)
    return [(line, number in unread_lines) for number, line in lines]
