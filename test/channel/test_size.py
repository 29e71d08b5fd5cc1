import pytest

from glt.channel import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1GB", 1 << 30), ("64MB", 64 << 20), ("512KB", 512 << 10), ("1.5 GiB", 3 << 29), ("7", 7), ("3k", 3 << 10),
     (" 10 b ", 10), (123, 123)],
)  # fmt: skip
def test_sizes_as_people_write_them(text: int | str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "MB", "1XB", "1e3", "-5MB", "1 2MB", "٣MB", "1MBB"])
def test_bad_text_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="channel_size = "):
        parse_size(text, "channel_size")


def test_bad_values_are_named() -> None:
    for value in (0, -1, "0MB"):
        with pytest.raises(ValueError, match="more than 0"):
            parse_size(value)
    for wrong in (1.5, None, True):
        with pytest.raises(TypeError, match="int or a str"):
            parse_size(wrong)  # type: ignore[arg-type]


def test_sizes_for_people() -> None:
    assert [format_size(n) for n in (7, 2048, 64 << 20, 3 << 29)] == ["7 B", "2.0 KB", "64.0 MB", "1.5 GB"]
