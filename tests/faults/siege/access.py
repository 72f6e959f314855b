"""Every interface, identity and field, for a collection that is forbidden and for one that does not
exist: the answers differ in the name alone, and no metadata of the forbidden one is in them.

Where no collection is named, `default` is the forbidden one; once it is deleted, it is the absent.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.api.test_tenants import entry, key
from tests.faults.siege.world import Gateway, Plan, Row, gateway
from tests.support.live import parse_sse

FORBIDDEN: Final = "vaulted"
ABSENT: Final = "missing"
FIELD: Final = "numbat_field"  # its name is secret, too
SECRET: Final = re.compile("numbat", re.IGNORECASE)
IDS: Final = re.compile(r'("(?:request_id|id)": ?)"[^"]*"|\b[0-9a-f]{6}-[0-9a-f]{16}\b')
RIGHTS: Final = ("ask", "write", "administer")
QUESTION: Final = "Who composed Norma?"
DOCUMENT: Final = {"id": "d", "text": "Etna."}
FIELDS: Final[tuple[Mapping[str, Any], ...]] = (
    {}, {"filter": {"unknown": 1}}, {"filter": {FIELD: "a"}}, {"filter": {FIELD: []}},
    {"filter": {}}, {"filter": {"unknown": [1, "a"], FIELD: True}}, {"top_k": 3}, {"top_k": 0},
    {"route": "compound"}, {"route": "direct"}, {"route": "no"}, {"loop": "dragin"},
    {"loop": "efficientrag"}, {"loop": "no"}, {"retriever": "dense"}, {"retriever": "no"},
    {"samples": 2}, {"samples": 0}, {"max_steps": 2}, {"max_steps": 0}, {"timeout_s": 0.001},
    {"timeout_s": -1}, {"history": [{"role": "user", "text": "Hello"}]}, {"history": [1]},
    {"route": "direct", "loop": "anrag"}, {"no": 1},
)  # fmt: skip
IDENTITIES: Final[Mapping[str, dict[str, str]]] = {
    **{name: key(name) for name in ("reader", "writer", "keeper", "confined", "unknown")},
    "nobody": {},
}
BOTH: Final = {"Accept": "application/json, text/event-stream"}

Request = tuple[str, str, Any, Mapping[str, str]]


def question(name: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"question": QUESTION, **({"collection": name} if name else {}), **fields}


def openai(asked: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    own = {each: value for each, value in asked.items() if each not in ("question", "history")}
    loop = own.pop("loop", None)
    return {"model": f"revelator-{loop}" if loop else "revelator", "revelator": own, **more}


def tool(name: str, arguments: Mapping[str, Any]) -> Request:
    params = {"name": name, "arguments": arguments}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return "POST", "/mcp", call, BOTH


def asking(name: str | None, fields: Mapping[str, Any], answer_id: str) -> dict[str, Request]:
    """A question by every interface, also again and resumed."""
    asked = question(name, fields)
    chat = openai(asked, messages=[{"role": "user", "content": QUESTION}])
    respond = openai(asked, input=QUESTION)
    shown = "&".join(
        f"{each}={value if isinstance(value, str) else json.dumps(value)}"
        for each, value in asked.items()
    ).replace(" ", "+")
    resumed = {"Last-Event-ID": f"{answer_id}-0"}
    searched = {each: asked[each] for each in asked if each in ("collection", "filter", "top_k")}
    return {
        "answer": ("POST", "/answer", asked, {}),
        "stream": ("POST", "/answer/stream", asked, {}),
        "GET": ("GET", f"/answer/stream?{shown}", None, {}),
        "again": ("POST", "/answer", asked, {"Idempotency-Key": "owners"}),
        "again, streamed": ("POST", "/answer/stream", asked, {"Idempotency-Key": "owners"}),
        "resumed": ("POST", "/answer/stream", asked, resumed),
        "resumed, GET": ("GET", f"/answer/stream?{shown}", None, resumed),
        "chat": ("POST", "/v1/chat/completions", chat, {}),
        "chat, streamed": ("POST", "/v1/chat/completions", chat | {"stream": True}, {}),
        "responses": ("POST", "/v1/responses", respond, {}),
        "responses, streamed": ("POST", "/v1/responses", respond | {"stream": True}, {}),
        "MCP answer": tool("answer", asked),
        "MCP search": tool("search", {"query": QUESTION, **searched}),
    }


def managing(name: str) -> dict[str, Request]:
    path, batch = f"/collections/{name}", {"documents": [DOCUMENT]}
    read = {"uri": f"revelator://collections/{name}"}
    resource = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": read}
    return {
        "show": ("GET", path, None, {}),
        "document": ("GET", f"{path}/documents/numbat1", None, {}),
        "documents": ("GET", f"{path}/documents?file=numbat1", None, {}),
        "put": ("PUT", path, {"metadata_fields": ["x"]}, {}),
        "add": ("POST", f"{path}/documents", batch, {}),
        "replace": ("PUT", f"{path}/documents", batch, {}),
        "delete document": ("DELETE", f"{path}/documents/numbat1", None, {}),
        "delete": ("DELETE", path, None, {}),
        "check": ("GET", f"{path}/check", None, {}),
        "repair": ("POST", f"{path}/repair", None, {}),
        "MCP ingest": tool("ingest", {"collection": name, "documents": [DOCUMENT]}),
        "MCP resource": ("POST", "/mcp", resource, BOTH),
    }


async def sent(served: Gateway, asked: Request, headers: Mapping[str, str]) -> tuple[int, str]:
    """The status and the body, without ids."""
    method, path, body, own = asked
    status, told = await served.send(method, path, body, headers={**own, **headers})
    text = told if isinstance(told, str) else json.dumps(told)
    return status, IDS.sub("ID", text).replace(FORBIDDEN, "NAME").replace(ABSENT, "NAME")


class Matrix:
    def __init__(self, served: Gateway, plan: Plan) -> None:
        self._served, self._plan = served, plan
        self.rows = [Row("access", what, 0) for what in ("differences", "secrets told")]
        self.answer_id = ""

    async def fill(self) -> None:
        """What is forbidden, and a question of the owner about it, which is recorded."""
        owner = key("owner")
        document = {"id": "numbat1", "text": "Numbat Norma.", FIELD: "a"}
        for name in (FORBIDDEN, "default", "open-one"):
            await self._served.send("PUT", f"/collections/{name}", {}, headers=owner)
            path, batch = f"/collections/{name}/documents", {"documents": [document]}
            status, told = await self._served.send("POST", path, batch, headers=owner)
            assert status == 200, told
        for request in asking(FORBIDDEN, {"route": "single"}, "x").values():
            status, told = await sent(self._served, request, owner)
            assert status == 200 or "Last-Event-ID" in request[3], told
        asked = question(FORBIDDEN, {"route": "single"})
        headers = {"Idempotency-Key": "another"} | owner
        _, events = await self._served.send("POST", "/answer/stream", asked, headers=headers)
        self.answer_id = parse_sse(events)[0][1]["id"]

    def compare(self, told: str, one: tuple[int, str], other: tuple[int, str]) -> None:
        differences, secrets = self.rows
        if one != other:
            differences.add(f"{told}: {one[0]} {one[1][:160]} / {other[0]} {other[1][:160]}")
        if SECRET.search(one[1].replace(FIELD, "") if FIELD in told else one[1]):
            secrets.add(f"{told}: {one[0]} {one[1][:300]}")
        for row in self.rows:
            row.count += 2

    def drawn(self, cells: list[Any]) -> list[Any]:
        chance = random.Random(f"{self._plan.seed} access")
        return chance.sample(cells, self._plan.count(len(cells)))

    async def named(self) -> None:
        """The forbidden collection and the absent one by their names."""
        cells = [
            (who, str(dict(fields)), asking(FORBIDDEN, fields, self.answer_id)[each],
             asking(ABSENT, fields, self.answer_id)[each], each)
            for who, fields in itertools.product(IDENTITIES, FIELDS)
            for each in asking(None, {}, "")
        ]  # fmt: skip
        cells += [
            (who, "", managing(FORBIDDEN)[each], managing(ABSENT)[each], each)
            for who in IDENTITIES for each in managing("")
        ]  # fmt: skip
        for who, fields, one, other, each in self.drawn(cells):
            headers = IDENTITIES[who]
            first = await sent(self._served, one, headers)
            second = await sent(self._served, other, headers)
            self.compare(f"{each} by {who} {fields}", first, second)

    async def unnamed(self) -> None:
        cells = self.drawn(
            [(who, each, fields) for who, fields in itertools.product(IDENTITIES, FIELDS)
             for each in asking(None, {}, "")]
        )  # fmt: skip
        asked = [
            (asking(None, fields, self.answer_id)[each], IDENTITIES[who])
            for who, each, fields in cells
        ]
        found = []
        for _ in range(2):
            found.append([await sent(self._served, *each) for each in asked])
            await self._served.send("DELETE", "/collections/default", headers=key("owner"))
        for (who, each, fields), first, second in zip(cells, *found, strict=True):
            one, other = (
                (status, re.sub(r"\b(default|sample)\b", "NAME", text))
                for status, text in (first, second)
            )
            self.compare(f"no collection, {each} by {who} {dict(fields)}", one, other)


async def access(plan: Plan, folder: Path) -> list[Row]:
    path = folder / "tenants.toml"
    path.write_text("".join([
        entry("owner", rights=list(RIGHTS)),
        entry("reader", rights=["ask"], collections=["open-*"]),
        entry("writer", rights=["ask", "write"], collections=["open-*"]),
        entry("keeper", rights=list(RIGHTS), collections=["open-*"]),
        entry("confined", rights=list(RIGHTS), collections=["none"]),
    ]))  # fmt: skip
    async with gateway(folder / "access", "--tenants", str(path)) as served:
        matrix = Matrix(served, plan)
        await matrix.fill()
        await matrix.named()
        await matrix.unnamed()
        status, _ = await served.search(FORBIDDEN, "dense")
        assert status == 401, status  # without a key
    return matrix.rows
