"""Training logs: the step time that a person would read, and a reason for all that is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import Invalid
from service.formats import logs
from tests.long import examples
from tests.service.formats.logs.dialects import (
    bar,
    dll,
    maxtext,
    megatron,
    needs_folder,
    nemo2,
    sample,
    text,
    torchtitan,
)


@needs_folder
@pytest.mark.parametrize(
    ("name", "lines", "value", "used", "left_out"),
    [
        ("nemo-llama3-70b-64xb200.log", (1, None), 4.69, 19, {"warm_up": 1}),
        ("nemo-llama3-8b-8xb200.log", (1, None), 4.33, 19, {"warm_up": 1}),
        ("maxtext-lines.log", (1, 5), 11.68, 2, {"warm_up": 2, "too_fast": 1}),
        ("maxtext-lines.log", (6, 15), 5.668, 8, {"warm_up": 1, "too_fast": 1}),
        ("torchtitan-lines.log", (1, 4), 21734, 3, {"warm_up": 1}),
        ("torchtitan-lines.log", (5, 8), 7022, 3, {"warm_up": 1}),
        ("torchtitan-lines.log", (9, 13), 6310, 4, {"warm_up": 1}),
        ("torchtitan-lines.log", (14, 18), 7640, 4, {"warm_up": 1}),
        ("megatron-lines.log", (14, 40), 125.3, 26, {"warm_up": 1}),
        ("megatron-lines.log", (6, 6), 3.7386, 1, {}),
    ],
)
def test_a_real_log_reads_as_a_person_would_read_it(
    name: str, lines: tuple[int, int | None], value: float, used: int, left_out: dict[str, int]
) -> None:
    reading = logs.read(sample(name, *lines))
    assert name.startswith(reading.framework)
    assert reading.value == pytest.approx(value, rel=2e-3)
    assert reading.low <= reading.value <= reading.high
    assert (reading.steps_used, reading.left_out) == (used, left_out)


@needs_folder
@pytest.mark.parametrize("name", ["megatron", "torchtitan", "maxtext"])
def test_lines_of_many_runs_are_read_with_every_line_accounted_for(name: str) -> None:
    reading = logs.read(sample(f"{name}-lines.log"))
    assert reading.restarts > 2
    assert reading.steps_found == {"megatron": 37, "torchtitan": 20, "maxtext": 45}[name]
    assert reading.steps_used + sum(reading.left_out.values()) == reading.steps_found
    assert [miss.line for miss in reading.unread] == {
        "megatron": [2, 3, 4],
        "torchtitan": [],
        "maxtext": [20],
    }[name]


@needs_folder
@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("nemo-llama3-70b-64xb200.log", "2025-06-11 01:57:25"),
        ("nemo-llama3-8b-8xb200.log", "2025-06-12 00:03:35"),
    ],
)
def test_a_real_log_is_dated_by_its_last_step(name: str, printed: str) -> None:
    found = logs.read(sample(name)).timestamp
    assert found is not None
    assert found.isoformat(" ") == printed


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("[2025-12-19 10:49:15]" + megatron(7, 3100.0), "2025-12-19 10:49:15"),
        ("[2025-12-19 10:49:15.123] " + megatron(7, 3100.0), "2025-12-19 10:49:15"),
        (torchtitan(10, "7,034"), "2025-06-04 08:52:21"),
        ("2025-06-04T08:52:21.123456789Z " + maxtext(3, 11.7), "2025-06-04 08:52:21+00:00"),
        ("2025/06/04 08:52:21 " + maxtext(3, 11.7), "2025-06-04 08:52:21"),
        ("2025-06-04T08:52:21+05:30 " + maxtext(3, 11.7), "2025-06-04 08:52:21+05:30"),
        (dll(3, 4.0, datetime(2025, 6, 11, 1, 55, 56)), "2025-06-11 01:55:56"),
        ("2025-13-45 08:52:21 " + maxtext(3, 11.7), "None"),
        ("I0604 08:52:21.000000 123 train.py:5] " + maxtext(3, 11.7), "None"),
    ],
)
def test_the_date_beside_a_step_is_read(line: str, printed: str) -> None:
    found = logs.read(line).timestamp
    assert (found.isoformat(" ") if found else "None") == printed


def test_a_log_is_dated_by_its_last_step_that_is_used() -> None:
    times = [(2, 3100.0), (3, 3101.0), (4, 9800.0)]
    lines = [f"[2025-12-19 10:00:0{step}] {megatron(step, ms)}" for step, ms in times]
    assert logs.read(text(lines)).timestamp == datetime(2025, 12, 19, 10, 0, 3)


def test_a_stretch_from_the_middle_of_a_run_has_no_warm_up() -> None:
    reading = logs.read(text(megatron(10 * k, 4000.0) for k in range(50, 55)))
    assert (reading.steps_used, reading.left_out) == (5, {})


def test_one_step_is_enough() -> None:
    reading = logs.read(megatron(100, 3738.6))
    assert reading.low == reading.value == reading.high == 3.7386


def test_batch_sizes_other_than_that_of_most_steps_are_left_out() -> None:
    rising = [megatron(100 + k, 1000.0, batch=32) for k in range(4)]
    reading = logs.read(text(rising + [megatron(110 + k, 4000.0) for k in range(5)]))
    assert (reading.value, reading.left_out) == (4.0, {"other_batch": 4})


@pytest.mark.parametrize(
    ("asked", "batch", "value", "others"),
    [(None, 32, 1.0, 3), (128, 128, 4.0, 6), (256, 32, 1.0, 3)],
)
def test_steps_of_the_batch_that_is_asked_for_are_used(
    asked: int | None, batch: int, value: float, others: int
) -> None:
    rising = [
        *(megatron(100 + k, 1000.0, batch=32) for k in range(6)),
        *(megatron(110 + k, 4000.0) for k in range(3)),
    ]
    reading = logs.read(text(rising), global_batch=asked)
    assert (reading.global_batch, reading.value, reading.left_out) == (
        batch,
        value,
        {"other_batch": others},
    )


@pytest.mark.parametrize("seconds", ["5,603", "1,012.5"])
def test_seconds_with_commas_are_not_cut_off(seconds: str) -> None:
    reading = logs.read(text([maxtext(8, 5.6), maxtext(9, seconds)]))
    assert (reading.value, reading.steps_found) == (5.6, 1)
    assert [line.line for line in reading.unread] == [2]


DIALECTS: dict[str, Callable[[int, float], str]] = {
    "megatron": lambda step, seconds: megatron(step, 1000 * seconds),
    "nemo": lambda step, seconds: dll(
        step - 1, seconds, datetime(2025, 6, 11) + timedelta(seconds=seconds * step)
    ),
    "torchtitan": lambda step, seconds: torchtitan(step, f"{7000 / seconds:,.0f}"),
    "maxtext": lambda step, seconds: maxtext(step - 1, f"{seconds:.3f}"),
}


every_dialect = pytest.mark.parametrize("name", list(DIALECTS))


def seconds_of(reading: logs.Reading) -> float:
    return reading.value if reading.unit == "step_time_s" else 7000 / reading.value


def plain(name: str, seconds: Iterable[float], first: int = 1) -> list[str]:
    return [DIALECTS[name](first + index, each) for index, each in enumerate(seconds)]


@every_dialect
def test_warm_up_and_pauses_are_left_out(name: str) -> None:
    reading = logs.read(text(plain(name, [30, 9, 4, 4.1, 4, 12, 4, 4, 4.1, 20, 4])))
    assert seconds_of(reading) == pytest.approx(4)
    assert reading.left_out == {"warm_up": 2, "slow": 2}
    assert (reading.steps_found, reading.steps_used, reading.restarts) == (11, 7, 0)


def test_low_and_high_are_the_tenth_and_ninetieth_percentile() -> None:
    reading = logs.read(text(megatron(100 + k, 4500.0 - 50 * k) for k in range(11)))
    assert (reading.low, reading.value, reading.high) == pytest.approx((4.05, 4.25, 4.45))


@every_dialect
def test_ordinary_jitter_is_kept(name: str) -> None:
    reading = logs.read(text(plain(name, [30, 4, 4, 4.6, 4, 4, 3.6, 4])))
    assert (reading.steps_used, reading.left_out) == (7, {"warm_up": 1})
    assert reading.high / reading.low > 1.1


@every_dialect
def test_a_restart_warms_up_again(name: str) -> None:
    lines = plain(name, [30, 4, 4, 4, 4, 4]) + plain(name, [4.5, 4, 4, 4, 4], first=4)
    reading = logs.read(text(lines))
    assert (reading.restarts, reading.left_out) == (1, {"warm_up": 2})
    assert seconds_of(reading) == pytest.approx(4)


@every_dialect
def test_the_same_steps_of_other_ranks_count_once(name: str) -> None:
    lines = [f"[rank{rank}]:{line}" for line in plain(name, [30, 4, 4, 4]) for rank in (0, 1)]
    late = [*lines[:4], lines[5], lines[7], lines[4], lines[6]]
    for order in (lines, late):
        reading = logs.read(text(order))
        assert (reading.restarts, reading.left_out) == (0, {"warm_up": 1, "repeated": 4})


@every_dialect
@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: f"[rank0]: {line}",
        lambda line: f"2025-12-19T10:49:15.123Z trainer-0 | {line}",
        lambda line: "\x1b[31m" + line.replace(": ", ":\x1b[0;32m ") + "\x1b[0m",
        lambda line: f"{line}\r",
        lambda line: f"\r{'░' * 500}  3%\r{line}",
        lambda line: f"  7: {line}",
        lambda line: f"[1,0]<stdout>:{line}",
        lambda line: f"[pod/train-0/main] {line}",
    ],
    ids=["rank", "timestamp", "colours", "crlf", "progress", "srun", "mpirun", "kubectl"],
)
def test_what_wraps_a_line_changes_nothing(name: str, wrap: Callable[[str], str]) -> None:
    lines = plain(name, [30, 4, 4, 4.1, 12, 4])
    wrapped, bare = (logs.read(text(each)) for each in (map(wrap, lines), lines))
    wrapped, bare = (replace(each, timestamp=None, last_line=0) for each in (wrapped, bare))
    assert wrapped == bare


@every_dialect
@pytest.mark.parametrize("columns", [72, 100, 120, 132])
def test_lines_that_a_terminal_wrapped_are_joined(name: str, columns: int) -> None:
    lines = plain(name, [30, 4, 4, 4.1, 4, 4])
    pieces = [
        line[start : start + columns] for line in lines for start in range(0, len(line), columns)
    ]
    whole = logs.read(text(lines))
    for wrapped in (text(pieces), text(piece.rstrip() for piece in pieces)):
        reading = logs.read(wrapped)
        assert (reading.value, reading.left_out) == (whole.value, whole.left_out)


def test_a_rate_that_was_wrapped_is_not_cut() -> None:
    """Each piece can be read by itself, and its rate is then 7."""
    lines = [torchtitan(10 * k, f"7,03{k}") for k in range(1, 6)]
    at = lines[0].index(",03")
    pieces = [piece for line in lines for piece in (line[:at], line[at:])]
    assert logs.read(text(pieces)).value == 7033.0


@pytest.mark.parametrize(
    "lost",
    [
        megatron(55, "nan"), megatron(55, 4000.0, loss="NAN"), megatron(55, 4000.0, skipped=1),
        megatron(55, "inf"),
    ],
)  # fmt: skip
def test_steps_that_came_to_nothing_are_left_out(lost: str) -> None:
    reading = logs.read(text([*(megatron(50 + k, 4000.0) for k in range(4)), lost]))
    assert (reading.steps_used, reading.left_out) == (4, {"not_finite": 1})


@pytest.mark.parametrize(
    ("lost", "kept"),
    [
        (maxtext(9, 5.6, loss="nan"), maxtext(8, 5.6)),
        (torchtitan(20, "7,000", loss="nan"), torchtitan(10, "7,000")),
        (torchtitan(20, "0"), torchtitan(10, "7,000")),
        (nemo2(9, float("nan")), nemo2(8, 4.3)),
    ],
)
def test_nan_is_known_in_every_dialect(lost: str, kept: str) -> None:
    assert logs.read(text([kept, lost])).left_out == {"not_finite": 1}
    with pytest.raises(Invalid, match="1 step of .* none to use: 1 not_finite"):
        logs.read(text([lost]))


@pytest.mark.parametrize(
    ("cut", "line"),
    [
        (megatron(103, 4000.0)[:70], 3),
        (megatron(103, 4000.0).split(" ms")[0].split("00.0")[0], 3),
        (maxtext(103, 5.669)[:24], 3),
        ("completed step: 103, ...", 3),
        (torchtitan(103, "7,0"), 3),
        (torchtitan(103, "7,034").split("tps")[0], 3),
        (nemo2(103, 4.25).split("in s")[0] + "in s", 3),
        ("elapsed time per iteration (ms): 4000.0 |", 3),
    ],
)
def test_a_line_that_is_cut_off_is_named_and_not_guessed(cut: str, line: int) -> None:
    whole = {"i": megatron, "e": megatron, "c": maxtext, "[": torchtitan}[cut.strip()[0]]
    lines = [nemo2(step, 4.25) for step in (101, 102)] if "default0" in cut else []
    lines = lines or [
        whole(step, "4000.0" if whole is not torchtitan else "7,034") for step in (101, 102)
    ]
    reading = logs.read("\n".join([*lines, cut]))
    assert reading.steps_used == 2
    (unread,) = reading.unread
    assert (unread.line, unread.text) == (line, cut[:200])
    assert unread.reason


def test_of_a_line_with_a_progress_bar_only_the_update_is_shown() -> None:
    lines = [megatron(100, 4000.0), " 3%\r 4%\relapsed time per iteration (ms): 4.0\r 5%"]
    assert [unread.text for unread in logs.read(text(lines)).unread] == [
        "elapsed time per iteration (ms): 4.0"
    ]


def test_at_most_twenty_unread_lines_are_kept_and_can_be_printed() -> None:
    odd = "\0\ud800 elapsed time per iteration (ms): ?" + "x" * 300
    reading = logs.read(text([odd] * 30 + [megatron(100, 4000.0)]))
    assert len(reading.unread) == 20
    assert {len(unread.text) for unread in reading.unread} == {200}
    assert all(unread.text.isprintable() for unread in reading.unread)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", "empty"),
        (" \n\r\n", "empty"),
        (
            "Downloading vocabulary\nnothing else\n",
            "no step of megatron or nemo or torchtitan or maxtext",
        ),
        ("completed step: 101, ...\n", "line 1 looks like one"),
        (bytes(range(256)).decode("latin-1") * 40, "not text"),
        (bytes(range(128, 256)).decode("utf-8", "replace") * 40, "not text"),
        (megatron(1, 20289.1), "1 step of megatron and none to use: 1 warm_up"),
        (
            text([megatron(1, 9000.0), megatron(2, "nan")]),
            "2 steps of megatron and none to use: .*1 not_finite",
        ),
        (text(megatron(k, 4000.0) for k in (9, 8, 7)), "3 steps of megatron, the newest first"),
        (text([maxtext(5, "0.0"), maxtext(6, "-1.0")]), "none to use: 2 too_fast"),
    ],
)
def test_a_log_without_an_answer_says_why(log: str, said: str) -> None:
    with pytest.raises(Invalid, match=said) as refused:
        logs.read(log)
    assert refused.value.field == "log"


def test_steps_of_two_frameworks_are_not_mixed_but_one_can_be_named() -> None:
    mixed = text([maxtext(8, 5.6), *(megatron(k, 4000.0) for k in (100, 101))])
    with pytest.raises(Invalid, match="2 steps of megatron and 1 step of maxtext"):
        logs.read(mixed)
    assert logs.read(mixed, "maxtext").value == 5.6
    assert logs.read(mixed, "megatron").steps_found == 2
    with pytest.raises(Invalid, match="no step of nemo; it has 2 steps of megatron"):
        logs.read(mixed, "nemo")


@pytest.mark.parametrize("name", ["", "nanotron", "x" * 10**6])
def test_a_framework_that_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="framework"):
        logs.read(megatron(100, 4000.0), name)


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        "x" * 10**7,
        "step: " * 10**6,
        "iteration 1/ " * 10**6,
        "elapsed time per iteration (ms): 1.0 | " * 300_000,
        "train_step_timing in s: [1.0, " * 300_000,
        "\x1b[" * 10**6 + "1" * 10**6,
        "1/2 [" * 10**6 + "train_step_timing in s=1.0",
        "step: 1  loss: 1.0  " * 300_000,
        "1" * 10**7 + "completed step: " + "1" * 10**6,
        "\r".join(["completed step: 3, seconds: "] * 300_000),
        "------ arguments ------\n" + "a . " * 10**6,
    ],
)
def test_a_gigantic_line_takes_no_more_than_its_length(line: str) -> None:
    began = process_time()
    reading = logs.read(text([*(megatron(k, 4000.0) for k in (100, 101)), line]), "megatron")
    assert reading.value == 4.0
    assert process_time() - began < 10


FRAGMENTS = [
    "iteration", "10/ 20", " | ", "elapsed time per iteration", " (ms): ", "(s):", "4000.0",
    "387.8/397.1", "-3", "0", "1e999", "nan", "inf", "99999999999999", ".", ",", "\n", "\r", "\0",
    "\ufffd", "٣", "global batch size: 3", "lm loss: ", "number of skipped iterations: ", "step:",
    " loss: ", " tps: ", "7,034", "memory: 9.9GiB", "validate ", "completed step: ", "seconds: ",
    "train_step_timing in s", " : ", "=", "[", "]", "1.0, 2.0", "global_step: 3 ",
    "DLL 2025-06-11 01:55:56.3 - ", "DLL 0000-99-99 99:99:99 - ", "3/9 [0:", "memory (MB)",
    "max reserved: ", "-- arguments --", "\n  num_layers .... 32", "-- end of arguments --",
    "[rank1]", "\x1b[31m", "7: ", "1", "2", "padded vocab (size:", "new size: 9",
    megatron(10, 4000.0), megatron(1, "nan"), torchtitan(10, "7,034"), maxtext(3, 0.002),
    nemo2(3, 1e300), nemo2(4, 1e-300), dll(3, 4.7, datetime(2025, 1, 1)),
    dll(4, 1e308, datetime(2025, 1, 1)), bar(3, 4.7, None),
]  # fmt: skip


anything = st.one_of(
    st.text(), st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3)).map("".join)
)


@settings(max_examples=examples(300))
@given(anything, st.none() | st.sampled_from([*logs.FRAMEWORKS, "?"]))
def test_no_text_raises_anything_else(log: str, framework: str | None) -> None:
    try:
        reading = logs.read(log, framework)
    except Invalid:
        return
    assert 0 < reading.low <= reading.value <= reading.high
    assert reading.steps_used > 0
    assert reading.steps_used + sum(reading.left_out.values()) == reading.steps_found
    assert all(reading.left_out.values())


NOISE = st.sampled_from(
    [
        "", "Pod on node-0 is running", "50K .......... .......... 9% 11.9M 0s",
        "WARNING: step skipped", "\x1b[31mred", "NCCL version 2.27",
        '{"severity": "INFO", "message": "loss: 3"}', "Step 3 of the setup", "é\u2028ü\x0b",
    ]
)  # fmt: skip


@given(
    st.sampled_from(list(DIALECTS)),
    st.lists(st.floats(0.01, 1000), min_size=2, max_size=30),
    st.integers(1, 100),
    st.lists(NOISE, max_size=20),
)
def test_noise_before_and_between_changes_nothing(
    name: str, times: list[float], first: int, noise: list[str]
) -> None:
    lines = plain(name, times, first)
    woven = [*noise, *(part for line in lines for part in (line, *noise[:2]))]
    without = replace(logs.read(text(lines)), unread=(), last_line=0)
    assert replace(logs.read(text(woven)), unread=(), last_line=0) == without


@given(st.floats(0.05, 500), st.lists(st.floats(-0.04, 0.04), min_size=20, max_size=60), st.data())
def test_the_typical_time_is_found_among_pauses(
    typical: float, jitter: list[float], data: st.DataObject
) -> None:
    drawn = data.draw(st.sets(st.integers(0, len(jitter) - 1), max_size=len(jitter) // 4))
    pauses = {index for index in drawn if index - 1 not in drawn}
    times = [typical * (1 + each + 3 * (index in pauses)) for index, each in enumerate(jitter)]
    reading = logs.read(
        text(
            f"iteration {100 + k}/ 999 | elapsed time per iteration (ms): {1000 * each:.6f} |"
            for k, each in enumerate(times)
        )
    )
    assert reading.value == pytest.approx(typical, rel=0.041)
    assert reading.high <= typical * 1.041
    assert sum(reading.left_out.values()) == len(pauses)


@needs_folder
@pytest.mark.parametrize("name", ["megatron-lines.log", "torchtitan-lines.log"])
def test_a_log_without_a_dump_has_no_arguments(name: str) -> None:
    assert logs.read(sample(name)).arguments == {}


@pytest.mark.parametrize(
    ("printed", "date"),
    [
        ("[20251202 09:12:08][rank-7/8]", "2025-12-02T09:12:08"),
        ("12/31/2024 10:11:12 - INFO - __main__ -", "2024-12-31T10:11:12"),
        ("[2026-02-03 04:10:00]", "2026-02-03T04:10:00"),
        ("2026/02/03 04:10:00.123", "2026-02-03T04:10:00"),
    ],
)
def test_dates_are_read_as_loggers_print_them(printed: str, date: str) -> None:
    timestamp = logs.read(f"{printed} {megatron(2, 4000.0)}\n").timestamp
    assert timestamp is not None
    assert timestamp.isoformat() == date


@pytest.mark.parametrize(
    "printed", ["[20251302 09:12:08]", "31/12/2024 10:11:12", "2025120209:12:08"]
)
def test_other_digits_are_no_date(printed: str) -> None:
    assert logs.read(f"{printed} {megatron(2, 4000.0)}\n").timestamp is None
