"""The manifests of collections whose BM25 side is in Elasticsearch, and the claim that lets one of
several gateways write.

The index `revelator.manifests` (no collection's index can have that name) holds a document for each
collection and one for each claim. Both are written on condition of the version that was read last,
so that one of two gateways is refused (StoreBusy). A claim lasts `CLAIM_S` and is renewed while its
holder is alive; the clocks of the gateways must agree to a few seconds.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import orjson
import structlog

from service.core.concurrency import first_of
from service.core.errors import BackendUnavailable, RevelatorError, StoreBusy
from service.retrieval.collections.manifest import FileManifests, Manifest, parse_manifest
from service.retrieval.stores.base import to_its_end
from service.retrieval.stores.elastic_server import ElasticServer

INDEX: Final = "revelator.manifests"
MOST_NAMES: Final = 10_000  # manifests in one page of a search
CLAIM_S: Final = 30.0
RENEW_S: Final = 5.0
LOOK_S: Final = 0.2  # seconds between attempts to take a claim
PATIENCE_S: Final = 5.0  # seconds that a request waits for another writer; a command waits longer
CONFLICT: Final = 409

Version = tuple[int, int]  # sequence number and primary term of a document when it was read

_log = structlog.get_logger(__name__)


async def drop_manifest(server: ElasticServer, name: str) -> None:
    await server.call(
        lambda client: client.options(ignore_status=404).delete(index=INDEX, id=name, refresh=True)
    )


class ElasticManifests:
    """The manifests of all collections. `files` holds the copies that are read while Elasticsearch
    is unavailable. `patience_s`: how long a claim is waited for."""

    shared = True

    def __init__(
        self, server: ElasticServer, files: FileManifests, patience_s: float = PATIENCE_S
    ) -> None:
        self._server = server
        self._files = files
        self._patience_s = patience_s
        self._versions: dict[str, Version | None] = {}  # None: absent
        self._claims: dict[str, tuple[Version, float]] = {}  # held here, and until when
        self._own = uuid.uuid4().hex
        self._made = False

    async def names(self) -> set[str]:
        files = await self._files.names()
        try:
            answer = await self._server.call(
                lambda client: client.search(
                    index=INDEX, ignore_unavailable=True, size=MOST_NAMES, source=False,
                    query={"term": {"kind": "manifest"}},
                )
            )  # fmt: skip
        except BackendUnavailable:
            return files
        return {hit["_id"] for hit in answer["hits"]["hits"]}

    async def read(self, name: str) -> Manifest | None:
        try:
            found, version = await self._get(name)
        except BackendUnavailable:
            copy = await self._files.read(name)
            if copy is None:
                raise
            return copy
        self._versions[name] = version
        if found is None:
            return None
        place = f"the manifest of {name!r} in Elasticsearch at {self._server.place}"
        return parse_manifest(orjson.dumps(found["manifest"]), place)

    async def write(self, manifest: Manifest) -> None:
        """Write a manifest. Raises StoreBusy if another gateway has written it since it was read
        here.
        """
        name = manifest.name
        if name not in self._versions:
            _, self._versions[name] = await self._get(name)
        content = {"kind": "manifest", "manifest": manifest.model_dump(mode="json")}
        written = await self._put(name, content, self._versions[name])
        if written is None:
            del self._versions[name]
            raise StoreBusy(
                f"another gateway has changed collection {name!r} meanwhile; send this again"
            )
        self._versions[name] = written
        await self._files.write(manifest)

    async def forget(self, name: str) -> None:
        """Forget a manifest that is deleted (`Backends.drop`)."""
        self._versions.pop(name, None)
        await self._files.forget(name)

    @asynccontextmanager
    async def claim(self, name: str) -> AsyncIterator[None]:
        """Hold the right to write a collection, among all gateways. Waits for another writer, then
        raises StoreBusy."""
        self._claims[name] = await self._take(name), time.time() + CLAIM_S
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._renew, name)
                yield
                group.cancel_scope.cancel()
        except BaseExceptionGroup as failures:
            raise first_of(failures) from None
        finally:
            with anyio.CancelScope(shield=True):
                await self._release(name)

    async def claimed(self, name: str) -> bool:
        """Return whether another gateway writes the collection now."""
        found, _ = await self._get(_claim(name))
        return found is not None and _lasts(found) and found["holder"] != self._own

    async def _take(self, name: str) -> Version:
        """Take a claim that is free, or whose holder has died, or that was written here for a
        caller who then left."""
        since, told = time.monotonic(), False
        while True:
            found, version = await self._get(_claim(name))
            waited_s = time.monotonic() - since
            left = found is not None and found["holder"] == self._own and name not in self._claims
            if found is None or left or not _lasts(found):
                # To its end, so that `claim` releases it, if this is cancelled meanwhile.
                taken = await to_its_end(self._put(_claim(name), self._note(), version))
                if taken is not None:
                    return taken
            elif waited_s > self._patience_s:
                raise StoreBusy(
                    f"another gateway has been writing to collection {name!r} for more than "
                    f"{self._patience_s:.0f} s; send this again when its ingest or repair has "
                    f"ended, or {CLAIM_S:.0f} s after that gateway has stopped"
                )
            elif waited_s > PATIENCE_S and not told:
                told = True
                _log.warning(
                    "waiting for another writer", collection=name, at_most_s=self._patience_s
                )
            await anyio.sleep(LOOK_S)

    async def _renew(self, name: str) -> None:
        """Renew a claim. Raises StoreBusy once it is lost, which cancels the work under it."""
        while True:
            await anyio.sleep(RENEW_S)
            held, until = self._claims[name]
            try:
                # To its end: a version that is not known could not be released.
                version = await to_its_end(self._put(_claim(name), self._note(), held))
            except RevelatorError:
                if time.time() > until - RENEW_S:
                    raise
                continue
            if version is None:
                raise StoreBusy(
                    f"another gateway has taken over writing to collection {name!r}, because this "
                    "one had stopped for too long; send this again"
                )
            self._claims[name] = version, time.time() + CLAIM_S

    async def _release(self, name: str) -> None:
        """Release a claim. If this fails, the claim expires."""
        (seq_no, term), _ = self._claims.pop(name)
        with anyio.move_on_after(RENEW_S), contextlib.suppress(RevelatorError):
            await self._server.call(
                lambda client: client.options(ignore_status=[404, CONFLICT]).delete(
                    index=INDEX, id=_claim(name), if_seq_no=seq_no, if_primary_term=term
                )
            )

    def _note(self) -> dict[str, Any]:
        return {"kind": "claim", "holder": self._own, "until": time.time() + CLAIM_S}

    async def _get(self, own_id: str) -> tuple[dict[str, Any] | None, Version | None]:
        answer = await self._server.call(
            lambda client: client.options(ignore_status=404).get(index=INDEX, id=own_id)
        )
        if answer.meta.status == 404:
            return None, None
        return answer["_source"], (answer["_seq_no"], answer["_primary_term"])

    async def _put(
        self, own_id: str, content: dict[str, Any], version: Version | None
    ) -> Version | None:
        """Write a document. Returns the new version; None if the stored one is no longer
        `version`.
        """
        await self._make()
        condition: dict[str, Any] = {"op_type": "create"}
        if version is not None:
            condition = {"if_seq_no": version[0], "if_primary_term": version[1]}
        answer = await self._server.call(
            lambda client: client.options(ignore_status=CONFLICT).index(
                index=INDEX, id=own_id, document=content, refresh=True, **condition
            )
        )
        if answer.meta.status == CONFLICT:
            return None
        return answer["_seq_no"], answer["_primary_term"]

    async def _make(self) -> None:
        """Create the index, once; an existing one is no error."""
        if self._made:
            return
        mappings = {
            "dynamic": False,
            "properties": {
                "kind": {"type": "keyword"},
                "manifest": {"type": "object", "enabled": False},
            },
        }
        settings = {"number_of_shards": 1, "auto_expand_replicas": "0-1"}
        if not await self._server.call(lambda client: client.indices.exists(index=INDEX)):
            await self._server.call(
                lambda client: client.options(ignore_status=400).indices.create(
                    index=INDEX, mappings=mappings, settings=settings
                )
            )
        self._made = True


def _claim(name: str) -> str:
    return f"{name}!"


def _lasts(found: dict[str, Any]) -> bool:
    return bool(found["until"] > time.time())
