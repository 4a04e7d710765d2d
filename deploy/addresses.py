"""IPv6: known by sight, so that it can be refused by name where plans are rendered for IPv4."""

from __future__ import annotations

import ipaddress

IPV6_HINT = "plans are rendered for IPv4 only: give the IPv4 address of the same interface"


def is_ipv6(text: str) -> bool:
    """Whether a text is an IPv6 address, in brackets or not, with a zone or not."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
