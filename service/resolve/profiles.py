"""Profiles: seeded from what ships, read by every prediction, activated and rolled back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from models.calibration.posterior import Posterior, shipped_posterior
from models.errors import Invalid, UnknownName
from models.spec.profile import Profile, shipped_profile
from service.errors import NotFound, PreconditionFailed
from service.identifiers import digest
from service.resolve.disclosure import Disclosure
from service.schemas.profile import (
    CalibrationAnswer,
    Policy,
    ProfileAnswer,
    ProfilePage,
    ProfileVersionAnswer,
    VersionSummary,
)
from service.schemas.question import ProfileWanted
from service.store import Rows, Store
from service.store.tables import ProfileRow, ProfileVersionRow

DEFAULT = "default"


def seed(store: Store) -> None:
    """Put the shipped profile into a database that lacks it; of several processes one does.

    Where a release ships another one it becomes a new version, active if a shipped version was.
    """
    shipped = shipped_profile()
    with store.writing() as rows:
        rows.lock(f"profile:{shipped.id}")
        profile = rows.profiles.find(shipped.id)
        if profile is None:
            install(rows, shipped, shipped_posterior())
            return
        if rows.profiles.latest(shipped.id, "shipped").content_hash == _content_hash(shipped):
            return
        was_shipped = rows.profiles.active(shipped.id).origin == "shipped"
        row = add_version(rows, shipped, "shipped", shipped_posterior())
        if was_shipped:
            rows.profiles.activate(shipped.id, row.version, rows.profiles.revision(shipped.id))


def install(rows: Rows, profile: Profile, posterior: Posterior) -> None:
    """As the first version of a profile that is not there yet."""
    rows.profiles.add(
        ProfileRow(id=profile.id, active_version=1, revision=0, policy=Policy().model_dump())
    )
    rows.profiles.add_version(_version_row(profile, 1, "shipped", posterior))


def active_profile(rows: Rows) -> Profile:
    return profile_version(rows, DEFAULT, None)


def profile_version(rows: Rows, id_: str, version: int | None) -> Profile:
    """The version, or the active one of the profile."""
    row = rows.profiles.active(id_) if version is None else rows.profiles.version(id_, version)
    return Profile.from_json(row.content)


def requested_profile(rows: Rows, wanted: ProfileWanted | None) -> Profile:
    """The version a request names, or the active one."""
    if wanted is None:
        return active_profile(rows)
    if rows.profiles.find(wanted.id) is None:
        raise UnknownName("profile.id", wanted.id, [profile.id for profile in rows.profiles.all()])
    try:
        return Profile.from_json(rows.profiles.version(wanted.id, wanted.version).content)
    except NotFound:
        last = rows.profiles.latest(wanted.id).version
        rule = f"profile {wanted.id} has no such version; it has 1 to {last}"
        raise Invalid("profile.version", wanted.version, rule) from None


class Profiles:
    def __init__(self, store: Store) -> None:
        self._store = store

    def page(self) -> dict[str, Any]:
        with self._store.reading() as rows:
            items = [_profile_answer(rows, profile) for profile in rows.profiles.all()]
        return ProfilePage(items=items, next=None).model_dump(mode="json")

    def get(self, id_: str) -> tuple[dict[str, Any], str]:
        """The profile and its ETag."""
        with self._store.reading() as rows:
            profile = rows.profiles.get(id_)
            return _profile_answer(rows, profile).model_dump(mode="json"), etag(profile)

    def version(self, id_: str, version: int) -> dict[str, Any]:
        with self._store.reading() as rows:
            return version_document(rows, rows.profiles.version(id_, version))

    def activate(self, id_: str, version: int, seen: Sequence[str]) -> tuple[dict[str, Any], str]:
        """Make predictions use this version, if the profile's ETag is among those `seen` (or "*"
        is).

        Who rolls back does not want the same reports learnt and promoted once more: from there on a
        person activates.
        """
        with self._store.writing() as rows:
            profile = rows.profiles.get(id_)
            rows.profiles.version(id_, version)
            policy = (
                {**profile.policy, "mode": "manual"}
                if version < profile.active_version
                else profile.policy
            )
            if not _is_seen(profile, seen) or not rows.profiles.activate(
                id_, version, profile.revision, policy
            ):
                raise PreconditionFailed(etag(profile))
        return self.get(id_)

    def set_policy(
        self, id_: str, policy: Policy, seen: Sequence[str]
    ) -> tuple[dict[str, Any], str]:
        with self._store.writing() as rows:
            profile = rows.profiles.get(id_)
            if not _is_seen(profile, seen) or not rows.profiles.set_policy(
                id_, policy.model_dump(), profile.revision
            ):
                raise PreconditionFailed(etag(profile))
        return self.get(id_)


def etag(profile: ProfileRow) -> str:
    return f'"{profile.id}-{profile.revision}"'


def _is_seen(profile: ProfileRow, seen: Sequence[str]) -> bool:
    return "*" in seen or etag(profile) in seen


def add_version(
    rows: Rows,
    profile: Profile,
    origin: str,
    posterior: Posterior,
    calibration: dict[str, Any] | None = None,
    learnt: dict[str, Any] | None = None,
) -> ProfileVersionRow:
    rows.lock(f"profile:{profile.id}")
    version = rows.profiles.latest(profile.id).version + 1
    row = _version_row(profile, version, origin, posterior, calibration, learnt)
    rows.profiles.add_version(row)
    return row


def _version_row(
    profile: Profile,
    version: int,
    origin: str,
    posterior: Posterior,
    calibration: dict[str, Any] | None = None,
    learnt: dict[str, Any] | None = None,
) -> ProfileVersionRow:
    return ProfileVersionRow(
        profile_id=profile.id,
        version=version,
        created_at=datetime.now(UTC),
        origin=origin,
        content_hash=_content_hash(profile),
        content=replace(profile, version=version).to_json(),
        calibration=calibration,
        learnt=learnt,
        posterior=posterior.to_json(),
    )


def _content_hash(profile: Profile) -> str:
    content = {**profile.to_json(), "version": None}
    return digest(json.dumps(content, sort_keys=True))


def _profile_answer(rows: Rows, profile: ProfileRow) -> ProfileAnswer:
    versions = [
        VersionSummary.model_validate(dict(row)) for row in rows.profiles.versions(profile.id)
    ]
    policy = Policy.model_validate(profile.policy)
    return ProfileAnswer(
        id=profile.id, active_version=profile.active_version, policy=policy, versions=versions
    )


def _summary(row: ProfileVersionRow) -> VersionSummary:
    made_by = row.content["made_by"]
    return VersionSummary.model_validate(
        {
            "version": row.version,
            "created_at": row.created_at,
            "origin": row.origin,
            "made_by": made_by,
        }
    )


def version_document(rows: Rows, row: ProfileVersionRow) -> dict[str, Any]:
    """A version as the one who asks may see it."""
    calibration, terms = row.calibration, row.content["terms"]
    if not rows.sees_all:
        disclosure = Disclosure(rows)
        calibration, terms = (
            calibration and disclosure.calibration(calibration),
            disclosure.terms(terms),
        )
    answer = ProfileVersionAnswer(
        id=row.profile_id,
        residual_spread=row.content["residual_spread"],
        terms=terms,
        calibration=CalibrationAnswer.model_validate(calibration) if calibration else None,
        **_summary(row).model_dump(),
    )
    return answer.model_dump(mode="json")
