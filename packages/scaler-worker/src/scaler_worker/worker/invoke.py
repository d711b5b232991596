"""Invokers: load a function, decode a call, run it, encode its result or exception."""

from __future__ import annotations

import importlib
import json
import operator
import pickle
import re
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import CoroutineType
from typing import Any, Final, NamedTuple

from scaler_client.calls.environments import Environment, WrappedFunction, environment
from scaler_client.calls.part_encoding import read_parts
from scaler_client.payloads import pickles
from scaler_client.payloads.classes import begin, defining
from scaler_client.payloads.classes import scope as class_scope
from scaler_client.payloads.exceptions import dump_exception
from scaler_client.payloads.unpicklable import fault_in
from scaler_client.payloads.user_exceptions import Origin, add_note, formatted, headline
from scaler_protocol.buffers import Buffer, Payload
from scaler_protocol.errors import (
    DeserializeError,
    HandshakeRefusedError,
    ObjectNotFoundError,
    ResultNotSerializableError,
    ScalerError,
    StorageLostError,
    TaskExceptionNotSerializableError,
    TaskExitedError,
    describe,
)
from scaler_protocol.ids import function_fault
from scaler_protocol.messages import Encoding, Status
from scaler_protocol.serializer import checked_callable, checked_serialize
from scaler_protocol.tracebacks import bounded
from scaler_worker.ipc.frames import Definition
from scaler_worker.worker import json_calls

PROTOCOL: Final = 5
_PLAIN: Final = frozenset({int, float, str, bytes, bool, type(None)})
_SMALL_TUPLE: Final = 8

_MISSING: Final = (
    "install it where the workers run, or set their PYTHONPATH, or have it travel with its functions: "
    "cloudpickle.register_pickle_by_value({0}), or client.upload({0})"
)
_STALE: Final = (
    "the workers have another version of the module {0}, and need to be started again: client.restart_workers(), or"
    " upload this one: client.upload({0})"
)
_NAME_MISSING: Final = re.compile(r"Can't get attribute .* on <module '([^']*)'")
_READ_ONLY: Final = (
    "arrays that a task receives are read-only, since all tasks of a host share them: change a copy, array.copy();"
    " calls of joblib may also get arrays of their own: Parallel(max_nbytes=None)"
)
_STAR: Final = re.escape("*")
_OUR_FILES: Final = (__file__, str(Path(__file__).with_name("coroutines.py")))
Await = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine; returns its result or raises its exception."""
Classes = Mapping[str, type]
"""Classes that were defined with a function, by id."""
Invoker = Callable[[Buffer], tuple[int, Payload]]
"""Runs an encoded call; returns status and payload. Never raises."""
LoadCall = Callable[[Any], tuple[Sequence[Any], Mapping[str, Any]]]
"""Reads an encoded call; returns arguments and keywords. Raises what loading raises."""


class LoadedFunction(NamedTuple):
    """A function, and how its calls, results and exceptions are encoded."""

    function: Callable[..., Any]
    encoding: int
    load_call: LoadCall
    dump: Callable[[Any], Payload]
    classes: Classes
    environment: Environment | None = None
    """In which it was loaded, and its calls are run."""


def check_definition(definition: Definition, allowed: Sequence[str] = ()) -> None:
    """Raises DeserializeError for a function id that is not the hash of the body, name or reference it came with.

    And for a function that is not one of `allowed`, if there are any: patterns of names. Calls must then be JSON, since
    a pickle runs code while it is loaded.
    """
    fault = function_fault(definition.function, definition.name, definition.body, stored=definition.body_stored)
    if not fault and definition.serializer_body:
        body, stored = definition.serializer_body, definition.serializer_stored
        fault = function_fault(definition.serializer, "", body, stored=stored)
    if fault:
        raise DeserializeError(f"the function {definition.name} could not be loaded: {fault}")
    if allowed:
        _check_allowed(definition, allowed)


def _check_allowed(definition: Definition, allowed: Sequence[str]) -> None:
    if definition.body or definition.encoding != Encoding.JSON:
        fault = "it, or its calls, came as code, and the workers run functions by name only, called with JSON"
    elif not any(re.fullmatch(re.escape(each).replace(_STAR, r"\w*"), definition.name) for each in allowed):
        fault = "no pattern admits its name"
    else:
        return
    raise DeserializeError(
        f"the function {definition.name!r} is not allowed: {fault} (--allow-functions {', '.join(allowed)})"
    )


def load_function(definition: Definition, finish: Await) -> LoadedFunction:
    """Load the function of a definition; raises DeserializeError naming what cannot be loaded, or InitializerError.

    If an initializer returns a coroutine, `finish` runs it.
    """
    encoding = definition.encoding
    with defining() as classes:
        if encoding == Encoding.PARTS:
            return _load_with_parts(definition, classes)
        function = load_named(definition.name) if not definition.body else _load(definition, pickle.loads)
        if isinstance(function, WrappedFunction):
            entered, definition = environment(function.environment), replace(definition, body=function.function)
            return _load_in(entered, definition, finish, classes)
    if encoding == Encoding.JSON:
        return LoadedFunction(function, encoding, json_calls.load_call, json_calls.dump_result, classes)
    return LoadedFunction(function, encoding, pickles.load, dump_value, classes)


def load_invoker(definition: Definition, finish: Await) -> Invoker:
    """Load the function of a definition as an Invoker; raises as `load_function` does.

    If a call returns a coroutine, `finish` runs it.
    """
    loaded = load_function(definition, finish)
    if loaded.encoding != Encoding.PICKLE:
        return _invoker(loaded, finish)
    invoker = _pickle_invoker(loaded.function, finish, loaded.classes)
    return _within(loaded.environment, invoker) if loaded.environment is not None else invoker


def _load_in(entered: Environment, definition: Definition, finish: Await, classes: Classes) -> LoadedFunction:
    with entered:
        entered.initialize(finish)
        function = _load(definition, pickle.loads)
    return LoadedFunction(function, Encoding.PICKLE, pickles.load, dump_value, classes, entered)


def _within(entered: Environment, invoker: Invoker) -> Invoker:
    def run(call: Buffer) -> tuple[int, Payload]:
        with entered:
            return invoker(call)

    return run


def load_named(name: str) -> Callable[..., Any]:
    """Import the function `package.module:qualified.name`; raises DeserializeError."""
    module, _, path = name.partition(":")
    if not path or not module or module.startswith("."):
        raise DeserializeError(f"{name!r} is not the name of a function: give module:qualname, such as math:sqrt")
    try:
        found = operator.attrgetter(path)(importlib.import_module(module))
    except Exception as error:
        raise _unloadable(f"the function {name!r}", error) from error
    if not callable(found):
        raise DeserializeError(f"{name!r} is a {type(found).__name__}, not a function")
    function: Callable[..., Any] = found
    return function


def _load(definition: Definition, loads: Callable[[Any], Any]) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = loads(definition.body)
    except BaseException as error:
        raise _unloadable(f"the function {definition.name}", error) from error
    return function


def _unloadable(what: str, error: BaseException) -> DeserializeError:
    """The error of what cannot be loaded here; it says what to do if a module is missing."""
    message = f"{what} could not be loaded: {headline(error)}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        message += f": {_missing(error.name)}"
    elif found := _NAME_MISSING.match(str(error)):
        message += f": {_STALE.format(found[1])}"
    return DeserializeError(message)


def _missing(module: str) -> str:
    """What to do about a module that workers do not have."""
    return _MISSING.format(module.partition(".")[0])


def _pickle_invoker(function: Callable[..., Any], finish: Await, classes: Classes) -> Invoker:
    loads, dumps, scope = pickles.load, pickle.dumps, class_scope

    def run(call: Buffer) -> tuple[int, Payload]:
        if scope.loaded or classes:
            begin(classes)
        try:
            args, kwargs = loads(call)
        except BaseException as error:
            return not_loaded(error)
        try:
            value = function(*args, **kwargs)
            if type(value) is CoroutineType:
                value = finish(value)
        except BaseException as error:
            return _raised(error, Encoding.PICKLE)
        if type(value) in _PLAIN and not pickles.is_long(value):
            return Status.VALUE, dumps(value, PROTOCOL)
        return returned(value, dump_value)

    return run


def _invoker(loaded: LoadedFunction, finish: Await) -> Invoker:
    function, encoding, load_call, dump, classes, _ = loaded

    def run(call: Buffer) -> tuple[int, Payload]:
        if class_scope.loaded or classes:
            begin(classes)
        try:
            args, kwargs = load_call(call)
        except BaseException as error:
            return not_loaded(error)
        try:
            value = function(*args, **kwargs)
            if type(value) is CoroutineType:
                value = finish(value)
        except BaseException as error:
            return _raised(error, encoding)
        return returned(value, dump)

    return run


def _load_with_parts(definition: Definition, classes: Classes) -> LoadedFunction:
    try:
        serializer = pickle.loads(definition.serializer_body)
    except BaseException as error:
        raise _unloadable("the serializer", error) from error
    deserialize, body = serializer.deserialize, bytes(definition.body)

    def load(_: object) -> Callable[..., Any]:
        return checked_callable(serializer, deserialize(body))

    function = load_named(definition.name) if not body else _load(definition, load)

    def load_call(call: Buffer) -> tuple[Sequence[Any], Mapping[str, Any]]:
        return read_parts(bytes(call), deserialize)

    return LoadedFunction(function, Encoding.PARTS, load_call, checked_serialize(serializer), classes)


def dump_value(value: Any) -> Payload:
    """Pickle a result: small tuples of plain values with pickle, everything else with cloudpickle and buffers."""
    if type(value) is tuple and len(value) <= _SMALL_TUPLE and all(type(item) in _PLAIN for item in value):
        return pickle.dumps(value, PROTOCOL)
    return pickles.dump(value)


def returned(value: Any, dump: Callable[[Any], Payload]) -> tuple[int, Payload]:
    """Status and payload of a task that has returned this value."""
    try:
        payload = dump(value)
    except BaseException as error:
        message = f"the task returned a {type(value).__qualname__}, which cannot be sent: {headline(error)}"
        fault = fault_in("the result", value, dump) if dump is dump_value else ""
        return failed(ResultNotSerializableError("; ".join(filter(None, (message, fault)))))
    return Status.VALUE, payload


def failed(error: ScalerError) -> tuple[int, bytes]:
    """Status and payload of a task that the engine could not run."""
    return Status.FAILED, describe(error)


def not_loaded(error: BaseException) -> tuple[int, bytes]:
    """Status and payload of a task whose call could not be loaded."""
    if isinstance(error, ObjectNotFoundError | StorageLostError | HandshakeRefusedError):
        return failed(error)
    return failed(_unloadable("the arguments", error))


def _raised(error: BaseException, encoding: int) -> tuple[int, bytes]:
    if not isinstance(error, Exception):
        return failed(TaskExitedError(f"the task ended with {headline(error)}"))
    _note_remedy(error)
    return raised(error, _remote_traceback(error), encoding)


def _note_remedy(error: Exception) -> None:
    """Say what to do about an array that cannot be written, or a missing module, if this is what the exception says."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        add_note(error, _missing(error.name))
    elif isinstance(error, ValueError | TypeError) and "read-only" in headline(error):
        add_note(error, _READ_ONLY)


def raised(error: Exception, text: str, encoding: int) -> tuple[int, bytes]:
    """Status and payload of a task that has raised an exception with this traceback."""
    if encoding == Encoding.JSON:
        kind, _, message = headline(error).partition(": ")
        written = {"error": kind, "message": message, "details": {"traceback": text}}
        return Status.RAISED, json.dumps(written).encode()
    try:
        return Status.RAISED, dump_exception(error, text)
    except BaseException as problem:
        message = f"the task raised {headline(error)}, which cannot be sent: {headline(problem)}"
        fault = fault_in("the exception", error, pickles.dump)
        message = "; ".join(filter(None, (message, fault)))
        return failed(TaskExceptionNotSerializableError(message, traceback=text))


def drop_frames_of(files: Container[str], error: BaseException) -> None:
    """Remove the leading frames of these files from the traceback of an exception."""
    origin = Origin.of(error)
    trace = origin.traceback
    while trace is not None and trace.tb_frame.f_code.co_filename in files:
        trace = trace.tb_next
    origin._replace(traceback=trace).give(error)


def _remote_traceback(error: Exception) -> str:
    """Format an exception as Python prints it, after removing the worker's own frames; a long text is cut."""
    drop_frames_of(_OUR_FILES, error)
    return bounded(formatted(error))
