"""Which proxy leads to a URL: one rule for every request of the scripts, measured or not.

The variables are HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in either case. NO_PROXY lists hosts, domains with
everything below them, addresses, networks such as 10.0.0.0/8, each with or without a port, or `*`.
"""

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_PORTS = {"http": 80, "https": 443}


def proxy_for(url: str) -> str | None:
    """The proxy that requests to `url` go through, as a URL with whatever password it holds; None for none."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    port = parts.port or _PORTS.get(parts.scheme, 0)
    if not proxy or _is_excepted(parts.hostname or "", port, proxies.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def shown(proxy: str) -> str:
    """A proxy's address without its user and password."""
    parts = urlsplit(proxy)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return f"{parts.scheme}://{host}:{parts.port or _PORTS.get(parts.scheme, 0)}"


def password_for(url: str) -> str | None:
    """The password of the proxy that leads to `url`, which no output may show."""
    return urlsplit(proxy_for(url) or "").password


def _is_excepted(host: str, port: int, exceptions: str) -> bool:
    if proxy_bypass(host) or proxy_bypass(f"{host}:{port}"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for exception in exceptions.split(","):
        try:
            if address in ipaddress.ip_network(exception.strip().strip("[]"), strict=False):
                return True
        except ValueError:  # a name
            continue
    return False
