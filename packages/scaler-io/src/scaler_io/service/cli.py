"""The options of a program, from command line, environment and TOML file, as one frozen configuration.

The command line wins over the environment, which wins over the TOML file, which wins over the default. Names cannot be
abbreviated, an unknown name is refused with the nearest existing one, and one parser per option serves every source.
argparse splits the words and prints the help; this module does everything else.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, BinaryIO, Final, Generic, NoReturn, TypeVar, cast

from scaler_io.service.options import REQUIRED, Given, OneOf, Option, Refusal, UsageError, field_name, one_line
from scaler_protocol.lazy_dataclass import dataclass

T = TypeVar("T")

_CONFIG_NAMES: Final = ("--config", "-c")
_TEXT_NAMES: Final = ("--help", "-h", "--version")
# argparse treats such a word as a value although it begins with a dash.
_NEGATIVE_NUMBER: Final = re.compile(r"-(\d+|\d*\.\d+)")


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """A program's options, and the frozen dataclass that holds their values.

    The fields that `config` takes are exactly the destinations of `options`; a difference, or a name that is both
    offered and refused, raises TypeError at definition. `section` is the program's table in a TOML file.
    """

    program: str
    description: str
    section: str
    config: Callable[..., T]
    options: Sequence[Option]
    refusals: Sequence[Refusal] = ()
    example: str = ""
    kind: str = ""
    """Of a program that reads one table of an array [[section]]: the `type` of that table."""
    kind_key: str = ""
    """The option that tells several tables of one kind apart."""

    def __post_init__(self) -> None:
        fields = {field.name for field in dataclasses.fields(cast(Any, self.config)) if field.init}
        destinations = {option.destination for option in self.options}
        if fields != destinations:
            raise TypeError(f"{self.program}: fields and options differ: {', '.join(sorted(fields ^ destinations))}")
        refused = {name for refusal in self.refusals for name in refusal.names}
        if both := refused & self._names():
            raise TypeError(f"{self.program}: offered and refused: {', '.join(sorted(both))}")

    def read(self, words: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> T:
        """The configuration from `words`, `environ` and the --config file; None means the process's own.

        An error is one line on stderr and SystemExit(2); -h and --version print text and raise SystemExit(0).
        """
        words = sys.argv[1:] if words is None else words
        environ = os.environ if environ is None else environ
        parser = self._parser()
        _complete(parser, environ)
        try:
            return self.config(**self._values(parser, words, environ))
        except ValueError as error:
            self.refuse(error)

    def parse(self, words: Sequence[str], environ: Mapping[str, str] | None = None) -> T:
        """The configuration as `read` makes it; an error is a ValueError. There is neither help nor completion."""
        return self.config(**self._values(self._parser(), words, os.environ if environ is None else environ))

    def refuse(self, reason: object) -> NoReturn:
        """End the program with one line on stderr and exit code 2."""
        print(f"{self.program}: {one_line(str(reason))}", file=sys.stderr)
        raise SystemExit(2)

    def _values(
        self, parser: argparse.ArgumentParser, words: Sequence[str], environ: Mapping[str, str]
    ) -> dict[str, object]:
        self._check_names(words)
        file, from_words = self._from_words(parser, words)
        given = {**self._from_file(file, from_words), **self._from_environment(environ), **from_words}
        values: dict[str, object] = {}
        for option in self.options:
            if option.destination in given:
                values[option.destination] = option.value(given[option.destination])
            elif option.default is REQUIRED:
                raise UsageError(self._missing(option, from_words.values()))
            else:
                values[option.destination] = option.default
        return values

    def _names(self) -> set[str]:
        """Every name of an option."""
        return {*_CONFIG_NAMES, *_TEXT_NAMES, *(name for option in self.options for name in option.spellings)}

    def _parser(self) -> argparse.ArgumentParser:
        places = []
        for option in self.options:
            if option.positional:
                place = f"{option.placeholder} ..." if option.repeated else option.placeholder
                places.append(place if option.default is REQUIRED else f"[{place}]")
        parser = argparse.ArgumentParser(
            prog=self.program,
            usage=" ".join(["%(prog)s", *places, "[option ...]"]),
            description=self.description,
            epilog=f"example:\n  {self.example}" if self.example else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            exit_on_error=False,
        )
        for option in self.options:
            _declare(parser, option)
        table = f"[[{self.section}]] of type {self.kind}" if self.kind else f"[{self.section}]"
        note = f"read options from the table {table} of this TOML file"
        parser.add_argument(*_CONFIG_NAMES, metavar="FILE", help=note)
        parser.add_argument("--version", action=_ShowVersion, help="show the version")
        return parser

    def _check_names(self, words: Sequence[str]) -> None:
        """Refuse unknown options before argparse sees them: it mistakes `-pw` for `-pwc` and `-hix` for `-h`."""
        advice = {name: refusal.advice for refusal in self.refusals for name in refusal.names}
        known = self._names()
        valued = known - {"-h"} - {name for option in self.options if option.flag for name in option.names}
        for word in words:
            if word == "--":
                return
            name = word.partition("=")[0]
            if name in known or len(word) < 2 or word[0] != "-" or " " in word or _NEGATIVE_NUMBER.fullmatch(word):
                continue
            if name in advice:
                raise UsageError(f"{name}: {advice[name]}")
            # The usual `-n4`; only digits, or `-ct60` would be `-c t60`.
            if word[:2] not in valued or not word[2:].isdigit():
                raise UsageError(f"unknown option {name}{_nearest(name, known)}")

    def _from_words(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[str | None, dict[str, Given]]:
        """The --config file, and the options of the command line by destination."""
        try:
            namespace, rest = parser.parse_known_args(words)
        except argparse.ArgumentError as error:
            raise UsageError(str(error).removeprefix("argument ")) from error
        found: dict[str, Any] = vars(namespace)
        positionals = [option for option in self.options if option.positional]
        # argparse fills no further positional after an option between two: the later words are in `rest`.
        places = [found.pop(option.destination) for option in positionals if option.destination in found]
        places += [word for word in rest if word != "--"]
        given = {}
        for option in positionals:
            if texts := places if option.repeated else places[:1]:
                given[option.destination] = Given(option.placeholder, texts)
            places = places[len(texts) :]
        if places:
            raise UsageError(f"unexpected argument {places[0]!r}")
        for option in self.options:
            if option.destination in found:
                value = found[option.destination]
                texts = value if option.repeated else [str(value)]
                given[option.destination] = Given(option.long_names[0], texts)
        return found.get("config"), given

    def _from_environment(self, environ: Mapping[str, str]) -> dict[str, Given]:
        """The options of the environment by destination; an empty variable is ignored."""
        given = {}
        for option in self.options:
            if option.environment and (text := environ.get(option.environment)):
                given[option.destination] = Given(option.environment, text.split(",") if option.repeated else [text])
        return given

    def _from_file(self, path: str | None, from_words: Mapping[str, Given]) -> dict[str, Given]:
        """The options in the program's table of a TOML file, by destination."""
        if path is None:
            return {}
        settable = [option for option in self.options if not option.hidden]
        by_key = {field_name(name): option for option in settable for name in option.long_names}
        advice = {field_name(name): refusal.advice for refusal in self.refusals for name in refusal.names}
        where = f"{path} [{self.section}]"
        given: dict[str, Given] = {}
        for key, value in self._table(path, by_key, from_words).items():
            option = by_key.get(field_name(key))
            if option is None:
                if field_name(key) in advice:
                    raise UsageError(f"{where} {key}: {advice[field_name(key)]}")
                raise UsageError(f"{where}: unknown key {key}{_nearest(key, by_key)}")
            if option.destination in given:
                raise UsageError(f"{where} {key}: given twice")
            given[option.destination] = _from_toml(f"{where} {key}", option, value)
        return given

    def _table(self, path: str, keys: Iterable[str], from_words: Mapping[str, Given]) -> dict[str, object]:
        """The program's own table; the others belong to other programs."""
        try:
            with open(path, "rb") as file:
                tables = _read_toml(file)
        except OSError as error:
            raise UsageError(f"--config {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise UsageError(f"--config {path}: not TOML: {error}") from error
        for key, value in tables.items():
            if field_name(key) in keys and not isinstance(value, dict | list):
                raise UsageError(f"{path}: {key} stands outside every table; put it under [{self.section}]")
        table = tables.get(self.section, {})
        if self.kind:
            table = self._table_of_kind(path, table, from_words)
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {self.section} must be one table, [{self.section}]")
        if self.section not in tables and (nearest := _nearest(self.section, tables)):
            raise UsageError(f"{path}: no table {self.section}{nearest}")
        return table

    def _table_of_kind(self, path: str, tables: object, from_words: Mapping[str, Given]) -> dict[str, object]:
        """The one table of an array whose `type` is the program's kind, without that key.

        Several are told apart by the option that the command line gives for `kind_key`.
        """
        entries = tables if isinstance(tables, list) else [tables] if tables else []
        found = [entry for entry in entries if isinstance(entry, dict) and entry.get("type") == self.kind]
        if len(found) > 1 and (key := from_words.get(self.kind_key)):
            found = [entry for entry in found if str(_value_of(entry, self.kind_key)) == key.texts[0]]
        if len(found) != 1:
            number = f"{len(found)} tables" if found else "no table"
            raise UsageError(f'{path}: {number} [[{self.section}]] with type = "{self.kind}"; it needs exactly one')
        return {key: value for key, value in found[0].items() if key != "type"}

    def _missing(self, option: Option, given: Iterable[Given]) -> str:
        name = option.placeholder if option.positional else option.long_names[0]
        greedy = [each.source for each in given if len(each.texts) > 1]
        if option.positional and greedy:
            return f"missing {name}: give it before {greedy[0]}, which takes every word that follows"
        sources = ["on the command line", f"as {option.destination} under [{self.section}] of a --config file"]
        if option.environment:
            sources.insert(1, f"in {option.environment}")
        return f"missing {name}: give it {' or '.join(sources)}"


class _ShowVersion(argparse.Action):
    """Prints the version, which is looked up only then, and ends the process."""

    def __init__(self, option_strings: Sequence[str], dest: str, default: object, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=default, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(version_line(parser.prog))
        parser.exit()


def version_line(program: str) -> str:
    """The text of `--version`: all packages have one version."""
    from importlib.metadata import version

    return f"{program} {version('scaler-protocol')}"


def _value_of(table: Mapping[str, object], destination: str) -> object:
    """The value of an option in a table, whose keys may have dashes or underscores."""
    return next((value for key, value in table.items() if field_name(key) == destination), None)


def _declare(parser: argparse.ArgumentParser, option: Option) -> None:
    """Declare an option to argparse, for splitting words, help and completion; values stay text."""
    settings: dict[str, Any] = {"help": _described(option)}
    if option.flag:
        settings["action"] = argparse.BooleanOptionalAction
    else:
        settings["metavar"] = option.placeholder
    if option.repeated and not option.positional:
        settings.update(nargs="+", action="extend")
    if option.positional:
        action = parser.add_argument(option.destination, nargs="?", **settings)
    else:
        action = parser.add_argument(*option.names, dest=option.destination, **settings)
    if isinstance(option.parse, OneOf):
        words = option.parse.words
        # argcomplete reads this attribute; argparse's own `choices` would word the errors differently.
        vars(action)["completer"] = lambda **_: words


def _described(option: Option) -> str:
    if option.hidden:
        return argparse.SUPPRESS
    notes = []
    if default := default_text(option):
        notes.append(f"default: {default}")
    if option.environment:
        notes.append(f"environment: {option.environment}")
    text = f"{option.help} ({'; '.join(notes)})" if notes else option.help
    return text.replace("%", "%%")


def default_text(option: Option) -> str:
    """The default as people read it; empty if there is none, or an empty one."""
    value = option.default
    if value in (REQUIRED, None, "", (), {}):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Enum):
        return str(value.value)
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _from_toml(source: str, option: Option, value: object) -> Given:
    """A TOML value as the text of the command line; the items of an array are joined with commas."""
    items = value if isinstance(value, list) else [value]
    for item in items:
        if not isinstance(item, str | int | float) or (isinstance(item, bool) and not option.flag):
            raise UsageError(
                f"{source}: {option.placeholder} {_expected(option)}, not {_TOML_WORDS[type(item).__name__]}"
            )
    texts = [str(item) for item in items]
    return Given(source, texts if option.repeated else [",".join(texts)])


_TOML_WORDS: Final[Mapping[str, str]] = {
    "bool": "true or false",
    "dict": "a table",
    "list": "an array",
    "datetime": "a date with a time",
    "date": "a date",
    "time": "a time",
}
"""By the names of types: what dates need takes 1 ms to import."""


def _expected(option: Option) -> str:
    if option.repeated:
        return "holds texts or numbers"
    return "is true or false" if option.flag else "is a text or a number"


def _nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?`, or empty if no name is near."""
    import difflib  # for mistakes only

    by_text = {field_name(other): other for other in sorted(known)}
    close = difflib.get_close_matches(field_name(name), by_text, n=1)
    return f"; did you mean {by_text[close[0]]}?" if close else ""


def _complete(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Answer a shell's request for completions, which ends the process; otherwise do nothing."""
    if "_ARGCOMPLETE" in environ:
        try:
            import argcomplete
        except ImportError:
            return
        argcomplete.autocomplete(parser)


def _read_toml(file: BinaryIO) -> dict[str, object]:
    # Takes 2 ms to import, and few programs are started with a file.
    if sys.version_info >= (3, 11):
        from tomllib import load
    else:
        from tomli import load
    return load(file)
