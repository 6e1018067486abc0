from __future__ import annotations

from datetime import UTC, datetime
from uuid import RFC_4122, UUID

from service.identifiers import earliest_id, new_id


def test_ids_sort_by_the_order_in_which_they_are_made() -> None:
    before = datetime.now(UTC)
    ids = [new_id() for _ in range(20_000)]  # hundreds in each millisecond
    after = datetime.now(UTC)
    assert ids == sorted(ids)
    assert len({*ids}) == len(ids)
    assert earliest_id(before) <= ids[0]
    assert ids[-1][:13] <= earliest_id(after)


def test_ids_are_uuids_of_version_7() -> None:
    id_ = UUID(new_id())
    assert (id_.version, id_.variant) == (7, RFC_4122)
