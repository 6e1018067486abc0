"""Lines of the Trainer of transformers and of what is built on it."""

from __future__ import annotations

from collections.abc import Container, Sequence

import pytest

from models.errors import Invalid
from service.formats import logs
from tests.service.formats.logs.dialects import megatron, text


def bar(
    step: int, rate: str, total: int = 100, what: str = "", elapsed_s: float | None = None
) -> str:
    """As tqdm draws it, each over the one before."""
    minutes, seconds = divmod(int(3 * step if elapsed_s is None else elapsed_s), 60)
    percent = 100 * step // total
    return (
        f"\r{what}{percent:3d}%|{'█' * (percent // 10):10}| {step}/{total}"
        f" [{minutes:02d}:{seconds:02d}<04:15, {rate}]"
    )


def bars(seconds: Sequence[float], total: int = 2000, drawn: Container[int] = range(10**6)) -> str:
    """The bar of steps that take so long, with the mean of tqdm (tqdm/std.py, EMA). `drawn` are the
    steps that draw it."""
    text = ""
    elapsed_s = last_s = mean_s = mean_steps = 0.0
    last = 0
    for step, duration in enumerate(seconds, 1):
        elapsed_s += duration
        if step in drawn:
            mean_s = 0.3 * (elapsed_s - last_s) + 0.7 * mean_s
            mean_steps = 0.3 * (step - last) + 0.7 * mean_steps
            rate = f"{mean_s / mean_steps:5.2f}s/it"
            if mean_s < mean_steps:
                rate = f"{mean_steps / mean_s:5.2f}it/s"
            text += bar(step, rate, total, elapsed_s=elapsed_s)
            last, last_s = step, elapsed_s
    return text


LOSS = "{'loss': 1.2345, 'grad_norm': 0.51, 'learning_rate': 1e-05, 'epoch': 0.01}"
END = (
    "{'train_runtime': 302.5, 'train_samples_per_second': 21.157, 'train_steps_per_second': 0.331,"
    " 'train_loss': 1.2, 'epoch': 1.0}"
)


def test_the_bar_of_the_training_is_read_and_its_first_steps_are_not() -> None:
    drawn = bars([35.2, *[2.90, 2.91] * 20])
    reading = logs.read(f"{drawn}\n{LOSS}\n{END}\n")
    assert (reading.framework, reading.unit) == ("huggingface", "step_time_s")
    assert reading.value == pytest.approx(2.905, abs=0.01)
    assert reading.left_out == {"warm_up": 1}


def test_a_bar_of_fast_steps_prints_their_rate() -> None:
    assert logs.read(bars([0.8] * 8)).value == 0.8


@pytest.mark.parametrize("every", [5, 10, 20])
@pytest.mark.parametrize("seconds", [0.4, 2.0, 5.3])
def test_a_pause_is_in_one_step_and_not_in_the_mean_of_those_after_it(
    every: int, seconds: float
) -> None:
    times = [seconds + (60 if step and step % every == 0 else 0) for step in range(60)]
    reading = logs.read(bars(times))
    assert reading.value == pytest.approx(seconds, rel=0.01)
    assert reading.left_out["slow"] == 59 // every
    assert reading.high < 1.05 * seconds


def test_a_bar_that_is_drawn_again_for_a_line_is_one_step() -> None:
    drawn = bars([3.0] * 9)
    again = drawn.rpartition("\r")[2]
    assert logs.read(f"{drawn}\n{LOSS}\n\r{again}\r{again}").steps_found == 9


@pytest.mark.parametrize("seconds", [2.0, 3.4])
def test_where_drawings_are_missing_the_clock_tells_the_time_between_them(seconds: float) -> None:
    times = [seconds + (90 if step % 70 == 0 else 0) for step in range(1000)]
    drawings = bars(times).split("\r")[1:]
    reading = logs.read("".join(f"\r{drawing}" for drawing in drawings[::25]))
    assert reading.value == pytest.approx(seconds, rel=0.02)


def test_the_steps_before_a_resumed_run_do_not_count() -> None:
    # 900 steps that were done before are counted with the first, in one drawing.
    drawn = bars([*[0.0] * 900, *[2.0] * 30], drawn=range(901, 931))
    assert logs.read(drawn).value == pytest.approx(2.0, rel=0.02)


def test_a_line_cut_out_of_a_bar_is_read() -> None:
    assert logs.read("12/100 [00:35<04:15, 2.9s/it]").value == 2.9


@pytest.mark.parametrize(
    "what",
    ["Map: ", "Loading checkpoint shards: ", "Tokenizing: ", "Capturing graphs (mixed, FULL): "],
)
def test_bars_of_other_work_are_no_steps(what: str) -> None:
    with pytest.raises(Invalid, match="progress bar"):
        logs.read(bar(3, "2.00s/it", what=what))


def test_the_bars_of_an_evaluation_are_told_by_their_length() -> None:
    training = [bar(step, "3.00s/it") for step in range(1, 30)]
    evaluation = [bar(step, "9.50it/s", total=40) for step in range(1, 12)]
    assert logs.read("".join([*training, *evaluation, bar(30, "3.00s/it")])).value == 3.0


TRAINED = "{'loss': 1.2, 'epoch': 0.1}\n"


@pytest.mark.parametrize(
    "log",
    [
        # The bar of a process that ends is drawn once more, with the mean of the whole run.
        bars([9.0] * 20, 1000) + bar(20, " 8.50s/it", 1000) + "\n" + bars([5.3] * 15, 500),
        bars([9.0] * 20, 1000) + "\n" + bars([5.3] * 10, 500) + f"\n{TRAINED}",
        "Total optimization steps = 1,000\n"
        + bars([9.0] * 20, 1000)
        + "\nTotal optimization steps = 500\n"
        + bars([5.3] * 15, 500),
    ],
)
def test_of_two_runs_in_one_log_the_last_counts(log: str) -> None:
    reading = logs.read(log)
    assert reading.value == pytest.approx(5.3, rel=0.01)
    assert reading.earlier_runs == 1


EVALUATED = "{'eval_loss': 1.5, 'eval_runtime': 60.0, 'epoch': 1.0}\n"


@pytest.mark.parametrize(
    "log",
    [
        bars([2.0] * 20) + "\n" + bars([15.0] * 2, 4),  # killed within it
        bars([2.0] * 20, 20) + bar(20, " 1.90s/it", 20) + bars([15.0] * 2, 2) + EVALUATED,
        bars([2.0] * 10, 20) + bars([1.0] * 9, 9) + EVALUATED + bar(11, " 7.00s/it", 20),
    ],
)
def test_a_bar_of_an_evaluation_is_no_later_run(log: str) -> None:
    reading = logs.read(log)
    assert reading.value == pytest.approx(2.0, rel=0.01)
    assert reading.earlier_runs == 0


def test_the_mean_of_the_whole_run_is_what_is_left_without_bars() -> None:
    assert logs.read(END).value == pytest.approx(3.025)  # of 302.5 s x 0.331/s = 100 steps
    steps = "[INFO|trainer.py:2134] 2025-04-19 12:10:44,123 >>   Total optimization steps = 100\n"
    reading = logs.read(steps + END)
    assert reading.value == pytest.approx(3.025)
    assert reading.timestamp is not None


ANNOUNCED = "  Total optimization steps = 1,000\n"
RESUMED = ANNOUNCED + "  Continuing training from global step 900\n"


@pytest.mark.parametrize(
    ("log", "seconds"),
    [
        (RESUMED + END, 3.025),
        (ANNOUNCED + RESUMED + END, 3.025),
        (RESUMED + ANNOUNCED + END, 0.3025),  # of two runs, the last was not resumed
        (RESUMED + "{'train_runtime': 10.0}\n" + RESUMED + END, 3.025),
    ],
)
def test_the_runtime_of_a_resumed_run_is_of_the_steps_since(log: str, seconds: float) -> None:
    assert logs.read(log).value == pytest.approx(seconds)


def test_a_run_that_was_resumed_at_its_end_has_no_step() -> None:
    with pytest.raises(Invalid, match="has no step"):
        logs.read(RESUMED.replace("900", "1000") + END)


def test_the_table_of_metrics_is_read() -> None:
    table = (
        "***** train metrics *****\n  epoch                    =        1.0\n"
        "  train_runtime            = 0:05:02.50\n  train_steps_per_second   =      0.331\n"
    )
    assert logs.read(table + "  Total optimization steps = 1,00\n").value == pytest.approx(3.025)
    assert logs.read(table).value == pytest.approx(1 / 0.331)


def test_the_journal_of_llama_factory_is_read_by_its_clock() -> None:
    lines = [
        f'{{"current_steps": {10 * k}, "total_steps": 100, "loss": 1.2, "percentage": {10.0 * k},'
        f' "elapsed_time": "0:0{k}:0{k}", "remaining_time": "0:10:30"}}'
        for k in range(1, 6)
    ]
    assert logs.read(text(lines)).value == pytest.approx(6.1)


def test_memory_that_axolotl_prints_is_kept() -> None:
    line = (
        "{'loss': 1.2, 'memory/max_active (GiB)': 15.4, 'memory/max_allocated (GiB)': 15.5,"
        " 'memory/device_reserved (GiB)': 18.57, 'epoch': 0.01}\n"
    )
    reading = logs.read(line + bar(3, "2.00s/it"))
    assert (reading.memory_gib, reading.memory_kind) == (18.57, "reserved")


def test_bars_beside_the_steps_of_another_framework_are_not_read() -> None:
    lines = [megatron(step, 4000.0) for step in range(2, 9)]
    reading = logs.read(text([*lines, bar(3, "2.00s/it")]))
    assert (reading.framework, reading.value) == ("megatron", 4.0)


def test_the_framework_that_is_asked_for_is_read_all_the_same() -> None:
    log = text([megatron(2, 4000.0), bar(3, "2.00s/it")])
    assert logs.read(log, "huggingface").value == 2.0
