"""Amounts as people read them: three digits, no exponent, one unit."""

import pytest

from anyformer.amounts import count, counted, duration, gibibytes, gigabytes, prefixed, seconds, signed, three_digits


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"), (820, "820"), (999, "999"), (12_345, "12.3k"), (835_584, "836k"), (999_600, "1.00M"), (3_004_416, "3.00M"),
        (6_738_415_616, "6.74B"), (1.5e13, "15.0T"), (6e15, "6.00Q"), (9.999e17, "1,000Q"),
    ],
)  # fmt: skip
def test_counts_have_the_letters_of_the_field(value: float, said: str) -> None:
    assert count(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0 B/s"),
        (999.4, "999 B/s"),
        (999.7, "1 kB/s"),
        (999.7e6, "1 GB/s"),
        (3.4e12, "3.4 TB/s"),
        (999.7e18, "1,000 EB/s"),
    ],
)
def test_no_number_has_an_exponent_before_its_prefix(value: float, said: str) -> None:
    assert prefixed(value, "B/s") == said


def test_a_prefix_stands_alone_where_a_column_says_the_unit() -> None:
    assert [prefixed(value) for value in (0, 820, 1.27e9, 536_870_912)] == ["0", "820", "1.27 G", "537 M"]


@pytest.mark.parametrize(
    ("nbytes", "decimal", "binary"),
    [
        (12, "12 bytes", "12 bytes"), (1023, "1.02 kB", "1,023 bytes"), (1024, "1.02 kB", "1 KiB"),
        (14_800, "14.8 kB", "14.5 KiB"), (1023 * 1024, "1.05 MB", "1,023 KiB"), (999_700_000, "1 GB", "953 MiB"),
        (80e9, "80 GB", "74.5 GiB"), (5e12, "5 TB", "4.55 TiB"),
    ],
)  # fmt: skip
def test_bytes_in_either_kind_of_units(nbytes: float, decimal: str, binary: str) -> None:
    assert gigabytes(nbytes) == decimal
    assert gibibytes(nbytes) == binary


@pytest.mark.parametrize(
    ("value", "said"),
    [(2e-6, "2 µs"), (0.0123, "12.3 ms"), (61.86, "61.9 s"), (1500, "1,500 s"), (9000, "2.5 h"), (1e9, "11,574 days")],
)
def test_no_time_has_an_exponent(value: float, said: str) -> None:
    assert seconds(value) == said


@pytest.mark.parametrize(
    ("value", "text"), [(5.4, "5 s"), (98, "98 s"), (300, "5 min"), (7200, "2.0 h"), (864_000, "10.0 days")]
)
def test_durations(value: float, text: str) -> None:
    assert duration(value) == text


def test_one_is_not_several() -> None:
    said = [counted(0, "byte"), counted(1, "byte"), counted(1200, "byte"), counted(2, "class", "classes")]
    assert said == ["0 bytes", "1 byte", "1,200 bytes", "2 classes"]


@pytest.mark.parametrize(
    ("value", "digits", "said"),
    [(0.0314, 3, "+0.031"), (-0.25, 3, "−0.250"), (-0.0001, 3, "0.000"), (0.0, 3, "0.000"), (-1.23456, 1, "−1.2")],
)
def test_a_difference_has_a_sign_unless_it_is_rounded_away(value: float, digits: int, said: str) -> None:
    assert signed(value, digits) == said


def test_three_digits_or_all_of_a_larger_number() -> None:
    assert [three_digits(value) for value in (0.5, 12.34, 999.7, 1500)] == ["0.5", "12.3", "1,000", "1,500"]
