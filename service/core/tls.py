"""TLS with a certificate authority of the user's own."""

from __future__ import annotations

import ssl
from pathlib import Path

from service.core.errors import ConfigurationError


def tls_context(ca_file: Path | None, setting: str) -> ssl.SSLContext | None:
    """Trusts that authority alone; None, the client's default, without a file.

    Raises ConfigurationError, naming `setting`, for a file that holds no certificate.
    """
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"{setting}: {ca_file} does not hold certificates in PEM: {error}"
        ) from None
