"""Checks parameters of public calls; errors name the parameter and its value. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from scaler_io.security.key_files import INSECURE_VARIABLE, KEYS_VARIABLE, key_directory
from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError
from scaler_protocol.limits import SECONDS, SESSION_NAME
from scaler_protocol.outputs import StreamOutput
from scaler_protocol.ranges import Limit, shown

T = TypeVar("T")
_STEADY: Final = frozenset({list, tuple, range, str, bytes, set, frozenset, dict})


def check(name: str, value: object, limit: Limit) -> None:
    """Raises ValueError for a value outside the limit."""
    if fault := limit.fault(value):
        raise ValueError(f"{name} {fault}")


def check_name(name: str, value: Any, limit: Limit) -> None:
    """Raises ValueError for a name that is outside the limit, or that a line of text cannot show."""
    check(name, value, limit)
    if not value.strip() or not value.isprintable():
        raise ValueError(f"{name} is {shown(value)}: a name has visible characters only, and at least one")


def check_address(name: str, value: Any) -> None:
    """Raises AddressError for a value that is not an address."""
    try:
        Address.parse(value)
    except AddressError as error:
        raise AddressError(f"{name}: {error}") from None


def output_mode(wanted: bool | str) -> int:
    """The StreamOutput of a client's `stream_output`; raises ValueError."""
    if type(wanted) not in (bool, int, str) or wanted not in (True, False, "prefixed"):
        raise ValueError(f"stream_output is True, False or 'prefixed', not {shown(wanted)}")
    return StreamOutput.PREFIXED if wanted == "prefixed" else int(wanted)


def check_positive_seconds(name: str, value: object, instead: str = "") -> None:
    """Raises ValueError for what is no duration, or 0; `instead` says what may be given besides."""
    check(name, value, SECONDS)
    if not value:
        raise ValueError(f"{name} is {shown(value)}, not more than 0 seconds{instead}")


def timeout_of(name: str, value: float) -> float:
    """The timeout as a float, whatever kind of number it is; raises ValueError."""
    check(name, value, SECONDS)
    return float(value)


def flag(name: str, value: object) -> bool:
    """Whether it is true; raises TypeError for what is neither true nor false, as a text is: "no" would be true."""
    if isinstance(value, str | bytes | bytearray):
        raise TypeError(f"{name} is {shown(value)}, not True or False")
    try:
        return bool(value)
    except Exception as error:
        raise TypeError(f"{name} is {shown(value)}, not True or False: {error}") from error


def items(name: str, value: Iterable[T]) -> Iterator[T]:
    """An iterator of its items; raises TypeError if it is not iterable."""
    try:
        return iter(value)
    except TypeError as error:
        raise TypeError(f"{name} is {shown(value)}, which is not iterable: {error}") from error


def can_prefetch(iterables: Iterable[object]) -> bool:
    """Whether items can be drawn ahead: no code of anybody's runs for the next one, so that none changes the last."""
    return _STEADY.issuperset(map(type, iterables))


def keywords(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of keyword arguments; raises TypeError if it is not a mapping with text keys."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {shown(value)}, not a mapping from names to values")
    for word in value:
        if not isinstance(word, str):
            raise TypeError(f"{name} is {shown(value)}: the name of an argument is a text, not {shown(word)}")
    return dict(value)


def rows(name: str, value: Iterable[Iterable[Any]]) -> Iterator[tuple[Any, ...]]:
    """Tuples of arguments; raises TypeError for what is no row of them."""
    return (tuple(items(f"item {at} of {name}", row)) for at, row in enumerate(items(f"the iterable of {name}", value)))


def check_serializer(value: object) -> None:
    """Raises TypeError for a value without the methods of a Serializer."""
    for method in ("serialize", "deserialize"):
        if not callable(getattr(value, method, None)):
            raise TypeError(f"serializer is {shown(value)}, which has no method {method}")


def key_settings(keys: Any, insecure: Any, security_config: Any) -> tuple[Path | None, bool]:
    """The directory of keys that a client is given, if any, and whether it uses none. Raises ValueError, TypeError.

    What a parameter says is not changed by an environment variable.
    """
    if security_config is not None:
        raise ValueError("security_config is no longer taken: name the directory of the cluster's keys with keys=")
    insecure = flag("insecure", insecure)
    path = os.fspath(keys) if isinstance(keys, os.PathLike) else keys
    if path is not None and not isinstance(path, str):
        raise TypeError(f"keys is {shown(keys)}, not the path of a directory")
    if insecure and keys is not None:
        raise ValueError(f"keys={shown(keys)} and insecure=True contradict each other: leave one out")
    if keys is not None or insecure:
        return (None if path is None else _directory("keys", path)), insecure
    given = os.environ.get(KEYS_VARIABLE)
    return (_directory(KEYS_VARIABLE, given) if given else None), _is_on(INSECURE_VARIABLE)


def _directory(name: str, path: str) -> Path:
    try:
        return key_directory(path)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _is_on(variable: str) -> bool:
    """Whether an environment variable says yes; raises ValueError if it says neither yes nor no."""
    text = os.environ.get(variable)
    if not text:
        return False
    from scaler_io.service.options import boolean  # keeps `import scaler` light

    try:
        return boolean(text)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_client(
    address: object, timeout_seconds: object, serializer: object, stream_output: Any, storage_address: object
) -> None:
    """Check the parameters of Client before anything is begun; raises AddressError, ValueError, TypeError."""
    for name, given in (("address", address), ("object_storage_address", storage_address)):
        if given is not None:
            check_address(name, given)
    check_positive_seconds("timeout_seconds", timeout_seconds)
    check_serializer(serializer)
    output_mode(stream_output)


def check_initializer(initializer: Callable[[], object] | None) -> Callable[[], object] | None:
    """Returns it; raises TypeError if it cannot be called."""
    if initializer is not None and not callable(initializer):
        raise TypeError(f"initializer={shown(initializer)} cannot be called: give a function without parameters")
    return initializer


def check_session(name: object, secret: object) -> None:
    """Check the parameters of a named session; raises ValueError, TypeError."""
    if secret is not None and not isinstance(secret, str | bytes):
        raise TypeError("session_secret is neither a text nor bytes")
    if isinstance(secret, str) and not _is_utf8(secret):
        raise ValueError("session_secret is a text that UTF-8 cannot write: give bytes")  # without the secret itself
    if secret is not None and not secret:
        raise ValueError("session_secret is empty, which proves nothing: give a secret, or leave it out")
    if name is None:
        if secret is not None:
            raise ValueError("session_secret is given without session: name the session, too")
        return
    if not isinstance(name, str):
        raise TypeError(f"session is {shown(name)}, not the name of a session")
    check_name("session", name, SESSION_NAME)
