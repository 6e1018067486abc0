"""The versions of profile, published runs and catalogue that count for a tenant now. While none of
them changes, a question keeps its answer. A tenant's *own* profile predicts for that tenant in
place of the shared one while it has an active version."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, func, or_, select
from sqlalchemy.orm import Session

from service.errors import NotFound
from service.own_profile import own_profile_id
from service.store.prepared import first_row
from service.store.tables import EvidenceRow, ProfileRow, ProfileVersionRow, RegisteredEntryRow

DEFAULT_PROFILE = "default"
"""The profile that predicts unless a request names another."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions at one moment, as one transaction reads them."""

    profile_id: str
    """The profile that predicts: the tenant's own where it is in use, else the default one."""
    profile: int
    """Active version of the profile."""
    profile_hash: str
    """The hash of its content."""
    evidence: str | None
    """The release of the published runs."""
    registered_entries: int
    """The number of registered versions of entries. Versions are only ever added, so that an equal
    number means an equal catalogue."""


_CURRENT = (
    select(
        ProfileVersionRow.profile_id,
        ProfileVersionRow.version,
        ProfileVersionRow.content_hash,
        select(EvidenceRow.release).limit(1).scalar_subquery(),
        select(func.count()).select_from(RegisteredEntryRow).scalar_subquery(),
    )
    .join(
        ProfileRow,
        (ProfileVersionRow.profile_id == ProfileRow.id)
        & (ProfileVersionRow.version == ProfileRow.active_version),
    )
    .where(or_(ProfileRow.id == DEFAULT_PROFILE, ProfileRow.id == bindparam("own")))
    .order_by(ProfileRow.tenant.is_(None))  # the own one first
    .limit(1)
)
"""One query, made once: answers that are known already cost little more than it."""


def current_versions(session: Session, tenant: str | None) -> Versions:
    """Returns the versions that predict for a tenant: of its own profile if that has an active
    version, else of the shared one. Without a tenant (None), the shared profile predicts. Raises
    NotFound before the service has stored its profile."""
    own = None if tenant is None else own_profile_id(tenant)
    row = first_row(session, _CURRENT, {"own": own})
    if row is None:
        raise NotFound("profile", DEFAULT_PROFILE)
    return Versions(*row)
