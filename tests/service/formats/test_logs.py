"""Training logs: the step time that a person would read, and a reason for all that is left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import Invalid
from service.formats import logs
from service.formats.logs.layer_pattern import layer_switches
from service.formats.logs.megatron_arguments import question
from service.schemas.architecture import ShapeFields
from service.schemas.layout import LayoutFields
from service.schemas.workload import WorkloadFields
from tests.paths import SHARED

FOLDER = SHARED / "training_logs"
needs_folder = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason="the collection of real training logs (shared/training_logs) is not beside the project",
)


def megatron(
    iteration: int, ms: object, loss: object = "7.9E+00", batch: int = 128, skipped: int = 0
) -> str:
    return (
        f" iteration {iteration:8d}/    1000 | consumed samples: {iteration * batch:12d} | elapsed"
        f" time per iteration (ms): {ms} | learning rate: 6.0E-05 | global batch size: {batch:5d} |"
        f" lm loss: {loss} | loss scale: 1.0 | grad norm: 1.040 | number of skipped iterations:"
        f" {skipped:3d} | number of nan iterations:   0 |"
    )


def torchtitan(step: int, tps: str, loss: object = 8.1423, memory: float = 30.99) -> str:
    return (
        f"[titan] 2025-06-04 08:52:21,904 - root - INFO - step: {step:2}  loss: {loss:>7}  "
        f"memory: {memory:5.2f}GiB(32.62%)  tps: {tps}  tflops: 406.23  mfu: 41.08%"
    )


def maxtext(step: int, seconds: object, loss: object = 9.774) -> str:
    return (
        f"completed step: {step}, seconds: {seconds}, TFLOP/s/device: 193.354, Tokens/s/device:"
        f" 4195.595, total_weights: 1572864, loss: {loss}"
    )


def dll(step: int, seconds: float, at: datetime) -> str:
    return (
        f"DLL {at.isoformat(' ', 'microseconds')} - {step} reduced_train_loss : 11.16  lr : 0.0 "
        f" global_step : {float(step)}  consumed_samples : 128.0  train_step_timing in s :"
        f" {seconds!r}  epoch : 0 "
    )


def bar(step: int, seconds: float, previous: float | None) -> str:
    """A progress bar that advances: drawn with the values of the step before, then with its own."""

    def drawn(index: int, value: float) -> str:
        values = (
            f"v_num=None, reduced_train_loss=11.20, global_step={index:.3f}, train_step_timing in"
            f" s={value:.3f}"
        )
        return f"Epoch 0: :   5%|▌         | {step + 1}/20 [00:44<14:12, {values}]"

    stale = "" if previous is None else drawn(step - 1, previous)
    return stale + drawn(step, seconds)


def nemo2(step: int, seconds: float) -> str:
    return (
        f"[default0]:Training epoch 0, iteration {step}/99 | lr: 1.5e-07 | global_batch_size: 128 |"
        f" global_step: {step} | reduced_train_loss: 11.03 | train_step_timing in s: {seconds:.4g}"
        f" | consumed_samples: {128 * step}"
    )


def means(times: Sequence[float], window: int) -> list[float]:
    return [fmean(times[max(0, end - window) : end]) for end in range(1, len(times) + 1)]


def dll_log(own: Sequence[float], window: int, first: int = 0) -> str:
    """What a timer with a buffer of `window` steps prints."""
    at, lines = datetime(2025, 6, 11, 1, 55), []
    for index, (mean, seconds) in enumerate(zip(means(own, window), own, strict=True)):
        at += timedelta(seconds=seconds + 0.003)
        lines.append(dll(first + index, mean, at))
    return text(lines)


def text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def sample(name: str, first: int = 1, last: int | None = None) -> str:
    return text((FOLDER / name).read_text().split("\n")[first - 1 : last])


# Real logs


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
@pytest.mark.parametrize("name", ["nemo-llama3-70b-64xb200.log", "nemo-llama3-8b-8xb200.log"])
def test_the_own_times_of_nemo_are_those_of_its_clock(name: str) -> None:
    stamped = [
        line[line.index("DLL ") + 4 :][:26]
        for line in sample(name).split("\n")
        if "in s : " in line
    ]
    clock = [datetime.fromisoformat(stamp) for stamp in stamped]
    between = sorted(
        (later - stamp).total_seconds() for stamp, later in zip(clock, clock[1:], strict=False)
    )
    reading = logs.read(sample(name))
    assert reading.value == pytest.approx(between[len(between) // 2], rel=1e-3)
    assert between[0] - 0.01 < reading.low < reading.high < between[-1]


@needs_folder
@pytest.mark.parametrize(("name", "typical"), [("70b-64xb200", 4.7), ("8b-8xb200", 4.33)])
@pytest.mark.parametrize("keep", ["Epoch 0: ", "timing in s: ["])
def test_the_rounded_forms_of_nemo_agree_with_the_exact_one(
    name: str, typical: float, keep: str
) -> None:
    lines = (line.split("DLL ")[0] for line in sample(f"nemo-llama3-{name}.log").split("\n"))
    reading = logs.read(text(line for line in lines if keep in line))
    assert (reading.value, reading.steps_used, reading.left_out) == (typical, 15, {"warm_up": 5})


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


# Each dialect


@needs_folder
@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("nemo-llama3-70b-64xb200.log", "2025-06-11 01:57:25"),
        ("nemo-llama3-8b-8xb200.log", "2025-06-12 00:03:35"),
    ],
)
def test_a_real_log_is_dated_by_its_last_step(name: str, printed: str) -> None:
    found = logs.read(sample(name)).stamp
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
    found = logs.read(line).stamp
    assert (found.isoformat(" ") if found else "None") == printed


def test_a_log_is_dated_by_its_last_step_that_is_used() -> None:
    times = [(2, 3100.0), (3, 3101.0), (4, 9800.0)]
    lines = [f"[2025-12-19 10:00:0{step}] {megatron(step, ms)}" for step, ms in times]
    assert logs.read(text(lines)).stamp == datetime(2025, 12, 19, 10, 0, 3)


def test_megatron_times_are_milliseconds_and_the_interval_of_iteration_one_is_warm_up() -> None:
    reading = logs.read(text(megatron(10 * k, 4000.0 + (k == 1) * 300) for k in range(1, 6)))
    assert (reading.framework, reading.unit, reading.value) == ("megatron", "step_time_s", 4.0)
    assert (reading.steps_found, reading.steps_used, reading.left_out) == (5, 4, {"warm_up": 1})


def test_a_stretch_from_the_middle_of_a_run_has_no_warm_up() -> None:
    reading = logs.read(text(megatron(10 * k, 4000.0) for k in range(50, 55)))
    assert (reading.steps_used, reading.left_out) == (5, {})


def test_one_step_is_enough() -> None:
    reading = logs.read(megatron(100, 3738.6))
    assert reading.low == reading.value == reading.high == 3.7386


@pytest.mark.parametrize(
    ("printed", "seconds"),
    [("(ms): 387.8/397.1 |", 0.3878), ("(s): 105.37 |", 105.37), ("(ms): 6046.6", 6.0466)],
)
def test_the_forks_of_megatron_are_read(printed: str, seconds: float) -> None:
    assert logs.read(
        f"iteration 30/ 1000 | elapsed time per iteration {printed}\n"
    ).value == pytest.approx(seconds)


def test_megatron_memory_is_the_largest_reserved() -> None:
    memory = (
        "[Rank {}] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: {} |"
        " reserved: 2.0 | "
    )
    lines = [
        memory.format(0, 20480.5),
        memory.format(0, 51200.0) + "max reserved: 61440.0",
        megatron(100, 4000.0),
    ]
    reading = logs.read(text([*lines, memory.format(8, 71680.0) + "max reserved: 30720.0"]))
    assert (reading.memory_gib, reading.memory_kind) == (60.0, "reserved")
    assert logs.read(text([lines[0], lines[2]])).memory_kind == "allocated"


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


def test_the_arguments_say_which_batch_a_ramp_up_leads_to() -> None:
    rising = [
        *(megatron(100 + k, 1000.0, batch=32) for k in range(6)),
        *(megatron(110 + k, 4000.0) for k in range(3)),
    ]
    assert logs.read(text([dump(global_batch_size=128), *rising])).global_batch == 128


def test_torchtitan_prints_a_rate_for_each_device() -> None:
    reading = logs.read(
        text([torchtitan(1, "375"), torchtitan(10, "7,034"), torchtitan(20, "7,022", memory=47.5)])
    )
    assert (reading.framework, reading.unit, reading.value) == (
        "torchtitan",
        "tokens_per_s_per_chip",
        7028.0,
    )
    assert (reading.memory_gib, reading.memory_kind) == (47.5, "reserved")
    assert reading.left_out == {"warm_up": 1}


def test_torchtitan_prints_memory_of_small_devices_in_mib() -> None:
    line = torchtitan(10, "7,034").replace("30.99GiB", "50083.84MiB")
    assert logs.read(text([line])).memory_gib == pytest.approx(48.91, abs=0.01)


@pytest.mark.parametrize("seconds", ["5,603", "1,012.5"])
def test_seconds_with_commas_are_not_cut_off(seconds: str) -> None:
    reading = logs.read(text([maxtext(8, 5.6), maxtext(9, seconds)]))
    assert (reading.value, reading.steps_found) == (5.6, 1)
    assert [line.line for line in reading.unread] == [2]


def test_evaluations_of_torchtitan_are_no_steps() -> None:
    evaluation = torchtitan(20, "90,000", memory=70).replace("step: 20", "validate step: 20")
    reading = logs.read(text([torchtitan(10, "7,000"), evaluation, torchtitan(20, "7,000")]))
    assert (reading.steps_found, reading.value, reading.memory_gib) == (2, 7000.0, 30.99)


def test_maxtext_clocks_that_run_ahead_are_waited_for() -> None:
    seconds = [44.9, 12.4, 0.002, 11.7, 11.6, 11.7, 11.8]
    reading = logs.read(text(maxtext(step, each) for step, each in enumerate(seconds)))
    assert (reading.framework, reading.unit, reading.value) == ("maxtext", "step_time_s", 11.7)
    assert reading.left_out == {"warm_up": 2, "too_fast": 1}


def test_a_clock_that_runs_ahead_to_the_end_leaves_the_steps_before() -> None:
    assert logs.read(text([maxtext(5, 5.6), maxtext(6, 0.002)])).value == 5.6


def test_maxtext_memory_is_the_plan_of_the_compiler() -> None:
    plan = (
        "Total memory size: 37.5 GB, Output size: 11.2 GB, Temp size: 26.3 GB, Argument size:"
        " 11.2 GB"
    )
    reading = logs.read(text([plan, maxtext(9, 5.669)]))
    assert (reading.memory_gib, reading.memory_kind) == (37.5, "allocated")


# NeMo


OWN = [44.85, 4.68, 4.64, 4.71, 4.68, 4.69, 4.71, 9.9, 4.73, 4.69, 4.7, 4.71, 4.7]


@pytest.mark.parametrize("window", [1, 2, 5, 10, 100])
def test_means_over_any_window_are_undone(window: int) -> None:
    reading = logs.read(dll_log(OWN, window))
    assert reading.value == pytest.approx(4.7)
    assert reading.left_out == {"warm_up": 1, "slow": 1}
    assert reading.high < 4.74


@pytest.mark.parametrize("window", [1, 5, 100])
def test_means_are_told_from_own_times_without_a_clock(window: int) -> None:
    no_clock = dll_log(OWN, window).replace("DLL 2025-06", "DLL 2025-13")
    assert logs.read(no_clock).value == pytest.approx(4.7)


def test_two_steps_and_a_clock_suffice_to_tell_a_mean() -> None:
    assert logs.read(dll_log(OWN[:2], 5)).value == pytest.approx(4.68)


@pytest.mark.parametrize("slow", [[44.0, 24.0], [44.0, 24.0, 12.0, 6.5], [9.0]])
def test_own_times_with_a_long_warm_up_are_not_taken_for_means(slow: list[float]) -> None:
    reading = logs.read(dll_log([*slow, *OWN[1:7], 4.7, 4.7], 1))
    assert reading.value == pytest.approx(4.7, rel=5e-3)
    assert reading.left_out == {"warm_up": len(slow)}


def test_means_of_a_stretch_from_the_middle_are_taken_as_they_are() -> None:
    own = [*OWN, 4.6, 4.8, 4.7, 4.6, 4.7, 4.8, 4.6, 4.7]
    reading = logs.read(text(dll_log(own, 5).split("\n")[12:]))
    assert reading.value == pytest.approx(sorted(means(own, 5)[12:])[4])
    assert reading.left_out == {}


def test_each_restart_fills_the_window_anew() -> None:
    reading = logs.read(dll_log(OWN, 5) + dll_log(OWN, 5, first=6))
    assert reading.restarts == 1
    assert reading.value == pytest.approx(4.7)
    assert reading.left_out == {"warm_up": 2, "slow": 2}


@pytest.mark.parametrize("joint", ["\n", "\r", ""])
def test_a_progress_bar_is_read_however_its_updates_are_joined(joint: str) -> None:
    printed = means([*OWN[:7], 4.7, 4.7], 5)
    pairs = zip(printed, [None, *printed], strict=False)
    reading = logs.read(
        joint.join(bar(step, mean, before) for step, (mean, before) in enumerate(pairs))
    )
    assert (reading.steps_found, reading.left_out) == (9, {"warm_up": 5})
    assert reading.value == pytest.approx(4.7, rel=5e-3)


def test_the_lines_of_nemo_2_are_read() -> None:
    reading = logs.read(
        text(nemo2(step, seconds) for step, seconds in enumerate([57.25, 4.27, 4.29, 4.28]))
    )
    assert (reading.framework, reading.value, reading.left_out) == ("nemo", 4.28, {"warm_up": 1})
    assert reading.global_batch == 128


@pytest.mark.parametrize(
    "form", [" | peak_memory_usage: {} | memory_allocated: 33289312256", ", peak_memory_usage={}"]
)
def test_the_memory_of_nemo_is_the_most_that_was_reserved(form: str) -> None:
    lines = [
        nemo2(step, 4.28) + form.format(peak)
        for step, peak in enumerate([61203283968, 65498251264, 65498251264])
    ]
    reading = logs.read(text(lines))
    assert (reading.memory_gib, reading.memory_kind) == (pytest.approx(61.0), "reserved")


# What every log may have


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
    ],
    ids=["rank", "timestamp", "colours", "crlf", "progress", "srun"],
)
def test_what_wraps_a_line_changes_nothing(name: str, wrap: Callable[[str], str]) -> None:
    lines = plain(name, [30, 4, 4, 4.1, 12, 4])
    wrapped, bare = (logs.read(text(each)) for each in (map(wrap, lines), lines))
    assert replace(wrapped, stamp=None) == replace(bare, stamp=None)


@pytest.mark.parametrize(
    "lost",
    [
        megatron(55, "nan"), megatron(55, 4000.0, loss="NAN"), megatron(55, 4000.0, skipped=1), megatron(55, "inf"),
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


# What is refused


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


@pytest.mark.parametrize("name", ["", "deepspeed", "x" * 10**6])
def test_a_framework_that_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="framework"):
        logs.read(megatron(100, 4000.0), name)


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
    began = time.perf_counter()
    reading = logs.read(text([*(megatron(k, 4000.0) for k in (100, 101)), line]), "megatron")
    assert reading.value == 4.0
    assert time.perf_counter() - began < 10


# Whatever comes


FRAGMENTS = [
    "iteration", "10/ 20", " | ", "elapsed time per iteration", " (ms): ", "(s):", "4000.0", "387.8/397.1", "-3", "0",
    "1e999", "nan", "inf", "99999999999999", ".", ",", "\n", "\r", "\0", "\ufffd", "٣", "global batch size: 3",
    "lm loss: ", "number of skipped iterations: ", "step:", " loss: ", " tps: ", "7,034", "memory: 9.9GiB", "validate ",
    "completed step: ", "seconds: ", "train_step_timing in s", " : ", "=", "[", "]", "1.0, 2.0", "global_step: 3 ",
    "DLL 2025-06-11 01:55:56.3 - ", "DLL 0000-99-99 99:99:99 - ", "3/9 [0:", "memory (MB)", "max reserved: ",
    "-- arguments --", "\n  num_layers .... 32", "-- end of arguments --", "[rank1]", "\x1b[31m", "7: ", "1", "2",
    "padded vocab (size:", "new size: 9",
    megatron(10, 4000.0), megatron(1, "nan"), torchtitan(10, "7,034"), maxtext(3, 0.002), nemo2(3, 1e300),
    nemo2(4, 1e-300), dll(3, 4.7, datetime(2025, 1, 1)), dll(4, 1e308, datetime(2025, 1, 1)), bar(3, 4.7, None),
]  # fmt: skip
anything = st.one_of(
    st.text(), st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3)).map("".join)
)


@settings(max_examples=300)
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
        "", "Pod on node-0 is running", "50K .......... .......... 9% 11.9M 0s", "WARNING: step skipped", "\x1b[31mred",
        "NCCL version 2.27", '{"severity": "INFO", "message": "loss: 3"}', "Step 3 of the setup", "é\u2028ü\x0b",
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
    without = replace(logs.read(text(lines)), unread=())
    assert replace(logs.read(text(woven)), unread=()) == without


@given(st.floats(0.05, 500), st.lists(st.floats(-0.04, 0.04), min_size=20, max_size=60), st.data())
def test_the_typical_time_is_found_among_pauses(
    typical: float, jitter: list[float], data: st.DataObject
) -> None:
    drawn = data.draw(st.sets(st.integers(0, len(jitter) - 1), max_size=len(jitter) // 4))
    pauses = {index for index in drawn if index - 1 not in drawn}
    times = [typical * (1 + each + 3 * (index in pauses)) for index, each in enumerate(jitter)]
    reading = logs.read(text(f"iteration {100 + k}/ 999 | elapsed time per iteration (ms): {1000 * each:.6f} |"
                             for k, each in enumerate(times)))  # fmt: skip
    assert reading.value == pytest.approx(typical, rel=0.041)
    assert reading.high <= typical * 1.041
    assert sum(reading.left_out.values()) == len(pauses)


# Megatron's arguments


def dump(**arguments: object) -> str:
    """As Megatron prints them."""
    lines = [
        f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(arguments.items())
    ]
    ruler = "------------------------ arguments ------------------------"
    return text([ruler, *lines, "-------------------- end of arguments ---------------------"])


COMMON = {
    "add_bias_linear": False, "add_qkv_bias": False, "bf16": True, "fp16": False, "fp8": None, "fp8_recipe": "delayed",
    "fp4": None, "optimizer": "adam", "exp_avg_dtype": "torch.float32", "exp_avg_sq_dtype": "torch.float32",
    "untie_embeddings_and_output_weights": True, "swiglu": True, "hybrid_override_pattern": None,
    "is_hybrid_model": False, "window_size": None, "recompute_method": None, "overlap_grad_reduce": True,
    "moe_router_force_load_balancing": False, "optimizer_cpu_offload": False, "context_parallel_size": 1,
    "pipeline_model_parallel_layout": None, "use_distributed_optimizer": True, "use_megatron_fsdp": False,
    "data_parallel_sharding_strategy": "optim_grads_params", "num_distributed_optimizer_instances": 1,
}  # fmt: skip
LLAMA = COMMON | {
    "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32, "kv_channels": 128,
    "group_query_attention": True, "num_query_groups": 8, "padded_vocab_size": None, "vocab_size": 128256,
    "qk_layernorm": False, "num_experts": None, "moe_layer_freq": 1, "multi_latent_attention": False,
    "mtp_num_layers": None, "seq_length": 8192, "global_batch_size": 128, "micro_batch_size": 2,
    "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": 2, "virtual_pipeline_model_parallel_size": None, "sequence_parallel": True,
    "data_parallel_size": 32, "world_size": 64, "recompute_granularity": None,
}  # fmt: skip
DEEPSEEK = COMMON | {
    "num_layers": 61, "hidden_size": 7168, "ffn_hidden_size": 18432, "num_attention_heads": 128, "kv_channels": 128,
    "group_query_attention": False, "num_query_groups": 1, "padded_vocab_size": 129280, "vocab_size": 129280,
    "qk_layernorm": True, "num_experts": 256, "moe_router_topk": 8, "moe_ffn_hidden_size": 2048,
    "moe_shared_expert_intermediate_size": 2048, "moe_layer_freq": "([0]*3+[1]*58)", "multi_latent_attention": True,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128,
    "mtp_num_layers": 1, "seq_length": 4096, "global_batch_size": 8192, "micro_batch_size": 1, "fp8": "e4m3",
    "fp8_recipe": "mxfp8", "exp_avg_dtype": "torch.bfloat16", "exp_avg_sq_dtype": "torch.bfloat16",
    "moe_router_force_load_balancing": True, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 8,
    "virtual_pipeline_model_parallel_size": 4, "num_layers_per_virtual_pipeline_stage": None,
    "pipeline_model_parallel_layout": "Et*3|(tt|)*29,m|L", "expert_model_parallel_size": 64,
    "expert_tensor_parallel_size": 1, "sequence_parallel": True, "data_parallel_size": 64, "world_size": 1024,
    "recompute_granularity": "selective", "recompute_modules": "['mla_up_proj', 'mlp']",
}  # fmt: skip


def asked(**arguments: object) -> dict:
    return dict(question({name: str(value) for name, value in arguments.items()}))


def test_the_dump_is_read_as_printed_and_only_from_between_its_rulers() -> None:
    before, after = "  hidden_size ....... 1\n", "  num_layers ....... 1\n"
    printed = dump(**LLAMA).replace("\n", "\r\n").replace("  num_layers", "[rank0]:  num_layers")
    reading = logs.read(before + printed + after + text([megatron(100, 4000.0)]))
    assert reading.arguments == {name: str(value) for name, value in LLAMA.items()}
    assert logs.read(dump(**LLAMA) + text([maxtext(9, 5.6)])).arguments == {}


def test_a_vocabulary_that_is_padded_after_the_dump_is_added() -> None:
    padded = " > padded vocab (size: 50257) with 943 dummy tokens (new size: 51200)\n"
    lines = padded + text([megatron(100, 4000.0)])
    assert logs.read(dump(**LLAMA) + lines).arguments["padded_vocab_size"] == "51200"
    assert logs.read(dump(**DEEPSEEK) + lines).arguments["padded_vocab_size"] == "129280"
    assert logs.read(lines).arguments == {}


def test_a_dense_run_is_the_question_it_states() -> None:
    found = asked(**LLAMA)
    model = ShapeFields.model_validate(found["model"]).build()
    assert model.parameters.total == pytest.approx(8.03e9, rel=1e-3)
    assert found["workload"] == {
        "seq_len": 8192,
        "global_batch": 128,
        "precision": "bf16",
        "optimizer": "adamw",
    }
    WorkloadFields.model_validate(found["workload"]).build()
    layout = LayoutFields.model_validate(found["layout"]).build()
    assert (layout.tp, layout.pp, layout.dp_shard, layout.dp_replicate, layout.ep, layout.etp) == (
        2,
        1,
        32,
        1,
        1,
        1,
    )
    assert (layout.zero_stage, layout.micro_batch, layout.schedule, layout.recompute) == (
        1,
        2,
        "1f1b",
        "none",
    )
    assert layout.sequence_parallel
    assert found["num_chips"] == layout.num_devices == 64


def test_a_mixture_of_experts_is_the_question_it_states() -> None:
    found = asked(**DEEPSEEK)
    model = ShapeFields.model_validate(found["model"]).build()
    assert model.parameters.total == pytest.approx(671e9, rel=5e-3)
    assert [layer.moe is not None for layer in model.layers] == [False] * 3 + [True] * 58
    assert found["model"]["mla"]["qk_nope_head_dim"] == 128
    assert found["model"]["mtp_layers"] == 1
    workload = WorkloadFields.model_validate(found["workload"]).build()
    assert (workload.precision, workload.optimizer, workload.routing) == (
        "mxfp8",
        "adamw_bf16_moments",
        "balanced",
    )
    layout = LayoutFields.model_validate(found["layout"]).build()
    assert (layout.tp, layout.pp, layout.dp_shard, layout.ep, layout.etp) == (2, 8, 64, 64, 1)
    assert (layout.schedule, layout.virtual_stages, layout.balanced) == ("interleaved", 4, True)
    assert (layout.zero_stage, layout.recompute, layout.recompute_modules) == (
        1,
        "selective",
        ("mla_up_proj", "mlp"),
    )
    assert found["num_chips"] == layout.num_devices == 1024


@pytest.mark.parametrize(
    ("changes", "part", "expected"),
    [
        (
            {"use_distributed_optimizer": False},
            "layout",
            {"dp_shard": 1, "dp_replicate": 32, "zero_stage": 0},
        ),
        (
            {"num_distributed_optimizer_instances": 4},
            "layout",
            {"dp_shard": 8, "dp_replicate": 4, "zero_stage": 1},
        ),
        ({"use_megatron_fsdp": True}, "layout", {"dp_shard": 32, "zero_stage": 3, "reshard": True}),
        (
            {"use_torch_fsdp2": True, "torch_fsdp2_reshard_after_forward": False},
            "layout",
            {"reshard": False},
        ),
        ({"world_size": None}, "layout", {"dp_shard": 32}),
        ({"data_parallel_size": None}, "layout", {"dp_shard": 32}),
        (
            {"tensor_model_parallel_size": 1, "data_parallel_size": 64},
            "layout",
            {"sequence_parallel": False},
        ),
        ({"recompute_granularity": "full"}, "layout", {"recompute": "full"}),
        (
            {
                "recompute_granularity": "full",
                "recompute_method": "block",
                "recompute_num_layers": 3,
            },
            "layout",
            {"recompute": "full", "recompute_layers": 3},
        ),
        (
            {
                "recompute_granularity": "full",
                "recompute_method": "uniform",
                "recompute_num_layers": 3,
            },
            "layout",
            {"recompute": "full", "recompute_layers": None},
        ),
        (
            {"cpu_offloading_num_layers": 4},
            "layout",
            {"offload_activations": True, "offload_optimizer": False},
        ),
        ({"optimizer_cpu_offload": True}, "layout", {"offload_optimizer": True}),
        (
            {
                "pipeline_model_parallel_size": 4,
                "num_layers_per_virtual_pipeline_stage": 2,
                "data_parallel_size": 8,
            },
            "layout",
            {"pp": 4, "schedule": "interleaved", "virtual_stages": 4, "balanced": False},
        ),
        (
            {
                "pipeline_model_parallel_size": 4,
                "data_parallel_size": 8,
                "decoder_first_pipeline_num_layers": 7,
            },
            "layout",
            {"schedule": "1f1b", "virtual_stages": 1, "balanced": True},
        ),
        ({"group_query_attention": False}, "model", {"num_key_value_heads": 32}),
        ({"padded_vocab_size": 128512}, "model", {"vocab_size": 128512}),
        ({"swiglu": False}, "model", {"gated_mlp": False}),
        ({"untie_embeddings_and_output_weights": False}, "model", {"tie_word_embeddings": True}),
        ({"window_size": "(127, 0)"}, "model", {"sliding_window": 128}),
        (
            {"window_size": "(127, 0)", "window_attn_skip_freq": 2},
            "model",
            {"sliding_window": 128, "full_attention_period": 2},
        ),
        (
            {"window_size": "(511, 0)", "window_attn_skip_freq": [1, 1, 1, 0] * 8},
            "model",
            {"sliding_window": 512, "full_attention_period": 4},
        ),
        ({"fp8": "hybrid"}, "workload", {"precision": "fp8"}),
        ({"fp4": "e2m1"}, "workload", {"precision": "nvfp4"}),
        ({"bf16": False, "fp16": True}, "workload", {"precision": "fp16"}),
        ({"bf16": False}, "workload", {"precision": "fp32"}),
        ({"optimizer": "sgd"}, "workload", {"optimizer": "sgd_momentum"}),
    ],
)
def test_one_argument_changes_what_it_means(changes: dict, part: str, expected: dict) -> None:
    found = asked(**{**LLAMA, **changes})
    assert {name: found[part].get(name) for name in expected} == expected
    ShapeFields.model_validate(found["model"]).build()
    WorkloadFields.model_validate(found["workload"]).build()
    assert (
        LayoutFields.model_validate(found["layout"]).build().num_devices == found["num_chips"] == 64
    )


@pytest.mark.parametrize(
    ("frequency", "sparse"),
    [
        (1, [True] * 8),
        ([0, 1, 1, 1, 1, 1, 1, 1], [False] + [True] * 7),
        (2, [False, True] * 4),
        ("([0]*3+[1])*2", [False, False, False, True] * 2),
        ("[0]*2+[1]*6", [False] * 2 + [True] * 6),
    ],
)
def test_sparse_layers_are_where_the_frequency_puts_them(
    frequency: object, sparse: list[bool]
) -> None:
    arguments = {
        **DEEPSEEK,
        "num_layers": 8,
        "moe_layer_freq": frequency,
        "pipeline_model_parallel_layout": None,
    }
    model = ShapeFields.model_validate(asked(**arguments)["model"]).build()
    assert [layer.moe is not None for layer in model.layers] == sparse


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_layers", None), ("num_layers", "many"), ("num_layers", 0), ("num_layers", 10**9),
        ("num_layers", "9" * 5000), ("hidden_size", None), ("ffn_hidden_size", None), ("num_attention_heads", "1.5"),
        ("num_query_groups", None),
        ("vocab_size", None), ("seq_length", None), ("global_batch_size", -1), ("micro_batch_size", None),
        ("tensor_model_parallel_size", 3), ("world_size", 63), ("swiglu", "yes"), ("optimizer", "lion"),
        ("recompute_granularity", "some"), ("window_size", "wide"), ("num_distributed_optimizer_instances", 5),
        ("is_hybrid_model", True), ("hybrid_override_pattern", "M-M*-"),
    ],
)  # fmt: skip
def test_an_argument_that_cannot_be_used_is_named(name: str, value: object) -> None:
    with pytest.raises(Invalid) as refused:
        asked(**{**LLAMA, name: value})
    named = "world_size" if name == "tensor_model_parallel_size" else name
    assert refused.value.field == f"log.arguments.{named}"
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("moe_layer_freq", "[0]*3+[1]*57"), ("moe_layer_freq", "[0]*61"), ("moe_layer_freq", "[1,1,0]*20+[1]"),
        ("moe_layer_freq", "__import__('os').abort()"), ("moe_layer_freq", "[1]*9999999"), ("moe_router_topk", None),
        ("kv_lora_rank", None), ("num_experts", 1), ("num_layers_per_virtual_pipeline_stage", 2),
    ],
)  # fmt: skip
def test_experts_that_cannot_be_read_are_named(name: str, value: object) -> None:
    with pytest.raises(Invalid) as refused:
        asked(**{**DEEPSEEK, "virtual_pipeline_model_parallel_size": None, name: value})
    assert refused.value.field == f"log.arguments.{name}"


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from([*DEEPSEEK, "window_attn_skip_freq", "use_torch_fsdp2"]),
        st.text(max_size=20)
        | st.integers().map(str)
        | st.sampled_from(["None", "True", "(1,1)", "[1]*61", "(" * 9]),
        max_size=6,
    )
)
def test_no_arguments_raise_anything_else(changes: dict[str, str]) -> None:
    refused = "log.arguments."
    try:
        found = question({name: str(value) for name, value in DEEPSEEK.items()} | changes)
    except Invalid as error:
        refused = error.field
    else:
        assert set(found) == {"model", "workload", "layout", "num_chips"}
    assert refused.startswith("log.arguments.")


@pytest.mark.parametrize(
    ("text_", "switches"),
    [
        ("[0,1,1]", [0, 1, 1]),
        ("([0]*3+[1]*58)", [0] * 3 + [1] * 58),
        ("([1]*3+[0]*1)*3", [1, 1, 1, 0] * 3),
        ("[1]+[0]*2*3", [1] + [0] * 6),
        ("([0])+([1]*2)*2", [0, 1, 1, 1, 1]),
        ("[0]*3+", []),
        ("[10,1]", []),
        ("[2]*3", []),
        ("[b]", []),
        ("", []),
        ("[1]*101", []),
        ("(" * 3000 + "[1]" + ")" * 3000, [1]),
        ("(" * 3000 + "[1]", []),
    ],
)
def test_expressions_of_lists_are_those_of_python(text_: str, switches: list[int]) -> None:
    assert layer_switches(text_, 100) == [switch == 1 for switch in switches]


@needs_folder
@pytest.mark.parametrize("name", ["megatron-lines.log", "torchtitan-lines.log"])
def test_a_log_without_a_dump_has_no_arguments(name: str) -> None:
    assert logs.read(sample(name)).arguments == {}


def noisy(count: int, ms: float) -> list[float]:
    return [ms * (1 + 0.002 * (step % 5)) for step in range(count)]


def test_a_log_of_two_speeds_says_where_it_changed() -> None:
    times = [*noisy(40, 4000.0), *noisy(60, 4400.0)]
    reading = logs.read(text(megatron(100 + step, f"{ms:.1f}") for step, ms in enumerate(times)))
    before, after = reading.levels
    assert before.first_step == 100
    assert abs(after.first_step - 140) <= 2
    assert (before.value, after.value) == pytest.approx((4.0, 4.4), rel=0.01)


@pytest.mark.parametrize(("slower", "steps"), [(1.4, 40), (1.25, 45), (0.4, 40), (2.5, 15)])
def test_a_speed_that_changed_for_good_is_a_level_however_far_it_went(
    slower: float, steps: int
) -> None:
    times = [*noisy(100 - steps, 4000.0), *noisy(steps, 4000.0 * slower)]
    times[20], times[-3] = 5 * times[20], 5 * times[-3]  # pauses at either
    reading = logs.read(text(megatron(1 + step, f"{ms:.1f}") for step, ms in enumerate(times)))
    assert reading.left_out == {"warm_up": 1, "slow": 2}
    assert [level.steps for level in reading.levels] == pytest.approx(
        [98 - steps, steps - 1], abs=2
    )
    assert [level.value for level in reading.levels] == pytest.approx([4.0, 4.0 * slower], rel=0.01)


@pytest.mark.parametrize(
    "unsteady", [[4000.0, 9000.0] * 10, [4000.0 * (1 + 10 * 0.8**step) for step in range(30)]]
)
def test_pauses_and_a_long_warm_up_are_no_levels(unsteady: list[float]) -> None:
    reading = logs.read(
        text(
            megatron(1 + step, f"{ms:.1f}")
            for step, ms in enumerate([*unsteady, *noisy(60, 4000.0)])
        )
    )
    assert len(reading.levels) == 1
    assert reading.high < 4.9


def test_a_clock_that_runs_ahead_for_long_is_no_level() -> None:
    reading = logs.read(text(maxtext(step, 5.6 if step < 40 else 0.002) for step in range(60)))
    assert (reading.value, reading.left_out) == (5.6, {"warm_up": 1, "too_fast": 20})


def test_a_log_of_one_speed_has_one_level() -> None:
    times = [*noisy(50, 4000.0), 9000.0, *noisy(50, 4010.0)]  # a checkpoint between
    reading = logs.read(text(megatron(1 + step, f"{ms:.1f}") for step, ms in enumerate(times)))
    (level,) = reading.levels
    assert (level.first_step, level.steps, level.value) == (2, reading.steps_used, reading.value)


@settings(max_examples=10)
@given(st.integers(6000, 9000), st.integers(0, 2**16))
def test_a_long_log_is_cut_into_its_levels(count: int, seed: int) -> None:
    half = count // 2
    wobble = [((seed + 7919 * step) % 101) / 1e5 for step in range(count)]
    times = [(1000.0 if step < half else 1200.0) * (1 + wobble[step]) for step in range(count)]
    reading = logs.read(text(megatron(1 + step, f"{ms:.2f}") for step, ms in enumerate(times)))
    levels = reading.levels
    assert [level.value for level in levels] == pytest.approx([1.0, 1.2], rel=0.01)
    assert sum(level.steps for level in levels) == reading.steps_used
    assert abs(levels[1].first_step - 1 - half) <= 5


# NeMo's parameters

NEMO = {
    "micro_batch_size": 1, "global_batch_size": 128, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4,
    "virtual_pipeline_model_parallel_size": 5, "context_parallel_size": 1, "num_layers": 80, "hidden_size": 8192,
    "ffn_hidden_size": 28672, "num_attention_heads": 64, "num_query_groups": 8, "kv_channels": None, "bias": False,
    "activation": "fast-swiglu", "share_embeddings_and_output_weights": False, "sequence_parallel": True, "fp8": True,
    "activations_checkpoint_granularity": None, "optim/name": "distributed_fused_adam", "data/seq_length": 8192,
    "optim/betas": [0.9, 0.95], "precision": "bf16-mixed",
}  # fmt: skip
AROUND = (
    "[NeMo I 2025-06-11 01:53:27 nemo_logging:393] Padded vocab_size: 50432, original vocab_size:"
    " 50257, dummy: 175.\nInitializing distributed: GLOBAL_RANK: 0, MEMBER: 1/64\n"
)


def nemo_log(**changes: object) -> str:
    given = {**NEMO, **changes}
    line = "  ".join(f"cfg/{name} : {value}" for name, value in given.items())
    return (
        f"{AROUND}DLL 2025-06-11 01:54:41.446837 - PARAMETER {line}"
        f" \n{dll_log([9.0, 4.0, 4.0, 4.0], 1)}"
    )


def of_nemo(**changes: object) -> dict:
    return dict(question(logs.read(nemo_log(**changes)).arguments))


def test_the_parameters_of_nemo_are_the_question_that_they_state() -> None:
    found = of_nemo()
    model = ShapeFields.model_validate(found["model"]).build()
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (80, 8192, 50432)
    assert model.parameters.total == pytest.approx(69.3e9, rel=5e-3)
    assert found["workload"] == {
        "seq_len": 8192,
        "global_batch": 128,
        "precision": "fp8",
        "optimizer": "adamw",
    }
    layout = LayoutFields.model_validate(found["layout"]).build()
    assert (layout.tp, layout.pp, layout.virtual_stages, layout.dp_shard, layout.zero_stage) == (
        2,
        4,
        5,
        8,
        1,
    )
    assert (layout.recompute, layout.sequence_parallel, found["num_chips"]) == ("none", True, 64)


@pytest.mark.parametrize(
    ("changes", "part", "expected"),
    [
        ({"fp8": False}, "workload", {"precision": "bf16"}),
        ({"fp8": False, "precision": 16}, "workload", {"precision": "fp16"}),
        ({"fp8": False, "precision": 32}, "workload", {"precision": "fp32"}),
        ({"optim/name": "fused_adam"}, "layout", {"dp_shard": 1, "dp_replicate": 8, "zero_stage": 0}),
        ({"activations_checkpoint_granularity": "selective"}, "layout", {"recompute": "selective"}),
        (
            {
                "activations_checkpoint_granularity": "full", "activations_checkpoint_method": "block",
                "activations_checkpoint_num_layers": 2,
            },
            "layout",
            {"recompute": "full", "recompute_layers": 2},
        ),
        ({"num_query_groups": None}, "model", {"num_key_value_heads": 64}),
        ({"activation": "gelu"}, "model", {"gated_mlp": False}),
        ({"share_embeddings_and_output_weights": True}, "model", {"tie_word_embeddings": True}),
    ],
)  # fmt: skip
def test_one_parameter_of_nemo_changes_what_it_means(
    changes: dict, part: str, expected: dict
) -> None:
    found = of_nemo(**changes)
    assert {name: found[part].get(name) for name in expected} == expected


def test_a_nemo_log_without_parameters_states_nothing() -> None:
    assert logs.read(AROUND + dll_log([9.0, 4.0, 4.0, 4.0], 1)).arguments == {}


@needs_folder
@pytest.mark.parametrize(
    ("name", "chips", "tp", "pp", "virtual", "micro_batch"),
    [("nemo-llama3-70b-64xb200.log", 64, 2, 4, 5, 1), ("nemo-llama3-8b-8xb200.log", 8, 1, 1, 1, 2)],
)
def test_a_real_log_of_nemo_says_what_ran(
    name: str, chips: int, tp: int, pp: int, virtual: int, micro_batch: int
) -> None:
    found = dict(question(logs.read(sample(name)).arguments))
    layout = found["layout"]
    assert (found["num_chips"], layout["tp"], layout["pp"], layout["virtual_stages"]) == (
        chips,
        tp,
        pp,
        virtual,
    )
    assert (layout["micro_batch"], found["workload"]["precision"]) == (micro_batch, "fp8")
    assert found["model"]["vocab_size"] > 50257
