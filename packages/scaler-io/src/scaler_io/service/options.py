"""Options: their definition, parsers of common values, and the options that every server accepts or refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Final, NamedTuple

from scaler_io.security.key_files import INSECURE_VARIABLE, KEYS_VARIABLE, key_directory
from scaler_protocol.addresses import Address
from scaler_protocol.byte_counts import parse_bytes
from scaler_protocol.errors import AddressError
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import SECONDS, SIZE
from scaler_protocol.plurals import counted
from scaler_protocol.safe_text import escaped

LINE_LENGTH: Final = 2000
"""Characters of an error that are shown: its value may have more."""
REQUIRED: Final = object()
"""The default of an option that must be given."""


class UsageError(ValueError):
    """The given options are malformed or not allowed; the message is one line, with the remedy."""


class Given(NamedTuple):
    """The texts that one source gives for one option."""

    source: str
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a program; if its first name has no dash, it is positional and its other names are TOML keys.

    `parse` converts text to the value and raises ValueError with a sentence. A `flag` takes no value and is accepted as
    --name and --no-name. A `repeated` option takes several words and makes a tuple; a positional one takes all that are
    left, so it is the last.
    """

    names: tuple[str, ...]
    help: str
    parse: Callable[[str], object] = str
    _: KW_ONLY
    default: object = REQUIRED
    environment: str | None = None
    metavar: str | None = None
    flag: bool = False
    repeated: bool = False
    hidden: bool = False

    @property
    def positional(self) -> bool:
        """Whether the option is identified by its position instead of a name."""
        return not self.names[0].startswith("-")

    @property
    def long_names(self) -> tuple[str, ...]:
        """The names a TOML key may have."""
        return self.names if self.positional else tuple(name for name in self.names if name.startswith("--"))

    @property
    def destination(self) -> str:
        """The field of the configuration that receives the value: the first long name."""
        return field_name(self.long_names[0])

    @property
    def placeholder(self) -> str:
        """The name of the value in help and messages."""
        words = self.parse.words if isinstance(self.parse, OneOf) else ()
        return self.metavar or "|".join(words) or self.destination.upper()

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every name of the option on the command line."""
        if self.positional:
            return ()
        return self.names + tuple(f"--no-{name[2:]}" for name in self.long_names if self.flag)

    def value(self, given: Given) -> object:
        """Parse the texts of one source; raises UsageError, which names source and reason."""
        parse = boolean if self.flag else self.parse
        try:
            values = tuple(parse(text) for text in given.texts)
        except ValueError as error:
            raise UsageError(f"{given.source}: {error}") from error
        return values if self.repeated else values[0]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An option of an earlier engine that is refused, and the sentence that says what to do instead."""

    names: tuple[str, ...]
    advice: str


def field_name(name: str) -> str:
    """An option's name as a Python name: `--num-of-workers` is num_of_workers."""
    return name.lstrip("-").replace("-", "_")


@dataclass(frozen=True, slots=True)
class OneOf:
    """Parser for one of several words, in any case; `aliases` maps further words to these."""

    words: tuple[str, ...]
    aliases: Mapping[str, str]

    def __call__(self, text: str) -> str:
        known = {**{word.casefold(): word for word in self.words}, **self.aliases}
        try:
            return known[text.casefold()]
        except KeyError:
            raise ValueError(f"{text!r} is not one of {', '.join(self.words)}") from None


def one_of(*words: str, **aliases: str) -> OneOf:
    """Parser for one of `words`; `one_of("even_load", even="even_load")` accepts `even` too."""
    return OneOf(words, aliases)


EVENT_LOOP_KIND: Final = one_of("builtin", "uvloop")
LOGGING_LEVEL: Final = one_of("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
ALLOCATE_POLICY: Final = one_of("even_load", "capability", even="even_load")
JOURNAL_SYNC: Final = one_of("normal", "full")


def boolean(text: str) -> bool:
    """Parse one of the usual words for on and off; raises ValueError."""
    word = text.strip().casefold()
    if word in ("true", "yes", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def whole_number(minimum: int | None = None, maximum: int | None = None) -> Callable[[str], int]:
    """Parser for an int within bounds, both included."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if minimum is not None and number < minimum:
            raise ValueError(f"{number} is less than {minimum}")
        if maximum is not None and number > maximum:
            raise ValueError(f"{number} is more than {maximum}")
        return number

    return parse


def byte_count(minimum: int = 0) -> Callable[[str], int]:
    """Parser for a number of bytes, like 4GB or 512MiB, of at least `minimum`."""

    def parse(text: str) -> int:
        number = parse_bytes(text)
        if number < minimum:
            raise ValueError(f"{text} is less than {counted(minimum, 'byte')}")
        if number > SIZE.most:
            raise ValueError(f"{text} is more than {SIZE.most:,} bytes")
        return number

    return parse


def seconds(text: str) -> float:
    """Parse a duration within the limits of messages, zero included; raises ValueError."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of seconds") from None
    if not SECONDS.fits(number):
        raise ValueError(f"{text} is not a number of seconds from {SECONDS.span}")
    return number


def positive_seconds(text: str) -> float:
    """Parse a finite duration above zero; raises ValueError."""
    number = seconds(text)
    if not number:
        raise ValueError("0 seconds is too short; it must be more than 0")
    return number


def http_address(text: str) -> Address:
    """Read `host:port`; raises ValueError with the accepted forms."""
    try:
        return Address.parse(f"tcp://{text}")
    except AddressError:
        raise ValueError(f"address {text!r}: write host:port or [::1]:port") from None


def comma_list(text: str) -> tuple[str, ...]:
    """Parse words separated by commas; an empty text has none. Raises ValueError."""
    words = tuple(word.strip() for word in text.split(",")) if text.strip() else ()
    if "" in words:
        raise ValueError(f"{text!r} has an empty item")
    return words


def path(text: str) -> Path:
    """Parse the path of a file or directory; raises ValueError for none."""
    if not text.strip() or "\0" in text:
        raise ValueError(f"{text!r} is no path")
    return Path(text)


def one_line(text: str) -> str:
    """Join the lines of a message; what cannot be printed is escaped, and the middle of a long one is left out."""
    line = "; ".join(escaped(line.strip()) for line in text.splitlines() if line.strip())
    half = LINE_LENGTH // 2
    return line if len(line) <= LINE_LENGTH else f"{line[:half]} … {line[-half:]}"


STORAGE_OPTIONS: Final = (
    Option(
        ("--memory-limit", "-ml"),
        "keep this many bytes of objects in memory; 60 % of what the host or control group allows if left out",
        byte_count(1),
        default=None,
        metavar="BYTES",
    ),
    Option(
        ("--segment-directory", "-sgd"),
        "keep objects here, for programs on this host to map; in /dev/shm if left out, or on disk if that is small",
        path,
        default=None,
        metavar="DIRECTORY",
    ),
    Option(
        ("--spill-directory", "-spd"),
        "move objects unused for long here when the memory is full; refuse new ones instead if left out",
        path,
        default=None,
        metavar="DIRECTORY",
    ),
    Option(
        ("--spill-limit", "-spl"),
        "move at most this many bytes to disk",
        byte_count(1),
        default=None,
        metavar="BYTES",
    ),
)
"""How much an object storage server may keep, and where: options of the server and of programs that start one."""

KEYS: Final = (
    Option(
        ("--keys",),
        "the directory of the cluster's keys, which `scaler keys init` makes: links are encrypted, both sides prove a "
        "key; at addresses that only this host can reach, this user's own keys if left out",
        key_directory,
        default=None,
        environment=KEYS_VARIABLE,
        metavar="DIRECTORY",
    ),
    Option(
        ("--insecure",),
        "use no keys: whoever reaches the cluster's ports can run code on its workers and read all results",
        default=False,
        environment=INSECURE_VARIABLE,
        flag=True,
    ),
)
"""Options of every program that connects or listens."""

PARENT_PID: Final = Option(
    ("--parent-pid",),
    "end with this process; given by the process that starts a local cluster",
    whole_number(minimum=1),
    default=None,
    hidden=True,
)

READY_FD: Final = Option(
    ("--ready-fd",),
    "write the address to this descriptor when it can be reached; given by the process that starts a local cluster",
    whole_number(minimum=0),
    default=None,
    hidden=True,
)

REFUSED: Final = (
    Refusal(
        ("--io-threads", "-it", "--worker-io-threads", "--scheduler-io-threads"),
        "every process has one ZeroMQ thread, which is enough; leave it out",
    ),
    Refusal(
        ("--hard-processor-suspend", "-hps"),
        "a task that waits for its own tasks gives its place to them, and nothing is suspended; leave it out",
    ),
    Refusal(
        ("--load-balance-seconds", "-ls", "--load-balance-trigger-times", "-lbt"),
        "work is balanced the moment a worker has nothing to do, not by a timer; leave it out",
    ),
    Refusal(
        ("--tls-cert", "-tc", "--tls-key", "-tk"),
        "there is no TLS here; connections are encrypted with --keys",
    ),
    Refusal(
        ("--log-hub-address", "-la"),
        "log lines are not sent to a hub; name streams or files with --logging-paths",
    ),
)
"""Options that every server refuses."""

REFUSED_BY_SCHEDULER: Final = (
    *REFUSED,
    Refusal(
        ("--per-worker-queue-size", "-qs"),
        "the workers' side sets it: scaler_cluster --per-worker-task-queue-size",
    ),
)

REFUSED_BY_CLUSTER: Final = (
    *REFUSED,
    Refusal(("--max-task-concurrency", "-mtc"), "say how many workers to start with --num-of-workers"),
    Refusal(("--mode", "--worker-type"), "that is for scaler_worker_manager baremetal_native; leave it out"),
    Refusal(("--worker-scheduler-address", "-wsa"), "the workers have no connection of their own; leave it out"),
)
