"""CallCodec: from an encoded call to the input of a Symphony task, and from its output to an outcome.

Function and arguments are loaded as in a worker, with all that the call refers to (results of other tasks, sent
objects), and pickled again. All methods are called in one thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn

import cloudpickle

from scaler_client.payloads.classes import begin
from scaler_client.payloads.user_exceptions import headline
from scaler_client.task_context import CurrentTask
from scaler_protocol.buffers import Payload
from scaler_protocol.errors import (
    DeserializeError,
    ResultNotSerializableError,
    ScalerError,
    TaskExceptionNotSerializableError,
    TaskExitedError,
    of_run,
)
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.messages import Encoding, Status
from scaler_protocol.profiles import NO_PROFILE, Profile
from scaler_worker.agent.core.records import ATTEMPT, RUN, TASK, Entry
from scaler_worker.ipc.frames import STORED, WITH_INPUTS, Definition
from scaler_worker.ipc.inputs import split_inputs
from scaler_worker.symphony import host_call
from scaler_worker.symphony.events import CallEnded
from scaler_worker.symphony.host_call import Answer
from scaler_worker.symphony.remote_call import read_answer, task_input
from scaler_worker.worker.coroutines import run_coroutine
from scaler_worker.worker.invoke import (
    LoadedFunction,
    check_definition,
    failed,
    load_function,
    not_loaded,
    raised,
    returned,
)
from scaler_worker.worker.object_store import ObjectRuntime, WorkerObjectStore

FUNCTIONS_LIMIT: Final = 256
"""Loaded functions that are kept, in LRU order."""


class ProxyRuntime(ObjectRuntime):
    """The runtime of `scaler_client.task_context` while a call is decoded here. The call runs on another host."""

    def __init__(self, storage: WorkerObjectStore, scheduler: Callable[[], int]) -> None:
        super().__init__(storage)
        self.inputs: Mapping[int, tuple[bool, bytes]] = {}
        self.task: CurrentTask | None = None
        self._scheduler = scheduler

    @property
    def scheduler(self) -> int:
        """The incarnation of the scheduler; 0 before the first connection."""
        return self._scheduler()

    def current(self) -> CurrentTask | None:
        """The task whose call is decoded."""
        return self.task

    def retire(self, why: str) -> None:
        """Do nothing: no task runs here."""

    def connect(self) -> NoReturn:
        """Refuse: no task runs here."""
        raise ScalerError("a client cannot be used where calls for Symphony are decoded")


class CallCodec:
    """Encodes calls and decodes answers, for one proxy agent with this name."""

    def __init__(self, runtime: ProxyRuntime, store: WorkerObjectStore, allow_functions: Sequence[str] = ()) -> None:
        self._runtime, self._store, self._allow_functions = runtime, store, allow_functions
        self._functions: OrderedDict[int, LoadedFunction] = OrderedDict()

    def encode(self, entry: Entry, definition: Definition) -> bytes | CallEnded:
        """The input of the Symphony task for a run, or its outcome if there can be none."""
        run, task, _, call, attempt, flag = entry
        runtime = self._runtime
        runtime.task = CurrentTask(task, attempt, "", run)
        try:
            loaded = self._load(definition)
            if flag & WITH_INPUTS:
                call, inputs = split_inputs(bytes(call))
                runtime.inputs = {need: (kind == STORED, result) for need, kind, result in inputs}
            begin(loaded.classes)
            args, kwargs = loaded.load_call(self._store.get(bytes(call)) if flag & STORED else call)
            return self._task_input(loaded, args, kwargs)
        except DeserializeError as error:
            return _ended(entry, *failed(error))
        except BaseException as error:
            return _ended(entry, *not_loaded(error))
        finally:
            runtime.inputs, runtime.task = {}, None

    def decode(self, entry: Entry, definition: Definition, output: bytes, slot: int) -> CallEnded:
        """The outcome of a run whose Symphony task has this output; a big result is stored."""
        try:
            answer = read_answer(output)
            status, payload = self._outcome(answer, definition)
        except BaseException as error:
            return _ended(entry, *failed(ScalerError(f"the output of Symphony cannot be used: {headline(error)}")))
        profile = Profile(
            answer.duration_us, answer.cpu_us, answer.peak_memory, answer.pid & 0xFFFFFFFF, slot, entry[ATTEMPT]
        ).packed()
        if len(payload) <= INLINE_LIMIT or not self._store.named:
            return CallEnded(entry, status, bytes(payload), profile)
        try:
            return CallEnded(entry, status, self._store.put(payload, entry[TASK], entry[RUN]), profile, stored=True)
        except ScalerError as error:
            return _ended(entry, *failed(error))

    def forget_unused(self) -> None:
        """Evict objects that were not used since the last call."""
        self._store.forget_unused()

    def _load(self, definition: Definition) -> LoadedFunction:
        loaded = self._functions.pop(definition.handle, None)
        if loaded is None:
            check_definition(definition, self._allow_functions)
            if definition.body_stored:
                definition = replace(definition, body=self._store.get(bytes(definition.body)))
            if definition.serializer_stored:
                serializer = self._store.get(bytes(definition.serializer_body))
                definition = replace(definition, serializer_body=serializer)
            loaded = load_function(definition, run_coroutine)
            if loaded.environment is not None:
                raise DeserializeError("tasks of Symphony have no initializer, and find no uploaded modules")
        self._functions[definition.handle] = loaded
        if len(self._functions) > FUNCTIONS_LIMIT:
            self._functions.popitem(last=False)
        return loaded

    @staticmethod
    def _task_input(loaded: LoadedFunction, args: Any, kwargs: Any) -> bytes:
        try:
            return task_input(loaded.function, args, kwargs)
        except Exception as error:
            raise DeserializeError(f"the call cannot be pickled for Symphony: {headline(error)}") from error

    def _outcome(self, answer: Answer, definition: Definition) -> tuple[int, Payload]:
        """Status and payload in the encoding of the call; raises what loading the answer raises."""
        if answer.ending == host_call.RETURNED:
            if definition.encoding == Encoding.PICKLE:
                return Status.VALUE, answer.body
            loaded = self._load(definition)
            begin(loaded.classes)
            return returned(cloudpickle.loads(answer.body), loaded.dump)
        if answer.ending == host_call.RAISED:
            return raised(cloudpickle.loads(answer.body), answer.text, definition.encoding)
        if answer.ending == host_call.ERROR_NOT_SENT:
            message = answer.body.decode("utf-8", "replace")
            return failed(TaskExceptionNotSerializableError(message, traceback=answer.text))
        return failed(_engine_error(answer))


def _engine_error(answer: Answer) -> ScalerError:
    if answer.ending == host_call.EXITED:
        return TaskExitedError(f"the task ended with {answer.text}")
    if answer.ending == host_call.RESULT_NOT_SENT:
        return ResultNotSerializableError(f"the task returned a {answer.text}")
    if answer.ending == host_call.NOT_LOADED:
        return DeserializeError(f"the call could not be loaded on a host of Symphony: {answer.text}")
    raise ValueError(f"unknown ending {answer.ending!r}")


def _ended(entry: Entry, status: int, payload: bytes) -> CallEnded:
    return CallEnded(entry, status, of_run(payload, entry[RUN]), NO_PROFILE)
