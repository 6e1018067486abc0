"""Texts of other programs, damaged and blown up: each is read or refused, in bounded time and
memory."""

from __future__ import annotations

import json
import resource
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from models.errors import DomainError
from service.formats import huggingface, logs, published
from service.formats.jobs.opening import open_job
from service.formats.launch.formats import FORMATS
from service.formats.launch.recognition import other_format
from service.formats.logs.failure import OUT_OF_MEMORY, last_error
from service.formats.shell.command import split_command
from service.formats.shell.files import NO_FILES
from service.formats.tables import nccl_tests
from service.schemas.launch_form import MAX_CHARACTERS
from tests.service.formats.jobs.test_opening import OBJECTS
from tests.service.formats.launch.jobs import job_of, problem_of
from tests.service.formats.logs import dialects
from tests.service.formats.shell.test_scripts import SCRIPTS
from tests.service.formats.tables.test_nccl_tests import LINE
from tests.test_scores import ROW

pytestmark = pytest.mark.long

LONGEST = 2**20
"""Characters. A body may have sixteen times as many."""
SECONDS = 4.0
"""Of the processor for a text."""
MOST_MIB = 512
"""By how much the process may grow, whatever it has read."""
FRAGMENTS = [
    *"[{(<'\"\\-=:,#&* \n\t\0a0", "9.", "a:", "- ", "--a ", "a=b ", "[[", "{a: ", '{"a":', "$(",
    "<<", "e9", "\r\n", "\x1b[3", "step: 1 ", " iteration 1/ ", "&a [*a]\n", "|-\n ", "[rank1]: ",
    "Traceback ", "a.", '"a".',
]  # fmt: skip
CONFIGS = json.loads(
    (Path(__file__).parents[1] / "service" / "formats" / "published.json").read_text()
)


def launch_of(name: str) -> str:
    """A launch as a caller may submit it: a document, or the arguments of a program."""
    format_ = FORMATS[name]
    settings = format_.write(job_of(problem_of(format_.stacks[0]), dp_shard=16)).settings
    return shlex.join(format_.words(settings)) if format_.words else json.dumps(settings)


def read_launch(name: str) -> Callable[[str], object]:
    def read(text: str) -> object:
        return FORMATS[name].read(text, None), other_format(name, text)

    return read


def read_job(text: str) -> object:
    """Reads a text as the door does: an object is opened, and its script split."""
    return split_command(*open_job(text, NO_FILES))


def read_log(text: str) -> None:
    for read in (logs.read, logs.read_arguments, last_error, OUT_OF_MEMORY.search):
        with suppress(DomainError):
            read(text)


def read_config(text: str) -> None:
    config = parsed(text)
    if isinstance(config, dict):
        huggingface.read(config)


def read_run(text: str) -> None:
    row = parsed(text)
    if isinstance(row, dict):
        published.read({**ROW, **row}, 2026.5)


def parsed(text: str) -> Any:
    """What the web layer, or the command, has made of a text before the reader sees it."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


LOG = "\n".join(
    line
    for step in range(1, 9)
    for line in (
        dialects.megatron(step, 4000.0),
        dialects.torchtitan(step, "7,034"),
        dialects.maxtext(step, 4.0),
        dialects.dll(step, 4.7, datetime(2026, 1, 1)),
    )
)
LAUNCHES = {*FORMATS, "scripts", "job objects"}
SEEDS: dict[str, tuple[Callable[[str], object], list[str]]] = {
    **{name: (read_launch(name), [launch_of(name)]) for name in FORMATS},
    "scripts": (read_job, SCRIPTS),
    "job objects": (read_job, OBJECTS),
    "training logs": (read_log, [LOG]),
    "nccl-tests": (nccl_tests.read, [LINE * 20, "# nThread 1 nGpus 8\n" + LINE * 3]),
    "Hugging Face": (read_config, [json.dumps(each["config"]) for each in CONFIGS.values()]),
    "published runs": (read_run, [json.dumps(ROW)]),
}


@st.composite
def damaged(draw: st.DrawFn, seeds: list[str], longest: int) -> str:
    """One of the seeds, parts of which are gone, doubled, exchanged or repeated for long."""
    text = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        begin, end = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        parts = st.sampled_from(["", text[begin:end], *FRAGMENTS]) | st.text(max_size=9)
        part = draw(parts)
        room = max(0, longest - len(text)) // max(1, len(part))
        times = min(draw(st.sampled_from([1, 1, 2, 1000, longest])), room)
        text = text[:begin] + part * times + text[draw(st.sampled_from([begin, end])) :]
    return text


@pytest.mark.parametrize("name", SEEDS)
def test_whatever_is_damaged_is_read_or_refused_soon(name: str) -> None:
    read, seeds = SEEDS[name]
    longest = MAX_CHARACTERS if name in LAUNCHES else LONGEST
    peak = peak_mib()

    @given(damaged(seeds, longest))
    @settings(phases=[Phase.generate])  # what takes long would take longer to make small
    def check(text: str) -> None:
        began = time.process_time()
        with suppress(DomainError):
            read(text)
        took = time.process_time() - began
        assert took < SECONDS, f"{took:.1f} s for {len(text)} characters like {text[:300]!r}"

    check()
    assert peak_mib() - peak < MOST_MIB


def peak_mib() -> float:
    """The most that this process has taken so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
