"""The workers of a pool: the URLs in the settings, or every address of their host names."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from yarl import URL

from service.core.errors import EngineFailure

DNS_TIMEOUT_S = 5.0


async def addresses(urls: Sequence[URL], resolve: bool) -> tuple[URL, ...]:
    """Return the workers' base URLs, sorted, without duplicates.

    With `resolve`, a host name stands for each of its addresses; a Kubernetes headless service
    returns those of pods that are ready and not terminating. Raises EngineFailure if a name is
    unknown or has no address.
    """
    if not resolve:
        return tuple(sorted(set(urls)))
    found: set[URL] = set()
    for url in urls:
        found |= {url.with_host(address) for address in await _look_up(url)}
    return tuple(sorted(found))


async def _look_up(url: URL) -> list[str]:
    host = url.host or ""
    try:
        async with asyncio.timeout(DNS_TIMEOUT_S):
            rows = await asyncio.get_running_loop().getaddrinfo(
                host, url.port, type=socket.SOCK_STREAM
            )
    except TimeoutError:
        raise EngineFailure(
            f"the DNS look-up of {host} took longer than {DNS_TIMEOUT_S:g} s"
        ) from None
    except OSError as error:
        raise EngineFailure(
            f"the DNS has no address for {host} ({error.strerror}); check engines.*.urls, and "
            "that the service has ready pods"
        ) from None
    return [str(address[0]) for *_, address in rows]
