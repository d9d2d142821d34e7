"""Configuration files: what `init` writes is valid and complete, and each mistake has its line and remedy."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from blindpost.canary import settings as canary
from blindpost.cli.output import with_set
from blindpost.ds import settings as ds
from blindpost.ntf import settings as ntf
from blindpost.router.config import RouterRules
from blindpost.router.running import choices
from blindpost.router.running.settings import AddressSection, RouterPlace, Settings
from blindpost.router.running.template import config_text
from blindpost.serving.failures import OperatorError
from blindpost.serving.limits import LimitSizes
from blindpost.serving.settings import Section
from blindpost.wire.text import b64

FILE = Path("/somewhere/router.toml")
TEXT = config_text(["smp.example.org"], 5223, ["*"], b64(bytes(32)))


def told(text: str) -> str:
    with pytest.raises(OperatorError) as caught:
        RouterPlace.parse(text.encode(), FILE)
    return str(caught.value)


def changed(before: str, after: str) -> str:
    assert TEXT.count(before) == 1
    return TEXT.replace(before, after)


def test_the_written_file_has_every_setting_with_its_default() -> None:
    written = RouterPlace.parse(TEXT.encode(), FILE)
    assert written.model_copy(update={"identity": Settings.model_fields["identity"].default}) == Settings(
        address=AddressSection(hosts=["smp.example.org"])
    )
    tables = tomllib.loads(TEXT.replace("# exempt", "exempt"))
    for name, field in Settings.model_fields.items():
        section = field.annotation
        assert isinstance(section, type)
        assert issubclass(section, BaseModel)
        assert tables[name].keys() == section.model_fields.keys()


def test_defaults_equal_those_of_the_router() -> None:
    settings = RouterPlace.parse(TEXT.encode(), FILE)
    assert choices.router_rules(settings) == RouterRules()
    assert choices.limit_sizes(settings, settings.limits.connections) == LimitSizes()
    assert {field.name for field in dataclasses.fields(RouterRules)} == type(
        settings.rules
    ).model_fields.keys()


def test_every_setting_takes_effect() -> None:
    text = TEXT
    for before, after in (
        ("new_queues = true", "new_queues = false"),
        ('password = ""', 'password = "secret"'),
        ("quota = 128", "quota = 4"),
        ("message_ttl_s = 1814400", 'message_ttl_s = "never"'),
        ("expire_on_send = false", "expire_on_send = true"),
        ("notification_ttl_s = 86400", "notification_ttl_s = 5"),
        ("proxy = true", "proxy = false"),
        ("idle_ttl_s = 21600", "idle_ttl_s = 6"),
        ('durability = "full"', 'durability = "os"'),
        ("inbox_kib = 128", "inbox_kib = 64"),
        ("outbox_kib = 8192", "outbox_kib = 4096"),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    settings = RouterPlace.parse(text.encode(), FILE)
    assert choices.router_rules(settings) == RouterRules(
        new_queues=False,
        password=b"secret",
        quota=4,
        message_ttl_s=None,
        expire_on_send=True,
        notification_ttl_s=5,
        proxy=False,
        idle_ttl_s=6,
    )
    assert choices.durability(settings).value == "os"
    assert choices.budget(settings).source_bytes == 64 * 1024
    limits = choices.session_limits(settings)
    assert (limits.outbox_low, limits.outbox_high, limits.outbox_max) == (32 << 10, 128 << 10, 4 << 20)
    assert settings.router_address(bytes(32)).text == f"smp://{b64(bytes(32))}:secret@smp.example.org"


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("quota = 128", "qouta = 128", "unknown setting rules.qouta. Did you mean rules.quota?"),
        ("[times]", "[tmies]", "unknown setting tmies. Did you mean times?"),
        (
            "quota = 128",
            "xyz = 1",
            "unknown setting rules.xyz. Settings of [rules] are: new_queues, password",
        ),
        ("quota = 128", 'quota = "many"', "rules.quota: Input should be a valid integer"),
        ("quota = 128", "quota = 0", "rules.quota: Input should be greater than or equal to 1"),
        ("ports = [5223]", "ports = [70000]", "listen.ports: Input should be less than or equal to 65535"),
        (
            'addresses = ["*"]',
            'addresses = ["example.org"]',
            "listen.addresses: an IP address of this machine",
        ),
        ('durability = "full"', 'durability = "most"', "store.durability: Input should be 'full' or 'os'"),
        ('password = ""', 'password = "a b"', "rules.password: printable characters without spaces"),
        (
            'address = "127.0.0.1"\nport = 9464',
            'address = "localhost"\nport = 9464',
            "metrics.address: an IP address of this machine",
        ),
        ("# exempt = [", "exempt = [1, ", "limits.exempt: Input should be a valid string"),
        ('"smp.example.org"', '"smp example"', "address.hosts: a host expected"),
        (b64(bytes(32)), "AAAA", "identity.fingerprint: the base64url text of 32 bytes"),
    ],
)
def test_a_mistake_is_reported_with_its_line(before: str, after: str, message: str) -> None:
    text = changed(before, after)
    said = told(text)
    assert said.startswith(f"{FILE}, line {line_of(text, after.splitlines()[0])}: ")
    assert message in said


def all_numbers() -> Iterator[tuple[type[Section], str]]:
    """Every setting of every server that takes a number."""
    for settings in (Settings, ntf.Settings, ds.Settings, canary.Settings):
        for table in settings.model_fields.values():
            section = table.annotation
            if isinstance(section, type) and issubclass(section, Section):
                for name, field in section.model_fields.items():
                    if isinstance(field.default, int | float) and not isinstance(field.default, bool):
                        yield section, name


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e300, 10**30, 2**63])
def test_no_number_is_endless(value: float) -> None:
    """Whoever wants no limit may write one that nobody reaches, but none that fits into no column or wait."""
    numbers = dict.fromkeys(all_numbers())
    assert len(numbers) > 60
    for section, name in numbers:
        with pytest.raises(ValidationError):
            section.model_validate({name: value})


def test_an_endless_number_is_reported_with_its_line() -> None:
    text = changed("new_per_second = 500.0", "new_per_second = inf")
    line = text.splitlines().index("new_per_second = inf") + 1
    assert told(text) == f"{FILE}, line {line}: limits.new_per_second: Input should be a finite number."


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            'fronts = "auto"',
            "fronts = -1",
            "router.fronts: Input should be greater than or equal to 0, or 'auto'",
        ),
        ('fronts = "auto"', 'fronts = "two"', "router.fronts: Input should be a valid integer, or 'auto'"),
        (
            "message_ttl_s = 1814400",
            'message_ttl_s = "ever"',
            "rules.message_ttl_s: Input should be a valid integer, or 'never'",
        ),
    ],
)
def test_a_setting_that_takes_a_number_or_a_word_is_one_mistake(
    before: str, after: str, message: str
) -> None:
    text = changed(before, after)
    assert told(text) == f"{FILE}, line {line_of(text, after)}: {message}."


def test_a_missing_setting_is_named() -> None:
    text = changed('hosts = ["smp.example.org"]', "")
    said = told(text)
    assert said.startswith(f"{FILE}, line {line_of(text, '[address]')}: address.hosts is missing.")


def test_all_mistakes_are_reported_at_once() -> None:
    text = changed("quota = 128", "qouta = 128").replace("[times]", "[tmies]")
    assert len(told(text).splitlines()) == 2


def test_invalid_toml_is_reported_with_its_line() -> None:
    said = told(changed("quota = 128", "quota ="))
    assert f"line {line_of(TEXT, 'quota = 128')}" in said
    assert "not valid TOML" in said
    with pytest.raises(OperatorError, match="UTF-8"):
        RouterPlace.parse(b"\xff", FILE)
    for content in (b"a = " + b"[" * 100_000, b"a = " + b"9" * 5_000):
        with pytest.raises(OperatorError, match="TOML: it has a number or a nesting that is too large"):
            RouterPlace.parse(content, FILE)


def test_a_byte_order_mark_of_an_editor_is_no_mistake() -> None:
    assert RouterPlace.parse(b"\xef\xbb\xbf" + TEXT.encode(), FILE) == RouterPlace.parse(TEXT.encode(), FILE)


@pytest.mark.parametrize("value", ["2026-01-01", "2026-01-01T10:00:00Z", "10:00:00", "[2026-01-01]", "{a=1}"])
def test_a_name_that_reads_like_a_date_or_a_table_is_a_text(value: str) -> None:
    assert with_set('[journal]\nname = ""\n', [f"journal.name={value}"]) == f'[journal]\nname = "{value}"\n'
