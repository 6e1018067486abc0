"""Stores versions of profiles: seeds the shipped one, finds the one to predict with, and activates
another.

The *shared* profile predicts for all tenants. A tenant's *own* profile, learnt from its reports
alone, predicts for it instead while one of its versions is active.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from cachetools import LRUCache, cached

from models.calibration.posterior import Posterior, shipped_posterior
from models.errors import Invalid
from models.spec.profile import Profile, shipped_profile
from service.errors import Conflict, NotFound, PreconditionFailed
from service.identifiers import digest
from service.nearest_names import unknown_name
from service.own_profile import own_profile_id
from service.resolve.disclosure import Disclosure
from service.schemas.list_query import ListQuery
from service.schemas.profile import (
    ListedVersion,
    Policy,
    ProfileAnswer,
    ProfilePage,
    ProfileVersionAnswer,
    VersionPage,
    VersionSummary,
)
from service.schemas.question import ProfileWanted
from service.schemas.stored import read_stored
from service.store import Rows, Store, UseCase
from service.store.cursors import cut_page, read_cursor
from service.store.reports import ReportFilter
from service.store.tables import ProfileRow, ProfileVersionRow
from service.store.versions import DEFAULT_PROFILE

_PARSED = 64
"""Versions of profiles that are kept in memory, one to two MB each. Tenants have their own."""


def seed(store: Store) -> None:
    """Stores the shipped profile, unless the database has it.

    The profile of another release becomes a new version, which is activated if a shipped version
    was active. A lock lets only one of several starting processes do this.
    """
    shipped = shipped_profile()
    with store.writing() as rows:
        rows.lock(f"profile:{shipped.id}")
        profile = rows.profiles.find(shipped.id)
        if profile is None:
            install_profile(rows, shipped, shipped_posterior())
            return
        if rows.profiles.latest(shipped.id, "shipped").content_hash == _content_hash(shipped):
            return
        # A calibrated version stays active: it was learnt from this installation's reports.
        was_shipped = rows.profiles.active(shipped.id).origin == "shipped"
        row = add_version(rows, shipped, "shipped", shipped_posterior())
        if was_shipped:
            rows.profiles.activate(shipped.id, row.version, rows.profiles.revision(shipped.id))


def install_profile(rows: Rows, profile: Profile, posterior: Posterior) -> None:
    """Stores a profile that the database lacks, with this as its first and active version."""
    rows.profiles.add(
        ProfileRow(id=profile.id, active_version=1, revision=0, policy=Policy().model_dump())
    )
    _store_version(rows, profile, version=1, origin="shipped", posterior=posterior)


def active_profile(rows: Rows) -> Profile:
    """Returns the version that predicts for the tenant of these rows unless a request names
    another: the tenant's own version if one is active, else the active shared one."""
    return profile_version(rows, rows.versions.profile_id, version=None)


def profile_version(rows: Rows, id_: str, version: int | None) -> Profile:
    """Returns a version of the profile; the active one if `version` is None. If that is a tenant's
    own profile without an active version, returns the active shared version."""
    current = rows.versions  # the active version is known without a query
    if id_ == current.profile_id and version in (None, current.profile):
        return _parsed(rows, id_, current.profile, current.profile_hash)
    if version is None:
        version = rows.profiles.get(id_).active_version
    if version is None:  # a tenant's own profile that is not in use
        return profile_version(rows, DEFAULT_PROFILE, version=None)
    return _parsed(rows, id_, version, rows.profiles.content_hash(id_, version))


@cached(LRUCache(_PARSED), key=lambda rows, *version: version, lock=Lock())
def _parsed(rows: Rows, id_: str, version: int, content_hash: str) -> Profile:
    """Returns a version of a profile. It is read and parsed once, and kept in memory.
    `content_hash` tells it from versions of the same number in other databases."""
    return Profile.from_json(rows.profiles.version(id_, version).content)


def requested_profile(rows: Rows, requested: ProfileWanted | None) -> Profile:
    """Returns the version that a request names, or the active one without a name. Raises Invalid
    for an unknown profile or version."""
    if requested is None:
        return active_profile(rows)
    if rows.profiles.find(requested.id) is None:
        profiles = [profile.id for profile in rows.profiles.all()]
        raise unknown_name("profile.id", requested.id, profiles)
    try:
        return profile_version(rows, requested.id, version=requested.version)
    except NotFound:
        last = rows.profiles.find_latest(requested.id)
        known = "none yet" if last is None else f"1 to {last.version}"
        rule = f"profile {requested.id} has no such version; it has {known}"
        raise Invalid("profile.version", requested.version, rule) from None


def reports_of(rows: Rows, id_: str) -> ReportFilter:
    """Returns the filter for the reports that a version of this profile is compared with. For a
    tenant's own profile, these are all reports of the tenant; for a shared profile, the reports of
    runs that it predicted."""
    tenant = rows.profiles.get(id_).tenant
    return ReportFilter(profile_id=id_) if tenant is None else ReportFilter(tenant=tenant)


class Profiles(UseCase):
    def page(self) -> dict[str, Any]:
        with self._store.reading() as rows:
            items = [_profile_answer(rows, profile) for profile in rows.profiles.all()]
        return ProfilePage(items=items, next=None).model_dump(mode="json")

    def get(self, id_: str) -> tuple[dict[str, Any], str]:
        """Returns the profile and its ETag."""
        with self._store.reading() as rows:
            profile = rows.profiles.get(id_)
            return _profile_answer(rows, profile).model_dump(mode="json"), etag(profile)

    def version(self, id_: str, version: int) -> dict[str, Any]:
        with self._store.reading() as rows:
            return version_document(rows, rows.profiles.version(id_, version))

    def version_page(self, id_: str, query: ListQuery) -> dict[str, Any]:
        """Returns a page of the versions of a profile, newest first. Each has the calibration that
        made it, as far as the tenant may see it, but no coefficients."""
        place = f"profiles/{id_}"
        before = read_cursor(place, query.cursor)
        with self._store.reading() as rows:
            profile = rows.profiles.get(id_)
            is_partly_hidden = profile.tenant is None and not rows.sees_all
            disclosure = Disclosure(rows) if is_partly_hidden else None
            # One more than the page has shows whether the list goes on.
            versions = rows.profiles.newest(
                id_, query.limit + 1, None if before is None else int(before)
            )
            page, following = cut_page(
                place, versions, query.limit, lambda row: str(row["version"])
            )
            items = [_listed_version(row, profile, disclosure) for row in page]
        return VersionPage(items=items, next=following).model_dump(mode="json")

    def activate(self, id_: str, version: int, etags: Sequence[str]) -> tuple[dict[str, Any], str]:
        """Makes predictions use this version. Returns the profile and its new ETag.

        Raises PreconditionFailed unless the profile's ETag, or "*", is among `etags`.
        """
        with self._store.writing() as rows:
            profile = rows.profiles.get(id_)
            rows.profiles.version(id_, version)  # raises NotFound
            before = profile.active_version
            _set_active(rows, profile, version=version, etags=etags)
            whose = _audited_tenant(profile)
            rows.audit.add("profile.activated", f"{id_}/{version}", before=before, **whose)
        return self.get(id_)

    def deactivate(self, id_: str, etags: Sequence[str]) -> tuple[dict[str, Any], str]:
        """Makes a tenant's predictions use the shared version again. Returns the profile and its
        new ETag. Raises Conflict for a shared profile, and PreconditionFailed unless its ETag, or
        "*", is among `etags`."""
        with self._store.writing() as rows:
            profile = rows.profiles.get(id_)
            if profile.tenant is None:
                raise Conflict(
                    f"All share the profile {id_}, so that one of its versions is always active;"
                    " activate another."
                )
            before = profile.active_version
            _set_active(rows, profile, version=None, etags=etags)
            rows.audit.add("profile.deactivated", id_, before=before, **_audited_tenant(profile))
        return self.get(id_)

    def set_policy(
        self, id_: str, policy: Policy, etags: Sequence[str]
    ) -> tuple[dict[str, Any], str]:
        """Replaces the policy of a profile; a tenant's own profile may get one before it has a
        version. Returns the profile and its new ETag. Raises PreconditionFailed unless its present
        ETag, or "*", is among `etags`."""
        with self._store.writing() as rows:
            tenant = self._store.tenant
            if tenant is not None and id_ == own_profile_id(tenant):
                rows.lock(f"profile:{id_}")
                _ensure_own_profile(rows, tenant, own_policy(rows))
            profile = rows.profiles.get(id_)
            before, after = profile.policy, policy.model_dump()
            _require_seen(profile, etags)
            # False where somebody has changed the profile since it was read here.
            if not rows.profiles.set_policy(id_, after, profile.revision):
                raise PreconditionFailed(etag(profile))
            rows.audit.add(
                "policy.set", id_, before=before, after=after, **_audited_tenant(profile)
            )
        return self.get(id_)


def etag(profile: ProfileRow) -> str:
    return f'"{profile.id}-{profile.revision}"'


def _require_seen(profile: ProfileRow, etags: Sequence[str]) -> None:
    """Raises PreconditionFailed unless the profile's ETag, or "*", is among `etags`: then somebody
    has changed the profile since the caller has seen it."""
    if "*" not in etags and etag(profile) not in etags:
        raise PreconditionFailed(etag(profile))


def _set_active(rows: Rows, profile: ProfileRow, version: int | None, etags: Sequence[str]) -> None:
    """Makes a version the active one, or none. Going back to an earlier version, or to none, sets
    the policy to manual: else the same reports would be learnt and promoted again. Raises
    PreconditionFailed."""
    _require_seen(profile, etags)
    before, policy = profile.active_version, profile.policy
    if version is None or (before is not None and version < before):
        policy = {**policy, "mode": "manual"}
    if not rows.profiles.activate(profile.id, version, profile.revision, policy):
        raise PreconditionFailed(etag(profile))


def _audited_tenant(profile: ProfileRow) -> dict[str, str]:
    """Returns the tenant's field of an audit entry; empty for a shared profile."""
    return {} if profile.tenant is None else {"of_tenant": profile.tenant}


def add_version(
    rows: Rows,
    profile: Profile,
    origin: str,
    posterior: Posterior,
    calibration: dict[str, Any] | None = None,
    learnt: dict[str, Any] | None = None,
) -> ProfileVersionRow:
    """Stores the next version of a shared profile, which is not active yet. `origin` is "shipped"
    or "calibrated"; `learnt` is the record of what a calibration has learnt."""
    rows.lock(f"profile:{profile.id}")
    version = rows.profiles.latest(profile.id).version + 1
    return _store_version(
        rows,
        profile,
        version=version,
        origin=origin,
        posterior=posterior,
        calibration=calibration,
        learnt=learnt,
    )


def add_own_version(
    rows: Rows,
    tenant: str,
    profile: Profile,
    calibration: dict[str, Any],
    learnt: dict[str, Any],
    policy: Policy,
) -> ProfileVersionRow:
    """Stores the next version of a tenant's own profile, which is not active yet. A profile that
    does not exist is created with this policy. The caller has locked the profile."""
    id_ = own_profile_id(tenant)
    _ensure_own_profile(rows, tenant, policy)
    last = rows.profiles.find_latest(id_)
    version = 1 if last is None else last.version + 1
    return _store_version(
        rows,
        replace(profile, id=id_),
        version=version,
        origin="calibrated",
        posterior=None,  # only shared versions are learnt on top of
        calibration=calibration,
        learnt=learnt,
        tenant=tenant,
    )


def own_policy(rows: Rows) -> Policy:
    """Returns the policy that a tenant's own profile begins with: its calibrations are activated
    automatically, and nobody else has to agree."""
    shared = read_stored(Policy, rows.profiles.get(DEFAULT_PROFILE).policy)
    return Policy(mode="automatic", margin=shared.margin, min_tenants=1)


def _ensure_own_profile(rows: Rows, tenant: str, policy: Policy) -> None:
    """Stores a tenant's own profile with this policy and without a version, unless it exists. The
    caller has locked the profile."""
    id_ = own_profile_id(tenant)
    if rows.profiles.find(id_) is None:
        rows.profiles.add(ProfileRow(id=id_, tenant=tenant, revision=0, policy=policy.model_dump()))


def _store_version(
    rows: Rows,
    profile: Profile,
    *,
    version: int,
    origin: str,
    posterior: Posterior | None,
    calibration: dict[str, Any] | None = None,
    learnt: dict[str, Any] | None = None,
    tenant: str | None = None,
) -> ProfileVersionRow:
    """Stores a version and returns its row. `tenant` is set for a version of a tenant's own."""
    row = ProfileVersionRow(
        profile_id=profile.id,
        tenant=tenant,
        version=version,
        created_at=datetime.now(UTC),
        origin=origin,
        content_hash=_content_hash(profile),
        content=replace(profile, version=version).to_json(),
        calibration=calibration,
        learnt=learnt,
        posterior=None if posterior is None else posterior.to_json(),
    )
    rows.profiles.add_version(row)
    return row


def _content_hash(profile: Profile) -> str:
    """Returns a hash by which equal content is known, whatever its version number."""
    content = {**profile.to_json(), "version": None}
    return digest(json.dumps(content, sort_keys=True))


def _profile_answer(rows: Rows, profile: ProfileRow) -> ProfileAnswer:
    """Returns a profile with its policy and a summary of each version."""
    versions = [
        VersionSummary.model_validate(dict(row)) for row in rows.profiles.versions(profile.id)
    ]
    policy = read_stored(Policy, profile.policy)
    return ProfileAnswer.from_attributes(profile, policy=policy, versions=versions)


def _listed_version(
    row: Mapping[Any, Any], profile: ProfileRow, disclosure: Disclosure | None
) -> ListedVersion:
    """Returns a version as lists show it. `disclosure` removes what the tenant may not see; None
    where it may see all."""
    calibration = row["calibration"] or None
    if calibration and disclosure is not None:
        calibration = disclosure.calibration(calibration)
    is_active = row["version"] == profile.active_version
    shown = {**row, "active": is_active, "calibration": calibration}
    return read_stored(ListedVersion, shown)


def version_document(rows: Rows, row: ProfileVersionRow) -> dict[str, Any]:
    """Returns a version of a profile with its coefficients, without what the tenant of `rows` may
    not see."""
    calibration = row.calibration
    terms = row.content["terms"]
    if not rows.sees_all:
        disclosure = Disclosure(rows)
        # The calibration of a tenant's own version is of the tenant's own reports.
        if calibration and row.tenant is None:
            calibration = disclosure.calibration(calibration)
        terms = disclosure.terms(terms)
    answer = read_stored(
        ProfileVersionAnswer,
        {
            **row.content,
            "id": row.profile_id,
            "version": row.version,
            "created_at": row.created_at,
            "origin": row.origin,
            "terms": terms,
            "calibration": calibration or None,
        },
    )
    return answer.model_dump(mode="json")
