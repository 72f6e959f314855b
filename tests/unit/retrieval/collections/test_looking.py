from __future__ import annotations

from service.retrieval.collections.lookup import MOST_LOOKS, Looks


def test_a_look_tells_what_is_stored_and_what_is_not() -> None:
    looks = Looks()
    looks.begin(["a", "b"]).found = {"a": "1"}
    assert looks.believed(["a", "b", "c"]) == ({"a": "1"}, ["c"])


def test_an_unfinished_look_tells_nothing() -> None:
    looks = Looks()
    looks.begin(["a"])
    assert looks.believed(["a"]) == ({}, ["a"])


def test_what_is_written_after_a_look_is_looked_for_again() -> None:
    looks = Looks()
    looks.begin(["a", "b"]).found = {"a": "1"}
    looks.written(["a"])
    looks.settled()
    assert looks.believed(["a", "b"]) == ({}, ["a"])


def test_a_look_beside_a_write_cannot_say_which_version_it_saw() -> None:
    looks = Looks()
    looks.written(["a"])
    beside = looks.begin(["a", "b"])
    looks.settled()
    beside.found = {"a": "1", "b": "2"}
    assert looks.believed(["a", "b"]) == ({"b": "2"}, ["a"])
    looks.begin(["a"]).found = {"a": "3"}
    assert looks.believed(["a"]) == ({"a": "3"}, [])


def test_a_look_that_a_whole_write_passed_tells_nothing_of_it() -> None:
    looks = Looks()
    slow = looks.begin(["a"])
    looks.written(["a"])
    looks.settled()
    slow.found = {}
    assert looks.believed(["a"]) == ({}, ["a"])


def test_few_looks_are_remembered() -> None:
    looks = Looks()
    for number in range(MOST_LOOKS + 1):
        looks.begin([f"d{number}"]).found = {}
    assert looks.believed(["d0", "d1"]) == ({}, ["d0"])
    looks.forget()
    assert looks.believed(["d1"]) == ({}, ["d1"])
