"""The kind and the figures of a reason, which beside it is a sentence."""

from __future__ import annotations

from models.advice.reason import Figure, Kind
from service.schemas.wire import Document


class ReasonFacts(Document):
    """The figures of a sentence of `reasons`, for programs: times in seconds (`_s`), memory in GiB
    (`_gib`), shares and probabilities between 0 and 1."""

    kind: Kind
    figures: dict[str, Figure]
