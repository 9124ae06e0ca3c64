"""Servers that allow few ways to encrypt: with those that are ours they work, without they are named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.store_ends import QUICK, address
from tests.services.sshd import Sshd
from tidemark.errors import PermanentError, Retry
from tidemark.stores.protocol import Tier
from tidemark.stores.sftp import open_sftp

pytestmark = pytest.mark.real("sshd")


@pytest.mark.parametrize(
    ("allowed", "named", "ours"),
    [
        ({"Ciphers": "chacha20-poly1305@openssh.com"}, "Ciphers", "aes128-gcm@openssh.com"),
        ({"Ciphers": "aes128-ctr", "MACs": "umac-64@openssh.com"}, "MACs", "hmac-sha2-256"),
        ({"KexAlgorithms": "diffie-hellman-group14-sha1"}, "KexAlgorithms", "ecdh-sha2-nistp256"),
    ],
)
def test_a_server_that_allows_none_of_ours_is_told_which_ones(
    start_sshd: Callable[..., Sshd], allowed: dict[str, str], named: str, ours: str
) -> None:
    with pytest.raises(PermanentError, match=f"allows none of our {named}") as caught:
        open_sftp(address(start_sshd(options=allowed)), limits=QUICK)
    assert f"sshd_config: {named} " in caught.value.hint and ours in caught.value.hint
    assert caught.value.retry is Retry.OPERATOR


def test_curve25519_by_its_name_of_today(start_sshd: Callable[..., Sshd]) -> None:
    store = open_sftp(address(start_sshd(options={"KexAlgorithms": "curve25519-sha256"})), limits=QUICK)
    assert store.properties.tier is Tier.PYTHON
    store.close()
