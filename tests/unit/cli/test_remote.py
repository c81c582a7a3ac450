"""From a connection string to addresses: this broker's and Azure's."""

from pathlib import Path

import pytest

from twinbus.amqp.types import Int, Timestamp
from twinbus.cli.failures import USAGE, CommandError
from twinbus.cli.properties import property_value
from twinbus.cli.remote import Remote, is_loopback

CREDENTIALS = "SharedAccessKeyName=n;SharedAccessKey=k="
EMULATOR = f"Endpoint=sb://localhost:5672;{CREDENTIALS};UseDevelopmentEmulator=true"
AZURE = f"Endpoint=sb://shop.servicebus.windows.net/;{CREDENTIALS}"


@pytest.mark.parametrize(
    ("connection", "endpoint", "place"),
    [
        (EMULATOR, None, "localhost:5300"),
        (f"Endpoint=sb://127.0.0.1;{CREDENTIALS}", None, "127.0.0.1:5300"),
        (f"Endpoint=sb://bus:5672;{CREDENTIALS};UseDevelopmentEmulator=true", None, "bus:5300"),
        (EMULATOR, "https://localhost:41000/", "localhost:41000"),
        (AZURE, None, "shop.servicebus.windows.net"),
        (AZURE, "other:443", "other:443"),
    ],
)
def test_where_administration_is(connection: str, endpoint: str | None, place: str) -> None:
    assert Remote(connection, endpoint).admin_host_and_port == place


def test_the_broker_s_own_authority_is_trusted_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Remote(EMULATOR).trusted is None
    own = tmp_path / "twinbus-data" / "tls" / "ca.pem"
    own.parent.mkdir(parents=True)
    own.write_text("")
    assert Remote(EMULATOR).trusted == "twinbus-data/tls/ca.pem"
    assert Remote(AZURE).trusted is None
    with pytest.raises(CommandError, match="no certificate file") as raised:
        _ = Remote(AZURE, None, tmp_path / "none").trusted
    assert raised.value.code == USAGE


@pytest.mark.parametrize("host", ["localhost", "shop.localhost", "127.0.0.9", "::1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    assert not is_loopback(host + ".example.com")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=b=c", "b=c"),
        ("a:int=5", Int(5)),
        ("a:long=-5", -5),
        ("a:double=1.5", 1.5),
        ("a:bool=True", True),
        ("a:time=1970-01-01T00:00:01Z", Timestamp(1000)),
    ],
)
def test_a_property_on_the_command_line(text: str, value: object) -> None:
    name, found = property_value(text)
    assert (name, type(found), found) == ("a", type(value), value)


@pytest.mark.parametrize("text", ["a", "=b", "a:color=red", "a:int=x", "a:bool=maybe"])
def test_a_property_that_is_none_is_told(text: str) -> None:
    with pytest.raises(CommandError) as raised:
        property_value(text)
    assert raised.value.code == USAGE
