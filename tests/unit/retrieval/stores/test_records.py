from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from service.retrieval.stores.records import name_id


@given(st.uuids(), st.text())
def test_it_is_the_uuid_of_the_standard_library(namespace: uuid.UUID, name: str) -> None:
    assert name_id(namespace, name) == str(uuid.uuid5(namespace, name))
