"""How long a caller waits for an answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.schemas.wire import Wire


class Patience(Wire):
    wait_s: Annotated[float, Field(gt=0, le=600)] | None = None
    """Seconds within which the answer has to come, the time in the queue included. A search then
    ends early, with the best so far; where the turn does not come in time, or the cost model is not
    compiled yet, the answer is a 503."""
