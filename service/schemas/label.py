"""Labels of reports."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

_LABEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}"
_LabelName = Annotated[str, StringConstraints(pattern=rf"^{_LABEL_NAME}$")]
_LabelValue = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Labels = Annotated[dict[_LabelName, _LabelValue], Field(max_length=16)]
"""Labels by which a caller finds a run, such as job_id, user and partition. The limit of 16 is more
than a scheduler says of a job; names are limited as labels of Kubernetes are."""
LabelFilter = Annotated[str, StringConstraints(pattern=rf"^{_LABEL_NAME}=.{{0,200}}$")]
"""`name=value`: a report has this label."""
