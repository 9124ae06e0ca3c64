"""Settings become the options of a transfer: each key is used, and nothing but the settings limits a link."""

from __future__ import annotations

from tests.landing_maker import SITE_A
from tidemark.settings.model import ClusterSettings, LinkSettings
from tidemark.transfer.engine import SendOptions

LINK = LinkSettings(
    "plant1", SITE_A, connections=3, block_bytes=4096, retries=7, digest="target", bandwidth=5.0, slowest=6.0
)


def test_every_limit_of_a_link_is_kept() -> None:
    assert SendOptions.of(LINK, reserve=9) == SendOptions(
        4096, 7, bandwidth=5.0, connections=3, digest_at_source=False, slowest=6.0, reserve=9
    )
    assert SendOptions.of(LinkSettings("plant1", SITE_A)) == SendOptions()


def test_the_bandwidth_of_a_cluster_limits_what_it_is_given_for() -> None:
    settings = ClusterSettings(bandwidth=50.0)
    assert SendOptions.of_cluster(settings, retries=2) == SendOptions(retries=2, bandwidth=50.0, direct=True)
    assert SendOptions.of_cluster(None, retries=3) == SendOptions(retries=3, direct=True)
