"""Web Push subscriptions as device tokens: on the wire, as text, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindpost.wire.errors import WireError
from blindpost.wire.ntf.pushes import CheckPush, MessagePush, VerificationPush
from blindpost.wire.ntf.tokens import DeviceToken, PushProvider, read_device_token, write_device_token
from blindpost.wire.ntf.webpush import Subscription, decode_web_body, encode_web_body
from blindpost.wire.primitives import decode_whole, encode

AUTH, POINT = bytes(range(16)), b"\x04" + bytes(range(64))
SUBSCRIPTION = Subscription("push.example", "8443", b"/p?a=1", AUTH, POINT)

subscriptions = st.builds(
    Subscription,
    st.sampled_from(["push.example", "192.0.2.1", "2001:db8::1", "updates.push.services.mozilla.com"]),
    st.sampled_from(["", "1", "443", "8443", "65535"]),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=254).map(
        lambda text: b"/" + text.encode()
    ),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=64, max_size=64).map(lambda raw: b"\x04" + raw),
)


def test_the_bytes_of_a_token() -> None:
    token = DeviceToken.web(SUBSCRIPTION)
    expected = b"WP\x0cpush.example\x048443\x06/p?a=1\x10" + AUTH + b"\x41" + POINT
    assert encode(token, write_device_token) == expected
    assert decode_whole(expected, read_device_token) == token
    assert token.text == (
        "webpush https://push.example:8443/p?a=1 AAECAwQFBgcICQoLDA0ODw== "
        "BAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8="
    )
    assert SUBSCRIPTION.endpoint == "https://push.example:8443/p?a=1"


@pytest.mark.parametrize(
    ("host", "port", "place", "authority"),
    [
        ("push.example", "", ("push.example", 443), "push.example"),
        ("Push.EXAMPLE", "443", ("push.example", 443), "push.example"),
        ("push.example.", "8443", ("push.example", 8443), "push.example:8443"),
        ("push.example..", "1", ("push.example", 1), "push.example:1"),
        ("2001:db8::1", "443", ("2001:db8::1", 443), "[2001:db8::1]"),
        ("a.b.ONION", "", ("a.b.onion", 443), "a.b.onion"),
        (".", "", (".", 443), "."),
    ],
)
def test_a_push_service_is_the_same_however_it_is_spelled(
    host: str, port: str, place: tuple[str, int], authority: str
) -> None:
    given = Subscription(host, port, b"/p", AUTH, POINT)
    assert (given.place, given.authority) == (place, authority)
    token = DeviceToken.web(given)
    assert decode_whole(encode(token, write_device_token), read_device_token).subscription == given
    if ":" not in host:
        assert given.endpoint == f"https://{host}:{port}/p".replace(":/p", "/p"), "as it was given"


@pytest.mark.parametrize(
    ("spellings", "plain"),
    [
        (
            [DeviceToken(PushProvider.APNS_PROD, token) for token in (b"AB" * 32, b"aB" * 32, b"ab" * 32)],
            DeviceToken(PushProvider.APNS_PROD, b"ab" * 32),
        ),
        (
            [
                DeviceToken.web(Subscription(host, port, b"/Path", AUTH, POINT))
                for host, port in (("Push.example", ""), ("push.example.", "443"), ("push.example", ""))
            ],
            DeviceToken.web(Subscription("push.example", "", b"/Path", AUTH, POINT)),
        ),
        (
            [DeviceToken.web(Subscription("PUSH.example", "8443", b"/", AUTH, POINT))],
            DeviceToken.web(Subscription("push.example", "8443", b"/", AUTH, POINT)),
        ),
    ],
)
def test_all_spellings_of_a_device_have_one_in_common(
    spellings: list[DeviceToken], plain: DeviceToken
) -> None:
    for token in spellings:
        assert token.plain == plain
        assert decode_whole(encode(token, write_device_token), read_device_token) == token, "kept as given"
    assert DeviceToken(PushProvider.APNS_DEV, b"AB").plain == DeviceToken(PushProvider.APNS_DEV, b"ab")


@given(subscriptions)
def test_tokens_round_trip_in_binary_and_as_text(subscription: Subscription) -> None:
    token = DeviceToken.web(subscription)
    assert token.subscription == subscription
    assert decode_whole(encode(token, write_device_token), read_device_token) == token
    again = DeviceToken.from_text(token.text).subscription
    assert again.endpoint.replace(":443/", "/", 1) == subscription.endpoint.replace(":443/", "/", 1)
    assert (again.auth, again.p256dh) == (subscription.auth, subscription.p256dh)


@pytest.mark.parametrize(
    "written",
    [
        "https://push.example/x",
        "http://push.example/x AAECAwQFBgcICQoLDA0ODw== BAA=",
        "https://push.example AAECAwQFBgcICQoLDA0ODw== BAA=",
        "https://push.example:0/x AAECAwQFBgcICQoLDA0ODw== BAA=",
        "https://user@push.example:1:2/x AAECAwQFBgcICQoLDA0ODw== BAA=",
        "https://push.example/x AAEC BAA=",
        "https://push.example/x AAECAwQFBgcICQoLDA0ODw== BAA=",
    ],
)
def test_malformed_subscriptions_are_refused(written: str) -> None:
    with pytest.raises(WireError):
        DeviceToken.from_text(f"webpush {written}")


@pytest.mark.parametrize(
    "change",
    [
        {"path": b"x"},
        {"path": b"/a b"},
        {"path": b"/a\r\nHost: x"},
        {"port": "65536"},
        {"port": "x"},
        {"auth": b""},
        {"p256dh": b"\x02" + bytes(32)},
        {"p256dh": b"\x05" + bytes(64)},
        {"host": "a/b"},
    ],
)
def test_hostile_parts_are_refused(change: dict[str, str | bytes]) -> None:
    parts: dict[str, object] = {"host": "a.example", "port": "", "path": b"/", "auth": AUTH, "p256dh": POINT}
    with pytest.raises(WireError):
        Subscription(**(parts | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "push", [CheckPush(), VerificationPush(bytes(24), b"code"), MessagePush(bytes(24), b"news")]
)
def test_bodies_round_trip(push: CheckPush | VerificationPush | MessagePush) -> None:
    assert decode_web_body(encode_web_body(push)) == push


def test_apple_devices_have_no_subscription() -> None:
    with pytest.raises(WireError):
        _ = DeviceToken(PushProvider.APNS_PROD, b"ab").subscription
