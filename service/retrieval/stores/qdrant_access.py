"""How a client gets to Qdrant: its address, its API key, and whose certificates it trusts."""

from __future__ import annotations

import ipaddress
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import structlog

from service.core.connections import tls_context
from service.core.settings.urls import address_of, without

if TYPE_CHECKING:
    from qdrant_client import AsyncQdrantClient

SETTING: Final = "retrieval.qdrant_ca_file"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Access:
    """`key`: else the one in the place of the URL's password."""

    url: str = field(repr=False)
    key: str = field(default="", repr=False)
    ca_file: Path | None = None

    @property
    def _key(self) -> str:
        return self.key or address_of(self.url).password

    def client(self, module: Any, **options: Any) -> AsyncQdrantClient:
        """A client of `module` (qdrant_client), for REST and gRPC. Raises ConfigurationError for a
        `ca_file` that holds no certificates, ValueError for a URL that is none."""
        url = address_of(self.url).url
        if context := tls_context(self.ca_file, SETTING):
            assert self.ca_file is not None
            options["verify"] = context
            options["grpc_options"] = {
                **options.get("grpc_options", {}),
                "root_certificates": self.ca_file.read_bytes(),
            }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own words of the same
            client: AsyncQdrantClient = module.AsyncQdrantClient(
                url=url, api_key=self._key or None, **options
            )
        return client

    def warn(self) -> None:
        """Where anybody on the way can read the key."""
        url = address_of(self.url).url
        if self._key and not _is_private(url):
            why = "Qdrant's API key is sent over unencrypted http; use https"
            _log.warning("key_unencrypted", server=url, why=why)

    def hide(self, text: str) -> str:
        return without(text, (self._key,))


def _is_private(url: str) -> bool:
    """Whether nobody else can listen: by TLS, or on this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
