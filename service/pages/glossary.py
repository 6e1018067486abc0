"""The words of layouts and of the API, as pages explain them: labels of forms and tables, sentences
of the API and the list at the foot of a page share this one table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup, escape


@dataclass(frozen=True, slots=True)
class Entry:
    label: str
    meaning: str

    @property
    def heading(self) -> str:
        return self.label[0].upper() + self.label[1:]


LAYOUT = {
    "pp": Entry(
        "pipeline parallel (PP)",
        "The layers are cut into so many stages, which work one after the other.",
    ),
    "dp_shard": Entry(
        "data parallel, sharded",
        "So many groups of chips work on other sequences, and share out what the ZeRO stage says.",
    ),
    "dp_replicate": Entry(
        "data parallel, replicated",
        "So many groups of chips work on other sequences, each with a full copy of the rest.",
    ),
    "tp": Entry(
        "tensor parallel (TP)",
        "The matrices of a layer are split over so many chips, which talk in each.",
    ),
    "cp": Entry("context parallel (CP)", "Each sequence is split over so many chips."),
    "ep": Entry(
        "expert parallel (EP)", "The experts of a layer are shared out over so many chips."
    ),
    "etp": Entry(
        "expert tensor parallel (ETP)", "The matrices of an expert are split over so many chips."
    ),
    "micro_batch": Entry("micro-batch", "Sequences that a chip works on at a time."),
    "schedule": Entry("schedule", "The order in which pipeline stages work on micro-batches."),
    "virtual_stages": Entry(
        "virtual stages", "Pieces of the model that each pipeline stage has, so that it waits less."
    ),
    "balanced": Entry(
        "balanced stages",
        "Pipeline stages have unequal numbers of layers, so that each takes as long.",
    ),
    "zero_stage": Entry(
        "ZeRO stage",
        "What data-parallel chips share out instead of copying: 1 optimizer states, 2 gradients"
        " too, 3 parameters too (FSDP).",
    ),
    "recompute": Entry(
        "recompute", "Activations that are worked out again in the backward pass, to save memory."
    ),
    "sequence_parallel": Entry(
        "sequence parallelism",
        "Norms and residuals are split along the sequence over the tensor-parallel chips.",
    ),
    "offload_activations": Entry(
        "offload of activations", "Activations wait in the memory of the host."
    ),
    "offload_optimizer": Entry(
        "offload of the optimizer", "Optimizer states lie in the memory of the host."
    ),
    "layers_per_chunk": Entry("layers of each piece", "Layers of each pipeline stage, in order."),
    "placement": Entry(
        "placement", "The axes from the one whose groups lie nearest together to the farthest."
    ),
    "torus_axes": Entry(
        "axes of the torus", "The order in which groups fill them, the first before the others."
    ),
    "torus_block": Entry(
        "torus block",
        "The side of a block of a torus that the chips of a group fill, in place of a line.",
    ),
}
"""The knobs of a layout, by the names that answers and summaries give them."""
_SPELLINGS = {"zero": "zero_stage", "layers": "layers_per_chunk", "torus": "torus_axes"}
"""Names that a summary shortens."""

FIELDS = {
    "model": "model",
    "stack": "framework",
    "cluster.preset": "chip or machine",
    "cluster.num_chips": "chips",
    "cluster.chips_per_domain": "the size of a scale-up domain",
    "cluster.torus_shape": "the shape of the torus",
    "workload.seq_len": "tokens a sequence",
    "workload.global_batch": "sequences a step",
    "workload.precision": "precision",
    "workload.optimizer": "the optimizer",
    "workload.load_balancing": "load balancing",
    "workload.routing": "routing of tokens to experts",
    "workload.capacity_factor": "the capacity factor of experts",
    "objective.tokens": "tokens to train",
    "objective.deadline_hours": "deadline (hours)",
    "objective.budget_usd": "budget (US dollars)",
    "objective.deadline_probability": "the probability with which limits are kept",
    "objective.prices": "the field “Prices”",
    "alternatives.num_chips": "other numbers of chips",
    "alternatives.up_to_chips": "the fewest chips",
    "grid.domain": "chips in a scale-up domain",
    "grid.scale_up": "bandwidth within a domain",
    "grid.scale_out": "bandwidth between domains",
    "grid.num_chips": "chips",
    "grid.layers": "layers",
    "constraints.min_fit_probability": "the least probability to fit",
}
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
"""A knob with its value, or one that says all by its name. Other names of knobs are everyday words
where they have no value."""


def plain(sentence: str, names: Mapping[str, str] | None = None) -> str:
    """Returns a sentence of the API in which fields of the request, such as "workload.seq_len", are
    replaced by the labels of the forms. `names` maps some fields to names that fit the page
    better."""
    for field, name in (names or {}).items():
        # Such a name is followed by what it is; "cluster" alone is an everyday word.
        sentence = sentence.replace(f"{field} (", f"{name} (")
    sentence = _OTHER_CLUSTER.sub(_other_cluster, sentence)
    sentence = _OTHER_CHIPS.sub(
        lambda match: f"other number of chips {int(match[1]) + 1}", sentence
    )
    for phrase, words in _PHRASES:
        sentence = phrase.sub(words, sentence)
    return _FIELD.sub(lambda match: FIELDS[match[0].partition("[")[0]], sentence)


def _other_cluster(match: re.Match[str]) -> str:
    """Returns the label of another cluster in a comparison, or of a field of it. The API counts
    clusters from 0, and the form from 1."""
    place = f"other cluster {int(match[1]) + 1}"
    member = match[2]
    return place if member is None else f"{place}, {FIELDS.get(f'cluster.{member}', member)}"


def glossed(sentence: str, names: Mapping[str, str] | None = None) -> Markup:
    """Returns a sentence as `plain` does, as HTML in which each setting of a layout has its meaning
    as a tooltip."""
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
