"""What PyTorch says of the memory that it has run out of."""

from __future__ import annotations

import pytest

from service.formats.logs.allocator_message import allocator_message

WHOLE = (
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a"
    " total capacity of 79.11 GiB of which 1.07 GiB is free. Process 4711 has 20.50 GiB memory in"
    " use. Including non-PyTorch memory, this process has 57.50 GiB memory in use. Of the allocated"
    " memory 40.25 GiB is allocated by PyTorch, and 15.50 GiB is reserved by PyTorch but"
    " unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n"
)


def test_every_figure_is_read() -> None:
    found = allocator_message(f"step: 1\n{WHOLE}E0129 torchrun failed\n")
    assert found is not None
    assert found.asked_gib == pytest.approx(0.5)
    assert found.capacity_gib == pytest.approx(79.11)
    assert found.free_gib == pytest.approx(1.07)
    assert found.process_gib == pytest.approx(57.5)
    assert found.allocated_gib == pytest.approx(40.25)
    assert found.unallocated_gib == pytest.approx(15.5)
    assert found.others_gib == pytest.approx(20.5)


@pytest.mark.parametrize(
    ("processes", "others_gib", "held_much"),
    [
        ("Process 7 has 71.40 GiB memory in use. Including non-PyTorch memory, this process has"
         " 7.66 GiB memory in use.", 71.4, True),
        ("Process 7 has 39.40 GiB memory in use. Including non-PyTorch memory, this process has"
         " 39.50 GiB memory in use.", 39.4, True),
        ("Process 7 has 506.00 MiB memory in use. Including non-PyTorch memory, this process has"
         " 78.10 GiB memory in use.", 0.494, False),
        # In a container no process is named as this one.
        ("Process 7 has 79.08 GiB memory in use.", 0.0, False),
        ("Process 7 has 8.20 GiB memory in use. Process 9 has 70.85 GiB memory in use.", 70.85,
         True),
    ],
)  # fmt: skip
def test_what_other_processes_held_is_told_apart(
    processes: str, others_gib: float, held_much: bool
) -> None:
    found = allocator_message(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of"
        f" which 25.19 MiB is free. {processes} Of the allocated memory 6.92 GiB is allocated by"
        " PyTorch, and 210.34 MiB is reserved by PyTorch but unallocated."
    )
    assert found is not None
    assert found.others_gib == pytest.approx(others_gib, abs=0.001)
    assert found.others_held_much is held_much


@pytest.mark.parametrize(("allocated", "others_gib"), [("5.20", 72.95), ("70.10", 0.0)])
def test_a_message_of_an_early_release_tells_what_others_held(
    allocated: str, others_gib: float
) -> None:
    found = allocator_message(
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 79.15 GiB total"
        f" capacity; {allocated} GiB already allocated; 1.00 GiB free; {float(allocated):.2f} GiB"
        " reserved in total by PyTorch) If reserved memory is >> allocated memory try setting"
    )
    assert found is not None
    assert (found.capacity_gib, found.free_gib) == (79.15, 1.0)
    assert found.unallocated_gib == 0
    assert found.others_gib == pytest.approx(others_gib)


def test_a_message_that_names_no_other_process_may_leave_memory_to_others() -> None:
    found = allocator_message(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of"
        " which 1.11 GiB is free. Including non-PyTorch memory, this process has 8.00 GiB memory in"
        " use. Of the allocated memory 6.92 GiB is allocated by PyTorch"
    )
    assert found is not None
    assert found.others_gib == pytest.approx(70.0)
    assert found.others_held_much


def test_a_message_that_is_cut_off_has_fewer() -> None:
    found = allocator_message("CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a tot")
    assert found is not None
    assert found.asked_gib == pytest.approx(1.96)
    assert found.capacity_gib is None
    assert found.others_gib == 0


def test_other_logs_have_none() -> None:
    assert allocator_message("RESOURCE_EXHAUSTED: Out of memory allocating 2 bytes") is None
    assert allocator_message("") is None
