import pytest

from octavo.base.human import format_bytes, parse_int


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-3", -3),
        ("1_000", 1000),
        ("25.6k", 25_600),
        ("1k", 1000),
        ("1K", 1024),
        ("1m", 1_000_000),
        ("2M", 2 << 20),
        ("4GiB", 4 << 30),
        ("4 GB", 4_000_000_000),
        ("1.5GiB", 3 << 29),
        ("1t", 10**12),
    ],
)
def test_numbers(text, value):
    assert parse_int(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5", "1.0001k", "1x", "nan", "1e9", "0x10", "9" * 100, "1 2", "--1"])
def test_not_numbers(text):
    with pytest.raises(ValueError):
        parse_int(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (12_288, "12 KiB"),
        (491_400_064, "469 MiB"),
        (3 << 29, "1.5 GiB"),
        (141 << 30, "141 GiB"),
        (5 << 40, "5 TiB"),
    ],
)
def test_bytes(count, text):
    assert format_bytes(count) == text
