"""The page in real headless Chromium, on the real server with a scripted engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from service.answer.events import (
    Done,
    Judgement,
    PassagesFound,
    QueryIssued,
    RouteChosen,
    Start,
    StepEnd,
    StepStart,
    Stop,
    Token,
)
from service.api import recordings
from service.api.openai.completions import links_to
from service.api.openapi import event_models
from service.core.domain import CallUsage, Citation
from service.core.errors import Draining
from tests.api.test_tenants import entry, tenants
from tests.faults.proxy import proxied
from tests.page.driving import DONE, ask, replay, violations
from tests.support.asking import PASSAGES
from tests.support.events import EVENTS, answered, body, passage, sse
from tests.support.live import answering, config, live
from tests.support.scripted import ScriptedGenerator, ScriptStep, render


async def test_a_question_is_answered_with_citations_that_open_the_passage(tab: Any) -> None:
    async with live(answering("Vincenzo Bellini")) as service:
        await tab.goto(service.url)
        await ask(tab)
        await tab.wait_for_selector(DONE)
        assert await tab.inner_text(".answer") == "Vincenzo Bellini"
        assert "route single, loop anrag" in await tab.inner_text(".status")
        cost = await tab.inner_text(".cost")
        await tab.click(".citation >> nth=0")
        assert await tab.inner_text("#passage-text mark") in PASSAGES[0].text
        assert await tab.inner_text("#passage-title") == "Norma"
        await tab.keyboard.press("Escape")
        assert not await tab.is_visible("#passage-dialog")
        assert "Vincenzo Bellini" in await tab.inner_text("#spoken")
    assert "Stopped by\nanswer" in cost
    assert "Searches\n1" in cost


async def test_a_conversation_goes_on_until_a_new_one_is_begun(tab: Any) -> None:
    """Asking the same once more, by another loop for example, is no new turn."""
    sent: list[dict[str, Any]] = []
    asked = ScriptStep(match="Task: refine", reply="When was Bellini born?", times=None)
    async with live([asked, *answering("Vincenzo Bellini")]) as service:
        await tab.goto(service.url)
        tab.on("request", lambda each: sent.append(each.post_data_json) if each.post_data else None)
        for question in ("Who composed Norma?", "When was he born?", "When was he born?"):
            await ask(tab, question)
            await tab.wait_for_selector(DONE)
        told = [
            {"role": "user", "text": "Who composed Norma?"},
            {"role": "assistant", "text": "Vincenzo Bellini"},
        ]
        assert [each.get("history") for each in sent] == [None, told, told]
        [turn] = await tab.locator("#earlier .turn").all()
        assert (await turn.inner_text()).startswith("Who composed Norma?\n\nVincenzo Bellini")
        await turn.locator("> details > summary").click()
        await turn.locator(".flow .step").first.wait_for()
        await turn.locator(".citation").first.click()
        assert await tab.inner_text("#passage-title") == "Norma"
        await tab.keyboard.press("Escape")
        assert not await violations(tab)
        await tab.click("#fresh")
        assert not await tab.locator(".turn, .run").count()
        await ask(tab, "Who composed Norma?")
        await tab.wait_for_selector(DONE)
        assert "history" not in sent[-1]


async def test_every_type_of_event_is_drawn(tab: Any) -> None:
    """Each event of a stream with all types changes what can be read, or the state of the page."""
    assert {event.event for event in EVENTS} == set(event_models())  # type: ignore[attr-defined]
    async with live() as service:
        await tab.goto(service.url)
        unchanged = await tab.evaluate(DRAWN, sse(*EVENTS))
    assert unchanged == []


DRAWN = """async (stream) => {
  const { FOLDS, fold, newRun } = await import("/page/state.js");
  const { readEvents } = await import("/page/stream.js");
  const { View } = await import("/page/draw.js");
  const run = newRun({ question: "Where?" });
  const view = new View(run, "Answer", {});
  document.getElementById("results").replaceChildren(view.element);
  const seen = () => view.element.dataset.phase + view.element.textContent;
  view.draw();
  const wrong = [];
  await readEvents(new Blob([stream]).stream(), ({ event, data }) => {
    const before = seen();
    fold(run, event, data);
    view.draw();
    if (!FOLDS[event] || (seen() === before && event !== "start")) wrong.push(event);
  });
  return wrong;
}"""


async def test_a_passage_says_what_was_decided_about_it(tab: Any) -> None:
    found = [passage(f"p{number}") for number in range(4)]
    events = [
        Start(id="a", question="Where?"),
        StepStart(step="1", kind="retrieve", question="Where?"),
        PassagesFound(step="1", passages=found),
        Judgement(step="1", passage_id="p0", relevant=True, kept=True, reason="relevant"),
        Judgement(step="1", passage_id="p1", relevant=False, kept=False, reason="irrelevant"),
        Judgement(step="1", passage_id="p2", kept=False, reason="not judged"),
        StepStart(step="2", kind="retrieve", question="When?"),
        PassagesFound(step="2", passages=found[:1]),
        Done(),
    ]
    async with live() as service:
        await replay(tab, *events, url=service.url)
        states = await tab.locator(".found .label").all_inner_texts()
        counts = await tab.locator(".passages summary").all_inner_texts()
    assert states == [
        "kept", "dropped: irrelevant", "dropped: not judged", "not judged yet", "not judged yet",
    ]  # fmt: skip
    assert counts == ["4 passages, 1 kept", "1 passage"]


@pytest.mark.parametrize(
    ("stop", "given", "flags", "told"),
    [
        ({"supported": True}, True, [], None),
        ({"supported": False}, True, ["unsupported"], "No passage supports this answer."),
        ({"supported": False}, True, ["closed_book"], "From the model's own knowledge"),
        ({"supported": True}, True, ["conflict"], "Passages contradict each other"),
        ({"supported": None}, False, ["declined"], None),
    ],
)
async def test_a_doubtful_answer_looks_like_one_and_steps_are_lines(
    tab: Any, pictures: Path, stop: dict[str, Any], given: bool, flags: list[Any],
    told: str | None,
) -> None:  # fmt: skip
    events = answered(
        StepStart(step="1", kind="route"),
        RouteChosen(route="single", loop="anrag", by="classifier", confidence=0.98),
        StepEnd(step="1", answer=None, flags=[], usage=CallUsage()),
        StepStart(step="2", kind="retrieve", question="Where?"),
        QueryIssued(step="2", query="Where was Bellini born?", retriever="hybrid"),
        PassagesFound(step="2", passages=[passage()]),
        StepEnd(step="2", answer="Catania", flags=flags, usage=CallUsage()),
        stop=Stop(stopped_by="answer", answered=given, citations=[], **stop),
        answer=body(answered=given),
    )
    async with live() as service:
        await tab.emulate_media(color_scheme="dark")
        await replay(tab, *events, url=service.url, folded=True)
        assert await tab.inner_text(".status") == "route single, loop anrag"
        lines = await tab.locator(".step summary h4").all_inner_texts()
        assert [" ".join(each.split()) for each in lines] == [
            "1 Route single, chosen by classifier, confidence 98 % 20 ms",
            "2 Search Where was Bellini born? · 1 passage · Catania 30 ms",
        ]
        assert not await tab.locator(".passage").is_visible()
        doubt = await tab.inner_text(".doubt") if await tab.is_visible(".doubt") else None
        assert doubt == told or (told and doubt and doubt.startswith(told))
        assert (await tab.locator(".answer.none").count() == 0) is given
        assert not await violations(tab)
        await tab.screenshot(path=pictures / f"folded-{'-'.join(flags)}.png", full_page=True)
        await tab.set_viewport_size({"width": 390, "height": 844})
        await tab.screenshot(path=pictures / f"folded-phone-{'-'.join(flags)}.png", full_page=True)
        await tab.click(".steps button")
        assert await tab.locator(".passage").is_visible()


@pytest.mark.parametrize("cited", [True, False])
async def test_an_answer_without_citations_says_so(tab: Any, cited: bool) -> None:
    citation = Citation(passage_id="p", title="", step="1", text="In Catania.", start=0, end=11)
    stop = Stop(stopped_by="answer", answered=True, citations=[citation] if cited else [])
    async with live() as service:
        await replay(tab, *answered(stop=stop), url=service.url)
        assert await tab.is_visible("text=No passage is cited for this answer.") is not cited


async def test_texts_of_passages_are_never_markup(tab: Any) -> None:
    html = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script><b>bold</b>'
    arabic = "وُلد بيليني في كاتانيا"
    long = "x" * 100_000
    texts = [html, arabic, long]
    found = [passage(f"p{n}", text, title=text[:80], kept=True) for n, text in enumerate(texts)]
    quote = Citation(passage_id="p1", title=arabic, step="1", text=arabic[5:12], start=5, end=12)
    events = answered(
        StepStart(step="1", kind="retrieve", question=html),
        PassagesFound(step="1", passages=found),
        Token(step="1", role="answer", text=html),
        StepEnd(step="1", answer=html),
        stop=Stop(stopped_by="answer", answered=True, citations=[quote]),
        answer=body(html),
    )
    async with live() as service:
        await replay(tab, *events, url=service.url)
        assert await tab.inner_text(".answer") == html
        assert await tab.evaluate("window.hacked === undefined")
        assert await tab.locator(".run img, .run script, .run b").count() == 0
        arabic_line = tab.locator(".preview >> nth=1")
        assert await arabic_line.evaluate("e => getComputedStyle(e).direction") == "rtl"
        await tab.click(".citation")
        assert await tab.inner_text("#passage-text mark") == arabic[5:12]
        await tab.keyboard.press("Escape")
        await tab.click(".passage >> nth=2")
        assert len(await tab.inner_text("#passage-text")) == len(long)
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not await tab.evaluate(wide)


async def test_quotes_are_counted_in_code_points(tab: Any) -> None:
    text = "𝒩orma 🎭 by Bellini."
    start = text.index("Bellini")
    async with live() as service:
        await tab.goto(service.url)
        split = await tab.evaluate(
            "async (given) => (await import('/page/state.js')).split(...given)",
            [text, start, start + 7],
        )
    assert split == [text[:start], "Bellini", "."]


@pytest.mark.parametrize("given", ["", "wrong"])
async def test_a_page_without_the_right_key_asks_for_it(tab: Any, given: str) -> None:
    async with live(settings=config(server={"keys": ["right"]})) as service:
        await tab.goto(service.url)
        await tab.wait_for_selector("#key-dialog[open]")
        assert "This server requires a key." in await tab.inner_text("#key-reason")
        if given:
            await tab.fill("#key", given)
            await tab.keyboard.press("Enter")
            await tab.wait_for_selector("#key-reason:has-text('not one of')")
        await tab.fill("#key", "right")
        await tab.keyboard.press("Enter")
        await tab.wait_for_selector("#key-dialog:not([open])", state="attached")
        await ask(tab)
        await tab.wait_for_selector(DONE)
        kept = await tab.evaluate("[Object.values(sessionStorage), localStorage.length]")
        assert kept == [["right"], 0]
        assert "right" not in tab.url
        assert await tab.evaluate("document.cookie") == ""


async def test_a_link_to_a_passage_shows_it_in_its_document_to_who_may_see_it(
    tab: Any, tmp_path: Path
) -> None:
    sentences = [f"Sentence {n} of the handbook is about the leave of year {n}." for n in range(90)]
    document = {"id": "hand/book#p1", "title": "Handbook", "text": " ".join(sentences)}
    rights = ["ask", "write", "administer"]
    keys = tenants(tmp_path, entry("right", rights=rights), entry("other", collections=["x"]))
    async with live(own_stores=True, settings=keys) as service:
        headers = {"X-API-Key": "right"}
        assert (await service.put("/collections/notes", headers=headers)).status == 200
        sent = {"documents": [document]}
        at = "/collections/notes/documents"
        added = await service.post(at, json=sent, headers=headers)
        report = added.json()
        assert report["indexed"] == 1, report
        first, cited, *_ = (await service.get(f"{at}/hand%2Fbook%23p1", headers=headers)).json()[
            "passages"
        ]
        start = cited["text"].index("Sentence", 80)
        link = links_to(service.url, "notes")(
            Citation(
                passage_id=cited["passage_id"], title="Handbook", step="1", text="", start=start,
                end=start + 10,
            )
        )  # fmt: skip
        await tab.goto(link)
        await tab.wait_for_selector("#key-dialog[open]")
        await tab.fill("#key", "other")
        await tab.keyboard.press("Enter")
        await tab.wait_for_selector("#problem:has-text('may not use the collection')")
        await tab.click("#key-button")
        await tab.fill("#key", "right")
        await tab.keyboard.press("Enter")
        await tab.wait_for_selector("#passage-dialog[open]")
        assert await tab.inner_text("#passage-title") == "Handbook"
        assert await tab.inner_text("mark") == cited["text"][start : start + 10]
        shown = await tab.text_content("#passage-text")
        assert shown.startswith(first["text"][:40])
        assert [shown.count(each) for each in sentences] == [1] * len(sentences)
        assert not await violations(tab)
        await tab.keyboard.press("Escape")
        await tab.evaluate("location.hash = '#passage=gone&collection=notes'")
        await tab.wait_for_selector("#problem:has-text('gone')")


async def test_a_key_that_ends_meanwhile_is_asked_for_again(tab: Any) -> None:
    async with live(settings=config(server={"keys": ["right"]})) as service:
        await tab.goto(service.url)
        await tab.click("#key-close")
        await ask(tab)
        await tab.wait_for_selector("#key-dialog[open]")
        assert "API key is required" in await tab.inner_text(".problem")


async def test_a_drain_is_waited_out_and_told(tab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Draining, "retry_after", 1)
    async with live() as service:
        service.app.state.drain.begin()
        await tab.goto(service.url)
        await ask(tab)
        await tab.wait_for_selector("text=Asking again in 1 s")
        service.app.state.drain.begun = False  # as if the next gateway answers
        await tab.wait_for_selector(DONE)
        assert await tab.inner_text(".answer") == "Vincenzo Bellini"


async def test_a_stream_that_a_drain_ends_says_so(tab: Any) -> None:
    async with live(answering("word " * 5_000, delay=0.01)) as service:
        await tab.goto(service.url)
        await ask(tab)
        await tab.wait_for_selector("text=word word")
        service.app.state.drain.expire()
        await tab.wait_for_selector(".run[data-phase=failed]")
        assert "shutting down" in await tab.inner_text(".problem")
        assert await tab.is_enabled("#submit")


async def test_a_broken_connection_goes_on_where_it_was(tab: Any) -> None:
    words = [f"w{number} " for number in range(300)]
    engine = ScriptedGenerator([*answering()[:2], ScriptStep(reply=words, delay=0.01, times=None)])
    async with live(engine) as service, proxied(service.url) as proxy:
        await tab.goto(proxy.url)
        await ask(tab)
        for seen in ("w20 ", "w100 "):
            await tab.wait_for_selector(f"text={seen}")
            proxy.cut()
        await tab.wait_for_selector(DONE)
        assert (await tab.inner_text(".answer")).split() == "".join(words).split()
    assert len([each for each in engine.requests if "Task: answer" in render(each)]) == 1


async def test_a_reconnect_to_another_process_is_told_and_asked_again_on_demand(
    tab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"w{number} " for number in range(3_000)]  # not at its end when it is cut
    slow = [*answering()[:2], ScriptStep(reply=words, delay=0.01, times=None)]
    async with (
        live(answering("Vincenzo Bellini"), watched=False) as other,
        live(slow) as service,
        proxied(service.url) as proxy,
    ):
        await tab.goto(proxy.url)
        await ask(tab)
        await tab.wait_for_selector("text=w20 ")
        monkeypatch.setattr(recordings, "INSTANCE", "another")
        proxy.lead_to(other.url)
        proxy.cut()
        await tab.wait_for_selector(".run[data-phase=failed]")
        assert "routed to another process" in await tab.inner_text(".problem")
        assert "w20" in await tab.inner_text(".answer")
        assert not await violations(tab)
        await tab.click("button:has-text('Ask again')")
        await tab.wait_for_selector(DONE)
        assert await tab.inner_text(".answer") == "Vincenzo Bellini"
        assert await tab.locator(".run").count() == 1


async def test_a_server_that_is_gone_is_given_up(tab: Any) -> None:
    async with live() as service:
        await tab.clock.install()
        await tab.goto(service.url)
        await tab.route("**/answer/stream", lambda route: route.abort())
        await ask(tab)
        while not await tab.locator(".run[data-phase=failed]").count():
            await tab.clock.run_for(1_000)
        assert "The server cannot be reached" in await tab.inner_text(".problem")
        await tab.unroute("**/answer/stream")
        await tab.click("#submit")
        while not await tab.locator(DONE).count():
            await tab.clock.run_for(1_000)


async def test_a_question_can_be_stopped(tab: Any) -> None:
    async with live(answering("word " * 5_000, delay=0.01)) as service:
        await tab.goto(service.url)
        await ask(tab)
        await tab.wait_for_selector("text=word word")
        await tab.click("#cancel")
        await tab.wait_for_selector(".run[data-phase=failed]")
        assert "Stopped" in await tab.inner_text(".problem")
        assert await tab.inner_text(".step .time >> nth=-1") == "not finished"
        assert await tab.locator(".step[data-open=true]").count() == 0
        async with tab.expect_download() as waiting:
            await tab.click("text=Download the trace")
        trace = json.loads(await asyncio.to_thread((await (await waiting.value).path()).read_bytes))
    assert not trace["complete"]
    assert trace["events"][0]["event"] == "start"


async def test_the_link_fills_the_form_and_does_not_ask(tab: Any) -> None:
    async with live(answering("Bellini")) as service:
        await tab.goto(service.url)
        await tab.wait_for_selector("#loop option[value=anrag]", state="attached")
        await tab.select_option("#loop", "anrag")
        await ask(tab, "Who composed Norma & why?")
        await tab.wait_for_selector(DONE)
        link = await tab.evaluate("document.getElementById('permalink').href")
        assert link == tab.url
        await tab.goto("about:blank")
        await tab.goto(link)
        assert await tab.input_value("#question") == "Who composed Norma & why?"
        assert await tab.input_value("#loop") == "anrag"
        assert await tab.locator(".run").count() == 0
        await tab.keyboard.press("Enter")
        await tab.wait_for_selector(DONE)


async def test_the_trace_is_what_was_sent(tab: Any) -> None:
    events = [*EVENTS[:-2], Done()]
    async with live() as service:
        await replay(tab, *events, url=service.url)
        async with tab.expect_download() as waiting:
            await tab.click("text=Download the trace")
        download = await waiting.value
        trace = json.loads(await asyncio.to_thread((await download.path()).read_bytes))
    assert download.suggested_filename == "revelator-a.json"
    assert trace["complete"]
    assert trace["request"] == {"question": "Who composed Norma?"}
    assert [each["event"] for each in trace["events"]] == [each.event for each in events]  # type: ignore[attr-defined]
    assert [each["seq"] for each in trace["events"]] == list(range(len(events)))


async def test_loops_and_collections_are_those_of_the_api(tab: Any, tmp_path: Path) -> None:
    async with live(own_stores=True, settings=config(tmp_path)) as service:
        await tab.goto(service.url)
        await tab.wait_for_selector("#collection option[value=sample]", state="attached")
        await tab.wait_for_selector("#loop option[value=self_ask]", state="attached")
        assert await tab.locator("#compare option[value=default]").count() == 1
        assert await tab.locator("#route option[value=compound]").count() == 1
        await tab.click(".example >> nth=0")
        await tab.click(".example >> nth=1")
        assert await tab.input_value("#collection") == "sample"
        await tab.fill("#question", "What is in my own documents?")
        assert await tab.input_value("#collection") == ""


async def test_a_passage_names_its_page_and_links_to_its_source(tab: Any) -> None:
    """Addresses come with documents, so only those of the web are links."""
    urls = ["https://example.org/a?b=<c>", "javascript:alert(1)", "https://", "data:text/html,x"]
    found = [passage(f"p{n}", url=url, page=n, kept=True) for n, url in enumerate(urls, 1)]
    quote = Citation(
        passage_id="p1", title="Bellini", step="1", text="Bellini", start=0, end=7, page=1
    )
    events = answered(
        StepStart(step="1", kind="retrieve"),
        PassagesFound(step="1", passages=found),
        StepEnd(step="1"),
        stop=Stop(stopped_by="answer", answered=True, citations=[quote]),
    )
    links = []
    async with live() as service:
        await replay(tab, *events, url=service.url)
        assert await tab.inner_text(".citation") == "Bellini, page 1 Bellini"
        for number in range(len(urls)):
            await tab.click(f".passage >> nth={number}")
            assert f"page {number + 1}" in await tab.inner_text("#passage-source")
            links += await tab.eval_on_selector_all(
                "#passage-source a", "all => all.map(a => a.href)"
            )
            await tab.keyboard.press("Escape")
    assert links == ["https://example.org/a?b=%3Cc%3E"]
