"""The variables that callers of a service set. They are no settings of the service, which may be
started in the same shell or job."""

from __future__ import annotations

OF_CALLERS = frozenset(
    {
        "SHARDWRIGHT_URL",
        "SHARDWRIGHT_KEY",
        "SHARDWRIGHT_KEY_FILE",
        "SHARDWRIGHT_TIMEOUT_S",
        "SHARDWRIGHT_ID",
        "SHARDWRIGHT_CHOICE",
        "SHARDWRIGHT_RANK",
        "SHARDWRIGHT_CHECK",
        "SHARDWRIGHT_HOOKS",
    }
)
