"""The time that a caller waits for an answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.schemas.wire import Wire


class Patience(Wire):
    wait_s: Annotated[float, Field(gt=0, le=600)] | None = None
    """Seconds within which the answer has to come, from when the request came, the time in the
    queue included. A search ends after three quarters of them at the latest, with the best so far;
    where the turn does not come in time, or the cost model is not compiled yet, the answer is a
    503. What is said of the result is not cut short: it takes less than half a second of a core, or
    two where the largest clusters (60,480 chips) are searched."""
