from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from models.spec.layout import TORUS_AXES, Layout
from service.pages.glossary import glossed, plain
from tests.service.pages.questions import FORM, HOSTILE

_API_FIELD = re.compile(r"\b(?:workload|cluster|stack|constraints|objective|alternatives)\.\w+")


def _in_words(html: str) -> str:
    return re.sub("<[^>]+>", "", html)


def test_every_knob_of_a_summary_is_explained() -> None:
    layout = Layout(
        pp=2, dp_replicate=2, dp_shard=2, cp=2, tp=2, ep=2, etp=2, micro_batch=2,
        schedule="interleaved", virtual_stages=2, zero_stage=3, recompute="full",
        offload_activations=True, offload_optimizer=True,
        placement=("pp", "tp", "cp", "dp_shard", "dp_replicate"), torus_axes=TORUS_AXES[1],
        torus_block=2, balanced=True, layers_per_chunk=(1, 2, 3, 4),
    )  # fmt: skip
    summary = layout.summary()
    knobs = {word.partition("=")[0] for word in summary.split() if "=" in word or "_" in word}
    explained = re.findall(r'<abbr title="[^"]+">(\w+)</abbr>', glossed(summary))
    assert sorted(knobs) == sorted(explained)
    assert _in_words(glossed(summary)).replace("&lt;", "<") == summary


@pytest.mark.parametrize(
    "sentence", ["the layers of a stage", "a tp group", "ZeRO 1 sends it once", "no recompute here"]
)
def test_everyday_words_are_not_explained(sentence: str) -> None:
    assert glossed(sentence) == sentence


def test_a_sentence_stays_text() -> None:
    assert HOSTILE not in glossed(f"tp={HOSTILE}")
    assert "<img" not in glossed(HOSTILE, {"cluster": HOSTILE})


def test_places_go_by_their_names() -> None:
    sentence = "of 2 places alternatives.clusters[0] (8 h200) has least time; then cluster (8 h100)"
    names = {"cluster": "8 × h100", "alternatives.clusters[0]": "8 × h200"}
    expected = "of 2 places 8 × h200 (8 h200) has least time; then 8 × h100 (8 h100)"
    assert plain(sentence, names) == expected


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/ask", {"model": "llama-3.1-8b"}),
        ("/ask", {**FORM, "seq_len": "long", "batch": "-1", "chips": "many", "precision": "fp2"}),
        ("/choose", {**FORM, "tokens": "1T", "chips_2": "x", "deadline_hours": "soon"}),
        ("/choose", {**FORM, "tokens": "x", "num_chips": "0", "budget_usd": "0", "up_to": "0"}),
        ("/choose", {**FORM, "tokens": "1T", "num_chips": "32, 128", "deadline_hours": "9000"}),
    ],
)
def test_sentences_of_pages_have_no_words_of_the_api(
    shared_client: TestClient, path: str, query: dict[str, str]
) -> None:
    page = shared_client.get(path, params=query).text
    said = re.findall(r'role="alert".*?</section>|<ul class="reasons">.*?</ul>', page, re.DOTALL)
    assert said
    for words in said:
        assert not _API_FIELD.findall(_in_words(words)), words
