from __future__ import annotations

from service.retrieval.collections.writer import MOST_LOOKUPS, HashPrefetch


def test_a_look_tells_what_is_stored_and_what_is_not() -> None:
    prefetch = HashPrefetch()
    prefetch.begin(["a", "b"]).found = {"a": "1"}
    assert prefetch.known(["a", "b", "c"]) == ({"a": "1"}, ["c"])


def test_an_unfinished_look_tells_nothing() -> None:
    prefetch = HashPrefetch()
    prefetch.begin(["a"])
    assert prefetch.known(["a"]) == ({}, ["a"])


def test_what_is_written_after_a_look_is_looked_for_again() -> None:
    prefetch = HashPrefetch()
    prefetch.begin(["a", "b"]).found = {"a": "1"}
    prefetch.written(["a"])
    prefetch.settled()
    assert prefetch.known(["a", "b"]) == ({}, ["a"])


def test_a_look_beside_a_write_cannot_say_which_version_it_saw() -> None:
    prefetch = HashPrefetch()
    prefetch.written(["a"])
    beside = prefetch.begin(["a", "b"])
    prefetch.settled()
    beside.found = {"a": "1", "b": "2"}
    assert prefetch.known(["a", "b"]) == ({"b": "2"}, ["a"])
    prefetch.begin(["a"]).found = {"a": "3"}
    assert prefetch.known(["a"]) == ({"a": "3"}, [])


def test_a_look_that_a_whole_write_passed_tells_nothing_of_it() -> None:
    prefetch = HashPrefetch()
    slow = prefetch.begin(["a"])
    prefetch.written(["a"])
    prefetch.settled()
    slow.found = {}
    assert prefetch.known(["a"]) == ({}, ["a"])


def test_few_looks_are_remembered() -> None:
    prefetch = HashPrefetch()
    for number in range(MOST_LOOKUPS + 1):
        prefetch.begin([f"d{number}"]).found = {}
    assert prefetch.known(["d0", "d1"]) == ({}, ["d0"])
    prefetch.forget()
    assert prefetch.known(["d1"]) == ({}, ["d1"])
