"""Lines of trainers whose logs are recognised and not read, and what to send instead of the log."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForeignLog:
    trainer: str
    speed: str
    """The field of `measured` that its lines give, and how."""

    @property
    def rule(self) -> str:
        """Returns the sentence that says which trainer wrote the log and what to send instead."""
        return (
            f"it looks like a log of {self.trainer}, which is not read: send {self.speed} to"
            " POST /v1/reports"
        )


_MEDIAN = "the median after warm-up of"
_KNOWN = (
    (
        r"elapsed_time_per_iteration_ms:",
        "nanotron",
        f"measured.step_time_s ({_MEDIAN} elapsed_time_per_iteration_ms / 1000)",
    ),
    (
        r"\btgs \(tokens/gpu/second\)",
        "InternEvo or InternLM",
        f"measured.tokens_per_s_per_chip ({_MEDIAN} tgs)",
    ),
    (
        r"throughput/device/(?:tokens_per_sec|TPS)|throughput/device/tokens_per_second",
        "LLM Foundry, Composer or OLMo",
        f"measured.tokens_per_s_per_chip ({_MEDIAN} throughput/device/tokens_per_sec)",
    ),
    (
        r"throughput/tokens_per_second",
        "Levanter",
        f"measured.tokens_per_s ({_MEDIAN} throughput/tokens_per_second)",
    ),
    (
        r"current token per gpu per sec:",
        "fms-fsdp",
        f"measured.tokens_per_s_per_chip ({_MEDIAN} current token per gpu per sec)",
    ),
    (
        r"\bdt: \d{1,9}(?:\.\d{1,9})?ms \| tok/sec:",
        "nanochat",
        f"measured.step_time_s ({_MEDIAN} dt / 1000)",
    ),
    (
        r"\biter \d{1,12}: loss [-\d.nainf]{1,20}, time \d{1,9}",
        "nanoGPT",
        f"measured.step_time_s ({_MEDIAN} time / 1000)",
    ),
    (
        r"\bms \| -?\d{1,3}(?:\.\d{1,3})?% (?:bf16 |fp16 )?MFU \|",
        "llm.c",
        f"measured.step_time_s ({_MEDIAN} the milliseconds / 1000)",
    ),
    (
        r"\"?\bwps\"?: \"?[\d.]{1,20}\"?, \"?ups\"?:|\bwps=[\d.]{1,20}, ups=",
        "fairseq or metaseq",
        f"measured.tokens_per_s ({_MEDIAN} wps)",
    ),
    (
        r"\bsteps_per_sec\b|\bsteps/sec\b",
        "paxml or axlearn",
        f"measured.step_time_s (1 / {_MEDIAN} steps per second)",
    ),
    (
        r"\d[,|] {0,2}\d{1,9}(?:\.\d{1,9})?s/it\b|\d{1,9}(?:\.\d{1,9})?(?:s/it|it/s)[\],]",
        "a progress bar",
        f"measured.step_time_s ({_MEDIAN} seconds of an optimizer step)",
    ),
)
_LOOKED_AT = 2**19
"""Characters: all patterns together take a tenth of a second for so many."""
_PATTERNS = tuple((re.compile(pattern), ForeignLog(*said)) for pattern, *said in _KNOWN)


def recognise(text: str) -> ForeignLog | None:
    """Returns the trainer, unsupported here, whose lines a text has; None where there is none.
    Only the beginning and the end of a long text are searched, as a trainer prints such lines
    all along."""
    if len(text) > 2 * _LOOKED_AT:
        text = f"{text[:_LOOKED_AT]}\n{text[-_LOOKED_AT:]}"
    return next((known for pattern, known in _PATTERNS if pattern.search(text)), None)
