"""Tells whether other machines can reach an address to listen on."""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach a host's name or address. All addresses of a name
    have to be loopback ones. A name that cannot be resolved counts as reachable."""
    if not host:
        return False  # an empty host listens on all addresses
    try:
        resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    addresses = [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in resolved]
    return all(_is_loopback(address) for address in addresses)


def _is_loopback(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Returns whether an address is a loopback one, or an IPv6 address that maps a loopback one of
    IPv4, such as ::ffff:127.0.0.1."""
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
