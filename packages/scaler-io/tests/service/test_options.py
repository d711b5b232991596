"""Options: parsers of values and what every server refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaler_io.security.key_files import key_directory
from scaler_io.service.options import (
    LINE_LENGTH,
    PARENT_PID,
    REFUSED,
    REFUSED_BY_CLUSTER,
    REFUSED_BY_SCHEDULER,
    Given,
    Option,
    Refusal,
    UsageError,
    boolean,
    comma_list,
    one_line,
    one_of,
    path,
    positive_seconds,
    seconds,
    whole_number,
)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (boolean, "True", True),
        (boolean, " on ", True),
        (boolean, "1", True),
        (boolean, "NO", False),
        (boolean, "off", False),
        (whole_number(), "-7", -7),
        (whole_number(minimum=-1), "-1", -1),
        (whole_number(1, 65535), "65535", 65535),
        (seconds, "0", 0.0),
        (seconds, "2", 2.0),
        (positive_seconds, "0.5", 0.5),
        (comma_list, "a, b,c", ("a", "b", "c")),
        (comma_list, "", ()),
        (one_of("even_load", "capability", even="even_load"), "Capability", "capability"),
        (one_of("even_load", "capability", even="even_load"), "even", "even_load"),
    ],
)
def test_accepted(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value
    assert type(parse(text)) is type(value)


@pytest.mark.parametrize(
    ("parse", "text", "sentence"),
    [
        (boolean, "maybe", "'maybe' is neither true nor false"),
        (whole_number(), "1.0", "'1.0' is not a whole number"),
        (whole_number(minimum=0), "-1", "-1 is less than 0"),
        (whole_number(1, 9), "10", "10 is more than 9"),
        (seconds, "-1", "-1 is not a number of seconds from 0 to 1,000,000,000"),
        (seconds, "1e10", "1e10 is not a number of seconds from 0 to 1,000,000,000"),
        (seconds, "inf", "inf is not a number of seconds from 0 to 1,000,000,000"),
        (seconds, "nan", "nan is not a number of seconds from 0 to 1,000,000,000"),
        (seconds, "soon", "'soon' is not a number of seconds"),
        (positive_seconds, "0", "0 seconds is too short; it must be more than 0"),
        (comma_list, "a,,b", "'a,,b' has an empty item"),
        (path, "", "'' is no path"),
        (path, "a\0b", r"'a\x00b' is no path"),
        (key_directory, " ", "' ' is not the path of a directory"),
        (key_directory, "a\0b", r"'a\x00b' is not the path of a directory"),
        (key_directory, "~nouser/x", "'~nouser/x': Could not determine home directory."),
        (one_of("builtin", "uvloop"), "trio", "'trio' is not one of builtin, uvloop"),
    ],
)
def test_refused(parse: Callable[[str], object], text: str, sentence: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse(text)
    assert str(raised.value) == sentence


def test_destination_is_the_first_long_name() -> None:
    option = Option(("-hi", "--heartbeat-interval-seconds", "-his"), "")
    assert option.destination == "heartbeat_interval_seconds"
    assert Option(("address",), "").destination == "address"


def test_value_names_its_source() -> None:
    with pytest.raises(UsageError, match=r"^SCALER_N: 'x' is not a whole number$"):
        Option(("--n",), "", whole_number()).value(Given("SCALER_N", ["x"]))


def test_repeated_values_make_a_tuple() -> None:
    assert Option(("--n",), "", whole_number(), repeated=True).value(Given("--n", ["1", "2"])) == (1, 2)


def test_parent_pid_is_hidden_and_optional() -> None:
    assert PARENT_PID.hidden
    assert PARENT_PID.default is None


@pytest.mark.parametrize("refusals", [REFUSED_BY_SCHEDULER, REFUSED_BY_CLUSTER])
def test_refusals_have_each_name_once_and_an_advice(refusals: tuple[Refusal, ...]) -> None:
    names = [name for refusal in refusals for name in refusal.names]
    assert len(names) == len(set(names))
    assert all(refusal.advice == one_line(refusal.advice) != "" for refusal in refusals)
    assert set(REFUSED) <= set(refusals)


def test_one_line() -> None:
    assert one_line(" first\n\n  second \n") == "first; second"


def test_a_long_value_leaves_place_and_remedy_of_an_error() -> None:
    line = one_line(f"--level: {'x' * 100_000} is not one of DEBUG, INFO")
    assert line.startswith("--level: xxx") and line.endswith("xxx is not one of DEBUG, INFO")
    assert len(line) == LINE_LENGTH + len(" … ")
