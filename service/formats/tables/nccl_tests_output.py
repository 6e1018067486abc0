"""The rows that an output of nccl-tests (or rccl-tests) has, whatever collective they are of. The
process that reads large texts imports this module, and nothing that predicts."""

from __future__ import annotations

from service.formats.tables.nccl_tests_json import read_json
from service.formats.tables.nccl_tests_rows import Output
from service.formats.tables.nccl_tests_text import read_text

__all__ = ["Output", "read_output"]


def read_output(text: str) -> Output:
    """Returns the rows of the table that nccl-tests print, or else of the JSON that newer
    releases write."""
    output = read_text(text)
    # Where the text is no JSON either, `output` says why no row could be read.
    return output if output.rows else read_json(text) or output
