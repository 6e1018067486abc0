"""Queries of profiles and their versions. Versions are only ever added.

The *revision* of a profile counts its changes, and its *policy* says who activates new versions.
The *origin* of a version is "shipped" or "calibrated". A tenant's *own* profile predicts for that
tenant in place of the shared one, while it has an active version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import CursorResult, RowMapping, Select, func, select, update

from service.errors import NotFound
from service.store.queries import Queries
from service.store.quota import count_stored, size_of
from service.store.tables import ProfileRow, ProfileVersionRow


class ProfileQueries(Queries):
    def add(self, profile: ProfileRow) -> None:
        self._session.add(profile)
        self._session.flush()

    def add_version(self, row: ProfileVersionRow) -> None:
        """Stores a version, and raises the profile's revision, because the profile lists its
        versions. A version of a tenant's own profile counts toward the tenant's quota; one of a
        shared profile toward nobody's."""
        if row.tenant is not None:
            row.stored_bytes = size_of(row.content, row.calibration, row.learnt, row.posterior)
            count_stored(self._session, row.tenant, row.stored_bytes)
        self._session.add(row)
        self._session.flush()
        self._session.execute(
            update(ProfileRow)
            .where(ProfileRow.id == row.profile_id)
            .values(revision=ProfileRow.revision + 1)
        )

    def all(self) -> Sequence[ProfileRow]:
        return self._session.scalars(select(ProfileRow).order_by(ProfileRow.id)).all()

    def shared(self) -> Sequence[ProfileRow]:
        """Returns the profiles that all tenants share."""
        query = select(ProfileRow).where(ProfileRow.tenant.is_(None))
        return self._session.scalars(query.order_by(ProfileRow.id)).all()

    def find(self, id_: str) -> ProfileRow | None:
        return self._session.get(ProfileRow, id_)

    def get(self, id_: str) -> ProfileRow:
        return self._row(ProfileRow, id_, "profile")

    def versions(self, id_: str) -> Sequence[RowMapping]:
        """Returns version, created_at, origin and made_by of each version, oldest first. The
        content is long and not read."""
        query = _summaries(id_).order_by(ProfileVersionRow.version)
        return self._session.execute(query).mappings().all()

    def newest(self, id_: str, most: int, before: int | None = None) -> Sequence[RowMapping]:
        """Returns version, created_at, origin, made_by and calibration of at most `most` versions,
        newest first; only of versions before `before`, if that is given."""
        row = ProfileVersionRow
        query = _summaries(id_).add_columns(row.calibration)
        if before is not None:
            query = query.where(row.version < before)
        query = query.order_by(row.version.desc()).limit(most)
        return self._session.execute(query).mappings().all()

    def version(self, id_: str, version: int) -> ProfileVersionRow:
        row = self._session.get(ProfileVersionRow, (id_, version))
        if row is None:
            raise NotFound("profile version", f"{id_}/{version}")
        return row

    def content_hash(self, id_: str, version: int) -> str:
        """Returns the hash of a version's content, without reading the content, which is long.
        Raises NotFound."""
        is_version = ProfileVersionRow.profile_id == id_, ProfileVersionRow.version == version
        digest = self._session.scalars(
            select(ProfileVersionRow.content_hash).where(*is_version)
        ).first()
        if digest is None:
            raise NotFound("profile version", f"{id_}/{version}")
        return digest

    def active(self, id_: str) -> ProfileVersionRow:
        """Returns the active version of a profile. Raises NotFound where none is active, as only a
        tenant's own profile may be."""
        version = self.get(id_).active_version
        if version is None:
            raise NotFound("active version of profile", id_)
        return self.version(id_, version)

    def latest(self, id_: str, origin: str | None = None) -> ProfileVersionRow:
        """Returns the latest version of a shared profile, or the latest of one origin. There always
        is a shipped one, because shared profiles are stored with it."""
        return self._session.scalars(_newest_first(id_, origin).limit(1)).one()

    def find_latest(self, id_: str) -> ProfileVersionRow | None:
        """Returns the latest version of any profile. None where it has no version: the policy of a
        tenant's own profile may be set first."""
        return self._session.scalars(_newest_first(id_).limit(1)).first()

    def revision(self, id_: str) -> int:
        """Returns the profile's revision, with the changes of this transaction."""
        return self._session.scalars(select(ProfileRow.revision).where(ProfileRow.id == id_)).one()

    def posterior(self, id_: str, version: int) -> dict[str, Any] | None:
        """Returns the posterior of a version as JSON; None where it has none. The next calibration
        starts from it (models.calibration.posterior)."""
        is_version = ProfileVersionRow.profile_id == id_, ProfileVersionRow.version == version
        return self._session.scalars(select(ProfileVersionRow.posterior).where(*is_version)).one()

    def activate(
        self, id_: str, version: int | None, revision: int, policy: dict[str, Any] | None = None
    ) -> bool:
        """Makes a version the active one, and sets the policy if one is given. With None no version
        is active; only a tenant's own profile may be without. Changes nothing and returns False if
        the profile has changed since the caller read it at `revision`."""
        new_policy = {"policy": policy} if policy else {}
        return self._change(id_, revision, active_version=version, **new_policy)

    def count_own_in_use(self) -> int:
        """Returns the number of tenants for which a version of their own is active."""
        own = ProfileRow.tenant.is_not(None), ProfileRow.active_version.is_not(None)
        return self._session.scalars(select(func.count(ProfileRow.id)).where(*own)).one()

    def set_policy(self, id_: str, policy: dict[str, Any], revision: int) -> bool:
        """Sets the policy. Changes nothing and returns False if the profile has changed since
        the caller read it at `revision`."""
        return self._change(id_, revision, policy=policy)

    def _change(self, id_: str, revision: int, **values: Any) -> bool:
        """Sets columns of a profile and raises its revision, the count of its changes. Changes
        nothing and returns False if the profile is no longer at `revision`, the one that the caller
        has read: somebody else has changed it meanwhile."""
        result = self._session.execute(
            update(ProfileRow)
            .where(ProfileRow.id == id_, ProfileRow.revision == revision)
            .values(**values, revision=ProfileRow.revision + 1)
            # A row that the session has loaded gets the new values too.
            .execution_options(synchronize_session="fetch")
        )
        return isinstance(result, CursorResult) and result.rowcount == 1


def _summaries(id_: str) -> Select[Any]:
    """Returns the query of version, created_at, origin and made_by of a profile's versions."""
    row = ProfileVersionRow
    made_by = row.content["made_by"].as_string().label("made_by")
    query = select(row.version, row.created_at, row.origin, made_by)
    return query.where(row.profile_id == id_)


def _newest_first(id_: str, origin: str | None = None) -> Select[ProfileVersionRow]:
    """Returns the query of a profile's versions, or of those of one origin, newest first."""
    versions = select(ProfileVersionRow).where(ProfileVersionRow.profile_id == id_)
    if origin is not None:
        versions = versions.where(ProfileVersionRow.origin == origin)
    return versions.order_by(ProfileVersionRow.version.desc())
