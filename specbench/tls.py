"""Which certificates are trusted: one context for every connection of the scripts."""

import os
import ssl
from pathlib import Path

from specbench import UserError


def tls_context() -> ssl.SSLContext:
    """Verifies with the system's certificates, or with SSL_CERT_FILE and SSL_CERT_DIR where they are set.

    Raises UserError when SSL_CERT_FILE cannot be used: OpenSSL itself would ignore it.
    """
    context = ssl.create_default_context()  # OpenSSL reads both variables by itself
    context.set_alpn_protocols(["http/1.1"])
    file = os.environ.get("SSL_CERT_FILE")
    if file:
        try:
            context.load_verify_locations(cafile=file)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"SSL_CERT_FILE={file} holds no certificates that can be read: {error}") from None
    elif not context.get_ca_certs() and not Path(ssl.get_default_verify_paths().capath or "").is_dir():
        import certifi  # python.org's builds for macOS come without certificates; httpx brings these

        context.load_verify_locations(cafile=certifi.where())
    return context
