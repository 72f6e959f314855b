"""What is asked of a Qdrant before gRPC is spoken to it: its version, and who listens at each port.

REST is the named server. gRPC is spoken once its port has proved to be the same instance, so that
nothing is ever written into another server that happens to listen there. Proof is the peer id,
which an instance draws at its first start and keeps in its storage; both protocols tell it of any
collection. In a cluster the two ports may reach two peers: each names the others that hold shards.
A server without collections proves nothing yet, and is written to by REST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from service.core.errors import ConfigurationError

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient

LEAST_VERSION: Final = (1, 16)  # the first whose collections have metadata
CHANNEL: Final = {
    # gRPC's own pauses between attempts to connect grow to two minutes.
    "grpc.initial_reconnect_backoff_ms": 500,
    "grpc.max_reconnect_backoff_ms": 1000,
    "grpc.min_reconnect_backoff_ms": 2000,  # that one attempt may take
}

# absent: nobody there speaks gRPC; unproven: there is nothing to compare yet, or this key may not.
Grpc = Literal["same", "other", "absent", "unproven"]


async def check_version(rest: AsyncQdrantClient, place: str) -> None:
    """Raises ConfigurationError where the server is too old."""
    version = (await rest.info()).version
    if not is_supported(version):
        least = ".".join(map(str, LEAST_VERSION))
        raise ConfigurationError(
            f"Qdrant at {place} is version {version}; {least} or newer is needed. Upgrade the "
            "server, or unset retrieval.qdrant_url to keep the vectors in this process"
        )


def is_supported(version: str) -> bool:
    """Whether a version as `1.19.0` or `1.20.0-dev` is new enough; True for what has no numbers."""
    numbers = version.split("-", maxsplit=1)[0].split(".")[:2]
    if not all(number.isdecimal() for number in numbers):
        return True
    return tuple(map(int, numbers)) >= LEAST_VERSION


async def compare(rest: AsyncQdrantClient, grpc: AsyncQdrantClient) -> Grpc:
    """Whether both are one instance or cluster. Raises what `rest` raises."""
    held = (await rest.get_collections()).collections
    if not held:
        return "unproven"
    own = await _unless_refused(rest, held[0].name)
    if own is None:
        return "unproven"
    try:
        other = await grpc.collection_cluster_info(held[0].name)
    except Exception as error:
        code = getattr(error, "code", None)
        name = getattr(code(), "name", "") if callable(code) else ""
        return "absent" if name in {"UNAVAILABLE", "DEADLINE_EXCEEDED"} else "other"
    return "same" if peers(own) & peers(other) else "other"


def peers(told: Any) -> set[int]:
    """Ids of the peer that answers and of those it knows to hold shards of the collection."""
    return {told.peer_id, *(shard.peer_id for shard in told.remote_shards)}


async def _unless_refused(client: AsyncQdrantClient, name: str) -> Any:
    """None where the key does not allow the question, or the collection has just gone."""
    try:
        return await client.collection_cluster_info(name)
    except Exception as error:
        if getattr(error, "status_code", None) in {401, 403, 404}:
            return None
        raise
