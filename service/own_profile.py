"""A tenant's own profile, whose versions are calibrated to what that tenant measured. While one of
them is active it predicts for that tenant, and for nobody else, in place of the shared profile."""

from __future__ import annotations

from service.identifiers import digest

OWN = "own"
"""The name by which a path calls the own profile of whoever asks."""
OWN_PREFIX = f"{OWN}-"
_DIGITS = 16  # 64 bits, so that no two tenants have the same


def own_profile_id(tenant: str) -> str:
    """Returns the id of a tenant's own profile, whether there is one yet or not."""
    return OWN_PREFIX + digest(tenant)[:_DIGITS]


def is_own(profile_id: str) -> bool:
    """Returns whether a profile belongs to a tenant."""
    return profile_id.startswith(OWN_PREFIX)


def scope_to_change(profile_id: str) -> str:
    """Returns the scope that a key needs to change a profile: "report" for a tenant's own, and
    "calibrate" for one that all tenants share."""
    return "report" if is_own(profile_id) else "calibrate"
