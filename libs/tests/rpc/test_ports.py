"""The way to another host, by this machine's own interfaces."""

import socket

import psutil
import pytest

from tandem.rpc.ports import held_address, interface_towards


def test_an_own_address_is_reached_by_the_interface_that_has_it() -> None:
    found = psutil.net_if_addrs()
    for name, entries in found.items():
        for entry in entries:
            if entry.family is socket.AF_INET:
                assert interface_towards(entry.address) == name


@pytest.mark.parametrize("host", ["no-such-host.invalid", "::1", ""])
def test_where_there_is_no_way_it_is_not_told(host: str) -> None:
    assert interface_towards(host) in ("", "lo")


def test_a_held_port_is_nobody_elses() -> None:
    with held_address() as one, held_address() as other:
        assert one != other and one.startswith("127.0.0.1:")
