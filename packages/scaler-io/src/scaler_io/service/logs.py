"""Logging of programs: the logger `scaler`, its targets and its format. The root logger is never changed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TextIO

from scaler_io.links.effects import Log
from scaler_io.service.options import LOGGING_LEVEL, Option, one_of
from scaler_protocol.safe_text import escaped_lines

if sys.platform != "win32":
    from scaler_io.service.nonblocking import NonblockingWriter

LOGGER: Final = logging.getLogger("scaler")
ABOUT: Final = ("task", "worker")
"""Attributes of records that are fields of lines."""
LOG_FORMAT: Final = one_of("text", "json")

LOGGING_OPTIONS: Final = (
    Option(
        ("--logging-paths", "-lp"),
        "where log lines go: -, /dev/stdout, /dev/stderr or files to append to",
        default=("/dev/stdout",),
        metavar="PATH",
        repeated=True,
    ),
    Option(
        ("--logging-level", "-ll"),
        f"log lines of this level and above: {', '.join(LOGGING_LEVEL.words)}",
        LOGGING_LEVEL,
        default="INFO",
        metavar="LEVEL",
    ),
    Option(("--log-format", "-lf"), "text lines, or one JSON object per line", LOG_FORMAT, default="text"),
    Option(
        ("--logging-config-file", "-lcf"),
        "a file of Python's logging.config, which replaces the options above",
        default=None,
        metavar="FILE",
    ),
)
"""The fields logging_paths: tuple[str, ...], logging_level, log_format: str and logging_config_file: str | None."""


if TYPE_CHECKING:
    _TextStreamHandler = logging.StreamHandler[TextIO]
else:
    _TextStreamHandler = logging.StreamHandler  # takes no type argument before Python 3.11


class LineHandler(_TextStreamHandler):
    """Writes lines to a stream; drops them if its reader is gone or has stopped, or its disk is full."""

    def __init__(self, stream: TextIO, *, owned: bool) -> None:
        super().__init__(stream)
        self.owned = owned
        self._dropped = 0
        if sys.platform != "win32":
            self._writer = NonblockingWriter.on(stream)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or drop it if nobody reads or the disk is full; how many were dropped is logged afterwards."""
        if sys.platform == "win32" or self._writer is None:
            super().emit(record)
            return
        try:
            line = self._encoded(record)
            if self._dropped and self._writer.write(self._encoded(_dropped_record(record, self._dropped))):
                self._dropped = 0
            if self._dropped or not self._writer.write(line):
                self._dropped += 1
        except Exception:
            self.handleError(record)

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return (self.format(record) + self.terminator).encode(self.stream.encoding or "utf-8", "backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop a line that cannot be written; the logging module would print a traceback for each."""
        error = sys.exc_info()[1]
        if isinstance(error, BrokenPipeError):
            # The rest of the buffer must be written somewhere, or the interpreter reports an error at exit.
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self.stream.fileno())
        elif not isinstance(error, OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close the stream if this handler owns it."""
        super().close()
        if sys.platform != "win32" and self._writer is not None:
            with contextlib.suppress(OSError):  # the reader is gone
                self._writer.close()
            self._writer = None
        if self.owned:
            self.stream.close()


def _dropped_record(next_record: logging.LogRecord, count: int) -> logging.LogRecord:
    text = "%d log lines before this one were dropped: they were not read in time, or the disk was full"
    return logging.LogRecord(next_record.name, logging.WARNING, __file__, 0, text, (count,), None)


class TextFormatter(logging.Formatter):
    """Formats a line as `[INFO]2025-06-06 13:13:15+0200: text`, in local time; further lines of a text are indented.

    Peers and tasks have written parts of it: what cannot be printed is escaped, and nothing looks like another record.
    """

    def __init__(self) -> None:
        super().__init__("[%(levelname)s]%(asctime)s: %(message)s", "%Y-%m-%d %H:%M:%S%z")

    def format(self, record: logging.LogRecord) -> str:
        """The lines of a record."""
        return escaped_lines(super().format(record), "  ")


def write(line: Log, program: str = "") -> None:
    """Write a line of a core, which begins with the name of the program."""
    about = {"task": f"{line.task:x}" if line.task else "", "worker": line.worker}
    LOGGER.log(line.level, "%s%s", f"{program}: " if program else "", line.text, extra=about)


class JsonFormatter(logging.Formatter):
    """Formats a line as an object: time (ISO 8601), level, host, process, message, if it is about them task (its id)
    and worker, and a traceback if there is one."""

    def __init__(self) -> None:
        super().__init__()
        from datetime import datetime  # for this format only

        self._host, self._local_time = socket.gethostname(), datetime.fromtimestamp

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        entry = {
            "time": self._local_time(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "host": self._host,
            "process": record.process,
            "message": record.getMessage(),
        }
        about = {name: value for name in ABOUT if (value := record.__dict__.get(name))}
        entry |= about
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        line = json.dumps(entry, ensure_ascii=False)
        return line if line.isprintable() else json.dumps(entry)


def configure(
    paths: Sequence[str], level: str = "INFO", config_file: str | None = None, log_format: str = "text"
) -> None:
    """Direct the logger `scaler` to `paths`, or as `config_file` says; with it the other arguments are ignored.

    Replaces the targets of an earlier call. Raises ValueError, which names value and remedy; nothing changes if a path
    or the level is wrong.
    """
    if config_file is not None:
        _configure_from(config_file)
        return
    level = LOGGING_LEVEL(level)
    handlers: list[logging.Handler] = []
    try:
        handlers.extend(_handler(path) for path in dict.fromkeys(map(_canonical, paths)))
    except OSError as error:
        for handler in handlers:
            handler.close()
        remedy = "name a file that can be written, or - for standard output"
        raise ValueError(f"cannot log to {error.filename}: {error.strerror}; {remedy}") from error
    for old in LOGGER.handlers[:]:
        LOGGER.removeHandler(old)
        old.close()
    for handler in handlers or [logging.NullHandler()]:
        handler.setFormatter(JsonFormatter() if LOG_FORMAT(log_format) == "json" else TextFormatter())
        LOGGER.addHandler(handler)
    LOGGER.setLevel(level)
    # User code in the same process may configure the root logger; each line must still be logged once.
    LOGGER.propagate = False


def announce(paths: Sequence[str], config_file: str | None = None) -> None:
    """Log the first line of a server: where its logs go."""
    if config_file is not None:
        LOGGER.info("logging as configured in %s", config_file)
    else:
        LOGGER.info("logging to %r", tuple(paths))


def _canonical(path: str) -> str:
    return "/dev/stdout" if path == "-" else path


def _handler(path: str) -> logging.Handler:
    # Use the process's own stream: opening the device fails under another user and truncates a file behind it.
    if path == "/dev/stdout":
        return LineHandler(sys.stdout, owned=False)
    if path == "/dev/stderr":
        return LineHandler(sys.stderr, owned=False)
    return LineHandler(open(path, "a", encoding="utf-8"), owned=True)


def _configure_from(path: str) -> None:
    from logging.config import fileConfig  # takes 3 ms, and few programs are started with a file

    try:
        with open(path, encoding="utf-8") as file:
            fileConfig(file, disable_existing_loggers=False)
    except OSError as error:
        raise ValueError(
            f"logging configuration {path}: {error.filename or path}: {error.strerror or error}"
        ) from error
    except Exception as error:  # the file holds expressions, which may raise anything
        raise ValueError(f"logging configuration {path} is not a file of logging.config: {error!r}") from error
