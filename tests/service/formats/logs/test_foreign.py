"""Logs that are recognised and not read."""

from __future__ import annotations

import pytest

from models.errors import Invalid
from service.formats import logs


@pytest.mark.parametrize(
    ("line", "trainer", "field"),
    [
        (
            "iteration: 10 / 100 | consumed_tokens: 1.2M | elapsed_time_per_iteration_ms: 2.35K |"
            " tokens_per_sec: 23.3K | tokens_per_sec_per_gpu: 2.91K | lm_loss: 5.1",
            "nanotron",
            "step_time_s",
        ),
        (
            "step 00004/21400 (0.02%) | loss: 8.893647 | lrm: 1.00 | dt: 989.44ms | tok/sec:"
            " 529,882 | mfu: 74.13 | total time: 0.00m",
            "nanochat",
            "step_time_s",
        ),
        (
            "Epoch 0:  24%|##3  | 188/800 [08:26<27:17,  2.67s/it, v_num=0, train_loss=1.230]",
            "Lightning",
            "step_time_s",
        ),
        ("Epoch 1/3:  24%|##3  | 188/800 [08:26<27:17,  2.67s/it]", "batches", "step_time_s"),
        ("Map: 100%|####| 500/500 [10:00<00:00,  1.20s/it]", "progress bar", "step_time_s"),
        ("Train throughput/device/tokens_per_sec: 9000.1", "Composer", "tokens_per_s_per_chip"),
        ("iter 100: loss 3.2, time 250.10ms, mfu 30%", "nanoGPT", "step_time_s"),
    ],
)
def test_a_log_that_is_not_read_is_told_what_to_send(line: str, trainer: str, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        logs.read(f"starting\n{line}\n{line}\n")
    assert trainer in refused.value.rule
    assert f"send measured.{field} (" in refused.value.rule
