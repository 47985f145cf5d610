"""Whom a server may listen to: loopback is for everybody on this machine, any other address needs TLS and callers that
are known.
"""

from __future__ import annotations

import ipaddress

from oncelog.errors import InvalidArgument


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    plain = host.strip("[]")
    if plain.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(plain).is_loopback
    except ValueError:
        return False


def check(hosts: dict[str, str], *, tls: bool, authenticated: bool, insecure: bool) -> None:
    """Raise ``InvalidArgument`` for a server that would be open to others by accident.

    ``hosts`` are the addresses by the name of their option.
    """
    missing = [what for what, there in (("TLS", tls), ("token", authenticated)) if not there]
    for option, host in hosts.items():
        if missing and not insecure and not is_loopback(host):
            message = (
                f"{option} {host}: other machines reach this address, and there is no {' and no '.join(missing)}: "
                "give --tls-cert and --tls-key, make a token (oncelog token create), listen on 127.0.0.1, "
                "or say --insecure"
            )
            raise InvalidArgument(message)
