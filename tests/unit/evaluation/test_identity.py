"""The settings with which an evaluation runs."""

from __future__ import annotations

from service.core.settings import EngineSettings, RoleSettings, Settings
from service.evaluation.entries import described, with_engine


def test_another_engine_has_none_of_the_models_of_the_first() -> None:
    roles = {
        "revelator": RoleSettings(engine="a", model="m", templates="compact"),
        "reader": RoleSettings(engine="b", model="own"),
        "judge": RoleSettings(engine="a", model="x"),
    }
    settings = Settings(engines={"a": EngineSettings(), "b": EngineSettings()}, roles=roles)
    found = with_engine(settings, "b").roles
    other = RoleSettings(engine="b")
    assert found == {"revelator": other, "reader": roles["reader"], "judge": other}
    assert with_engine(settings, None) is settings


def test_a_judge_that_is_not_set_stays_so() -> None:
    settings = Settings(engines={"default": EngineSettings(), "b": EngineSettings()})
    assert "judge" not in with_engine(settings, "b").roles


def test_what_changes_no_answer_is_not_part_of_the_settings() -> None:
    one = Settings(engines={"default": EngineSettings()})
    other = Settings(
        engines={"default": EngineSettings(), "unused": EngineSettings()},
        tracing={"url": "http://collector:4318"},
        data_dir="/elsewhere",
    )
    changed = Settings(engines={"default": EngineSettings(timeout_s=1)})
    assert described(one) == described(other)
    assert described(one) != described(changed)
