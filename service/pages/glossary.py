"""The words of layouts and of the API, as pages explain them: labels of forms and tables, sentences
of the API and the list at the foot of a page share this one table. A *knob* is a field of a layout,
such as tp."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup, escape

from models.package_data import read_json


@dataclass(frozen=True, slots=True)
class Entry:
    label: str
    meaning: str

    @property
    def heading(self) -> str:
        return self.label[0].upper() + self.label[1:]


_WORDS = read_json(__package__, "glossary.json")
LAYOUT = {name: Entry(**entry) for name, entry in _WORDS["layout"].items()}
"""The knobs of a layout, by the names that answers and summaries give them."""
_SPELLINGS = {"zero": "zero_stage", "layers": "layers_per_chunk", "torus": "torus_axes"}
"""Names that a summary shortens."""

FIELDS: dict[str, str] = _WORDS["fields"]
"""Fields of a request in the words of the forms."""
_OTHER_CLUSTER = re.compile(r"alternatives\.clusters\[(\d+)\](?:\.(\w+))?")
_OTHER_CHIPS = re.compile(r"alternatives\.num_chips\[(\d+)\]")
_PHRASES = (
    (re.compile(r"(?<![\w.])deadline_hours = (\S+?)(?=[ ,:;]|$)"), r"the deadline of \1 hours"),
    (re.compile(r"\bsee what_to_try\b"), "see what to try, below"),
    (re.compile(r"(?<![\w.])budget_usd = (\S+?)(?=[ ,:;]|$)"), r"the budget of $\1"),
)
_FIELD = re.compile(
    "|".join(
        # A field whose name is an everyday word is one only where a sentence begins with it.
        rf"(?<![\w.]){re.escape(name)}(?!\w|\.\w)(?:\[\d+\])?"
        if "." in name
        else rf"^{name}(?=:| = )"
        for name in FIELDS
    )
)
_KNOB = re.compile(
    rf"(?<![\w.-])(?:{'|'.join((*LAYOUT, *_SPELLINGS))})(?==|\(\d| (?:from )?\d)"
    r"|\boffload_(?:activations|optimizer)\b"
)
"""A knob with its value, such as tp=8, or one that has none. Without a value, the names of other
knobs may be everyday words."""


def plain(sentence: str, names: Mapping[str, str] | None = None) -> str:
    """Returns a sentence of the API in which fields of the request, such as "workload.seq_len", are
    replaced by the labels of the forms. `names` maps some fields to names that fit the page
    better."""
    for field, name in (names or {}).items():
        # Only before a bracket, as in "cluster (64 x h100)", is it the field: "cluster" alone is an
        # everyday word.
        sentence = sentence.replace(f"{field} (", f"{name} (")
    sentence = _OTHER_CLUSTER.sub(_other_cluster, sentence)
    # "alternatives.num_chips[0]" -> "other number of chips 1": the form counts from 1.
    sentence = _OTHER_CHIPS.sub(
        lambda match: f"other number of chips {int(match[1]) + 1}", sentence
    )
    for phrase, words in _PHRASES:
        sentence = phrase.sub(words, sentence)
    return _FIELD.sub(lambda match: FIELDS[match[0].partition("[")[0]], sentence)


def _other_cluster(match: re.Match[str]) -> str:
    """Returns the label of another cluster in a comparison, or of a field of it, such as "other
    cluster 1" for "alternatives.clusters[0]": the API counts from 0, and the form from 1."""
    place = f"other cluster {int(match[1]) + 1}"
    member = match[2]
    return place if member is None else f"{place}, {FIELDS.get(f'cluster.{member}', member)}"


def glossed(sentence: str, names: Mapping[str, str] | None = None) -> Markup:
    """Returns a sentence of the API as HTML, in the words of `plain`. Each setting of a layout,
    such as tp=8, has its meaning as a tooltip."""
    text = plain(sentence, names)
    parts = []
    end = 0
    for match in _KNOB.finditer(text):
        parts += [escape(text[end : match.start()]), explained(match[0])]
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])


def explained(name: str, shown: str | None = None) -> Markup:
    """Returns the name of a layout's setting as HTML with its meaning as a tooltip. `shown` is the
    text to show instead of the name."""
    entry = LAYOUT[_SPELLINGS.get(name, name)]
    title = f"{entry.heading}: {entry.meaning}"
    return Markup('<abbr title="{}">{}</abbr>').format(title, shown or name)
