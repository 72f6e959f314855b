"""How the page looks, how fast it draws, and who can use it, in real headless Chromium."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.answer.events import (
    BaseEvent,
    PassagesFound,
    StepEnd,
    StepStart,
    Token,
)
from tests.page.driving import DONE, ask, replay, violations
from tests.stubs.signal_engine import DraftScript, SignalEngine
from tests.support.events import EVENTS, answered, passage
from tests.support.live import answering, config, live
from tests.support.scripted import ScriptStep

FRAME_MS = 100
FAILED = ".run[data-phase=failed]"
PHONE = {"width": 375, "height": 740}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_fault_of_accessibility(browser: Any, scheme: str) -> None:
    """All of the page at once: a compound stream, a heat-map, citations, a passage, a problem."""
    async with live() as service, await browser.new_context(color_scheme=scheme) as context:
        tab = await context.new_page()
        await replay(tab, *EVENTS, url=service.url, until=FAILED)
        assert not await violations(tab)
        await tab.click(".citation")
        assert not await violations(tab)
        await tab.keyboard.press("Escape")
        await tab.click("#key-button")
        assert not await violations(tab)


async def test_the_keyboard_alone_reaches_everything(tab: Any) -> None:
    async with live(answering("Vincenzo Bellini")) as service:
        await tab.goto(service.url)
        await tab.keyboard.type("Who composed Norma?")
        await tab.keyboard.press("Enter")
        await tab.wait_for_selector(DONE)
        assert not await tab.locator(".passage").first.is_visible()  # the steps are folded
        await tab.focus(".step summary")
        await tab.keyboard.press("Enter")
        await tab.focus(".steps button")
        await tab.keyboard.press("Enter")
        await tab.focus("#question")
        reached = set()
        for _ in range(40):
            await tab.keyboard.press("Tab")
            reached.add(
                await tab.evaluate("document.activeElement.className || document.activeElement.id")
            )
        assert {"citation", "passage", "main", "permalink"} <= reached
        await tab.locator(".passage >> nth=0").focus()
        await tab.keyboard.press("Enter")
        await tab.wait_for_selector("#passage-dialog[open]")
        await tab.keyboard.press("Escape")
        assert await tab.evaluate("document.activeElement.className") == "passage"


PAINTED = """new Promise((resolve) => {
  new PerformanceObserver((list) => {
    const paint = list.getEntriesByName("first-contentful-paint")[0];
    if (paint) resolve(paint.startTime);
  }).observe({ type: "paint", buffered: true });
})"""


async def least(measure: Callable[[], Awaitable[float]], enough: float) -> float:
    """The least of at most ten measurements, because the machine may be busy: what the page itself
    costs is in each of them."""
    best = 1e9
    for _ in range(10):
        best = min(best, await measure())
        if best < enough:
            break
    return best


async def test_first_paint_is_soon(tab: Any) -> None:
    """Under 300 ms; a request or a script that is waited for before takes longer each time."""
    async with live() as service:

        async def painted() -> float:
            await tab.goto(service.url)
            return float(await tab.evaluate(PAINTED))

        best = await least(painted, 300)
    print(f"first paint after {best:.0f} ms")
    assert best < 300


@asynccontextmanager
async def longest_task(tab: Any) -> AsyncIterator[list[float]]:
    """The milliseconds that the tab's main thread computed for its longest task, during which no
    frame can be drawn. It is not the time that passed, because the machine may be busy."""
    browser = tab.context.browser
    found: list[float] = []
    await browser.start_tracing(page=tab, categories=["toplevel", "devtools.timeline"])
    try:
        yield found
    finally:  # also for the tests after one that fails
        trace = await browser.stop_tracing()
    events = json.loads(trace)["traceEvents"]
    main = {e["tid"] for e in events if e.get("args", {}).get("name") == "CrRendererMain"}
    found += [max(e["tdur"] for e in events if e.get("tdur") and e["tid"] in main) / 1_000]
    print(f"longest task {found[0]:.1f} ms")


async def longest_task_of(tab: Any, run: Callable[[], Awaitable[None]]) -> float:
    """The least longest task of some runs."""

    async def measured() -> float:
        async with longest_task(tab) as longest:
            await run()
        return longest[0]

    return await least(measured, FRAME_MS)


async def test_two_thousand_events_hold_up_no_frame(tab: Any) -> None:
    words = [f"w{number} " for number in range(2_000)]
    memory: list[int] = []
    async with live([*answering()[:2], ScriptStep(reply=words, times=None)]) as service:
        session = await tab.context.new_cdp_session(tab)
        await tab.goto(service.url)
        await tab.wait_for_selector("#loop option[value=anrag]", state="attached")

        async def stream() -> None:
            await ask(tab)
            await tab.wait_for_selector(DONE)
            assert len((await tab.inner_text(".answer")).split()) == 2_000

        assert await longest_task_of(tab, stream) < FRAME_MS
        for _ in range(2):
            await stream()
            await session.send("HeapProfiler.collectGarbage")
            memory.append(await tab.evaluate("performance.memory.usedJSHeapSize"))
    print("memory after a stream and after the next one:", memory)
    assert memory[1] - memory[0] < 2_000_000
    assert memory[1] < 30_000_000
    assert await tab.evaluate("document.querySelectorAll('*').length") < 1_000


async def test_many_steps_with_large_passages_hold_up_no_frame(tab: Any) -> None:
    """2,000 events of 400 steps, with 11 MB of passages."""
    many = [passage(f"p{n}", f"{n} " * 3_000) for n in range(10)]
    events: list[BaseEvent] = []
    for number in range(1, 401):
        step = str(number)
        events += [
            StepStart(step=step, kind="retrieve", question="Where?"),
            PassagesFound(step=step, passages=many if number % 10 == 0 else many[:3]),
            Token(step=step, role="draft", text="text " * 100),
            Token(step=step, role="draft", text="more"),
            StepEnd(step=step, answer="Catania"),
        ]
    async with live() as service:

        async def stream() -> None:
            await replay(tab, *answered(*events), url=service.url)
            await tab.wait_for_selector(".step >> nth=399", state="attached")

        assert await longest_task_of(tab, stream) < FRAME_MS


async def test_texts_and_the_trace_have_limits(tab: Any) -> None:
    async with live() as service:
        await tab.goto(service.url)
        kept = await tab.evaluate(FILLED)
    assert kept["text"] == kept["longest"]
    assert kept["trace"] <= kept["largest"]
    assert kept["steps"] == kept["most"]
    assert not kept["complete"]


FILLED = """async () => {
  const state = await import("/page/state.js");
  const run = state.newRun({});
  const text = "x".repeat(150_000);
  for (let seq = 0; seq < 3_000; seq++) {
    const step = seq < 300 ? "1" : String(seq);
    const event = { seq, ms: seq, step, role: "draft", text: seq < 300 ? text : "y" };
    state.fold(run, "token", JSON.stringify(event));
  }
  state.fold(run, "done", JSON.stringify({ seq: 3_000, ms: 1 }));
  const parts = state.traceOf(run);
  return {
    text: run.steps.get("1").written.draft.length, longest: state.LONGEST_TEXT,
    trace: run.traceSize, largest: state.LARGEST_TRACE, steps: run.steps.size,
    most: state.MOST_STEPS, complete: JSON.parse(parts.join("")).complete,
  };
}"""


async def test_a_phone_sees_all_of_it_in_one_column(browser: Any, pictures: Path) -> None:
    async with live() as service, await browser.new_context(viewport=PHONE) as context:
        tab = await context.new_page()
        await replay(tab, *EVENTS, url=service.url, until=FAILED)
        width = await tab.evaluate("document.documentElement.scrollWidth")
        top = await tab.evaluate("document.querySelector('#results').getBoundingClientRect().top")
        await tab.screenshot(path=pictures / "phone.png", full_page=True)
    assert width <= PHONE["width"]
    assert top < PHONE["height"] / 2  # the answer, not the form, is seen


DRAFT = DraftScript(
    " Norma was composed by Vincenzo Bellini. He was born in Palermo. So the answer is Palermo.",
    loud={"Palermo.": 1.10, "Bellini.": 0.4, "born": 0.5},
    attention={"Palermo.": 0.35, "He": 0.22, "born": 0.30},
)


async def test_dragin_is_a_heat_map(tab: Any, pictures: Path) -> None:
    last = DraftScript(" So the answer is Catania.")
    written = "Bellini was born in Catania. So the answer is Catania."
    engine = SignalEngine([DRAFT, last], [ScriptStep(written)])
    settings = config(dragin={"profile": "official"})
    async with live(engine, settings=settings) as service:
        await tab.goto(service.url)
        await ask(tab, "In which city was the composer of the opera Norma born?",
                  loop="dragin", route="single")  # fmt: skip
        await tab.wait_for_selector(DONE)
        assert await tab.inner_text(".sentence .asking") == "Palermo."
        standing = await tab.inner_text(".standing:not([hidden])")
        heat = await tab.eval_on_selector_all(
            ".trigger .sentence .word",
            "all => all.map(e => [e.innerText, +e.style.getPropertyValue('--heat')])",
        )
        queried = await tab.locator(".queried").all_inner_texts()
        await tab.screenshot(path=pictures / "dragin.png", full_page=True)
    assert " ".join(word for word, _ in heat) == DRAFT.text.partition(" So")[0].strip()
    assert max(heat, key=lambda pair: pair[1])[0] == "Palermo."
    assert {"composer", "Norma", "city"} <= set(queried)
    assert standing.startswith(last.text.strip())
    assert "This draft was accepted: its highest score," in standing
    assert "not above 1.00" in standing


@pytest.fixture
def compound() -> tuple[list[ScriptStep], asyncio.Event]:
    """A compound question; the second part waits for the event."""
    gate = asyncio.Event()
    parts = {"thought": "two", "decomposition": ["Who composed Norma?", "Where was Bellini born?"]}
    steps = [
        ScriptStep(match="Task: route", reply="compound question", times=None),
        ScriptStep(match="Task: decompose", reply=json.dumps(parts)),
        ScriptStep(match="Task: relevance", reply="true", times=None),
        ScriptStep(match=("Task: answer", "Who composed"), reply="Vincenzo Bellini", times=None),
        ScriptStep(match=("Task: answer", "Where was"), reply="Catania", gate=gate, times=None),
        ScriptStep(match="Task: merge", reply="Vincenzo Bellini, born in Catania", times=None),
    ]
    return steps, gate


async def test_parts_run_in_lanes_side_by_side(
    tab: Any, pictures: Path, compound: tuple[list[ScriptStep], asyncio.Event]
) -> None:
    steps, gate = compound
    async with live(steps) as service:
        await tab.goto(service.url)
        await ask(tab, "Who composed Norma and where was he born?")
        await tab.wait_for_selector(".lane >> nth=1")
        await tab.wait_for_selector("text=Result Vincenzo Bellini")
        await tab.screenshot(path=pictures / "compound.png", full_page=True)
        boxes = [await tab.locator(f".lane >> nth={n}").bounding_box() for n in (0, 1)]
        shown = await tab.inner_text(".cost dd >> nth=0")
        await tab.wait_for_selector(f".cost dd >> nth=0 >> text=/^(?!{shown}$)/")  # time goes on
        assert boxes[0]["y"] == boxes[1]["y"]
        assert boxes[0]["x"] < boxes[1]["x"]
        gate.set()
        await tab.wait_for_selector(DONE)
        assert await tab.inner_text(".answer") == "Vincenzo Bellini, born in Catania"


async def test_two_loops_answer_side_by_side(tab: Any, pictures: Path) -> None:
    async with live(answering("Vincenzo Bellini")) as service:
        await tab.goto(service.url)
        await ask(tab, loop="one_retrieval", compare="no_retrieval", route="single")
        await tab.wait_for_selector(f"{DONE} >> nth=1")
        titles = await tab.locator(".run > h2").all_inner_texts()
        await tab.screenshot(path=pictures / "comparison.png", full_page=True)
    assert titles[0].startswith("Loop one_retrieval")
    assert titles[1].startswith("Loop no_retrieval")
