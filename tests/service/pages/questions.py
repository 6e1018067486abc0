"""Questions as the form sends them, for tests of the pages."""

from __future__ import annotations

from typing import Any

FORM = {
    "model": "llama-3.1-8b",
    "cluster": "h100",
    "chips": "64",
    "seq_len": "8192",
    "batch": "128",
    "stack": "torchtitan",
    "precision": "bf16",
}
BODY: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": {"preset": "h100", "num_chips": 64},
    "workload": {"seq_len": 8192, "global_batch": 128, "precision": "bf16"},
    "stack": "torchtitan",
    "constraints": {},
}
"""Returns the question as a body of the API."""
HOSTILE = "</script><img src=x onerror=alert(1)>\"'"
"""A name that would run a script where it is not shown as text."""
