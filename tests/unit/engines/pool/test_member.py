from __future__ import annotations

from service.engines.pool.workers import (
    LONGEST_EJECTION_S,
    PoolLimits,
    WorkerHealth,
    failed,
    joined,
    leaving,
    returned,
    share,
    succeeded,
)

RULES = PoolLimits(eject_after=3, eject_s=1.0, forgive_s=60.0, slow_start_s=10.0)


def test_a_worker_is_used_once_it_said_what_it_serves() -> None:
    new = WorkerHealth(since=5.0)

    up = joined(new, 6.0)

    assert not new.usable
    assert up.usable
    assert up.since == 6.0


def test_failures_in_a_row_eject_and_a_success_between_forgives_them() -> None:
    health = joined(WorkerHealth(), 0.0)
    for _ in range(2):
        health = failed(health, 1.0, RULES, 0.0)
    assert health.usable

    health = failed(succeeded(health), 2.0, RULES, 0.0)
    assert health.usable

    health = failed(failed(health, 3.0, RULES, 0.0), 3.0, RULES, 0.0)
    assert health.phase == "ejected"


def test_a_worker_where_nobody_listens_is_out_at_once() -> None:
    assert failed(joined(WorkerHealth(), 0.0), 1.0, RULES, 0.0, dead=True).phase == "ejected"


def test_ejections_double_up_to_a_minute_and_spread() -> None:
    health, pauses = joined(WorkerHealth(), 0.0), []
    for _ in range(9):
        health = failed(health, 0.0, RULES, 1.0, dead=True)
        pauses.append(health.until)

    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert failed(joined(WorkerHealth(), 0.0), 0.0, RULES, 0.0, dead=True).until == 0.5
    assert max(pauses) == LONGEST_EJECTION_S


def test_a_minute_of_health_forgets_old_ejections() -> None:
    twice = failed(failed(joined(WorkerHealth(), 0.0), 0.0, RULES, 1.0, dead=True), 1.0, RULES, 1.0)
    back = joined(twice, 10.0)

    soon = failed(back, 20.0, RULES, 1.0, dead=True)
    late = failed(back, 70.0, RULES, 1.0, dead=True)

    assert (soon.ejections, soon.until - 20.0) == (3, 4.0)
    assert (late.ejections, late.until - 70.0) == (1, 1.0)


def test_a_draining_worker_stays_so_whatever_happens_until_it_is_listed_again() -> None:
    going = leaving(joined(WorkerHealth(), 0.0), 1.0)

    assert joined(going, 2.0).phase == "draining"
    assert failed(going, 2.0, RULES, 0.0, dead=True).phase == "draining"
    assert leaving(going, 9.0) == going
    assert returned(going, 3.0).phase == "joining"
    assert returned(joined(WorkerHealth(), 0.0), 3.0).phase == "up"


def test_a_new_worker_starts_small() -> None:
    health = joined(WorkerHealth(), 100.0)

    assert share(health, 100.0, RULES) == 0.1
    assert 0.5 < share(health, 105.0, RULES) < 0.6
    assert share(health, 200.0, RULES) == 1.0
    assert share(health, 100.0, PoolLimits(slow_start_s=0)) == 1.0
