"""The calls of a client: submitted one by one, as maps and as graphs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar, overload

from scaler_client.api.lazy_maps import LazyMaps, columns
from scaler_client.api.map_of_tuples import run_map
from scaler_client.api.optioned_calls import OptionedCalls
from scaler_client.api.submitter import CallSubmitter, progress_bar
from scaler_client.calls.object_reference import ObjectReference
from scaler_client.calls.task_options import NO_OPTIONS, TaskOptions
from scaler_client.futures.futures import ScalerFuture
from scaler_client.parameters import can_prefetch, flag, items, keywords
from scaler_protocol.ranges import shown

T = TypeVar("T")


class ClientCalls(LazyMaps):
    """The methods of a client that submit calls; `nested` is whether it is inside a task."""

    def __init__(self, calls: CallSubmitter, *, nested: bool) -> None:
        super().__init__(calls, NO_OPTIONS)
        self._is_nested = nested

    @overload
    def submit(self, fn: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, **kwargs: Any) -> ScalerFuture[T]: ...

    @overload
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> ScalerFuture[T]: ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ScalerFuture[Any]:
        """Submit one call; does not wait for it, only for room, see `block` of Client.

        Args:
            fn: any callable. If it returns a coroutine, the worker awaits it.
            args, kwargs: its arguments; futures and ObjectReferences are replaced by their values, at any depth.
                `profiling=True` is ignored, for older programs, unless the function takes it.

        Raises:
            TypeError: the function does not accept these arguments, or something cannot be serialized: then it may also
                be `pickle.PicklingError`, or what a `__reduce__` raises.
            SubmitLimitError: there is no room, and this is a client with `block=False`.
            ClientQuitError: the client is disconnected.

        >>> client.submit(max, [3, 1, 2], default=0).result()
        3
        """
        calls = self._calls
        callee = calls.find(fn)
        if kwargs and "profiling" in kwargs and callee.check.known and not callee.check.takes_profiling:
            del kwargs["profiling"]
        callee.check.check(*args, **kwargs)
        group = callee.group if not self._is_nested else None
        return calls.send(group or calls.group(callee), args, kwargs)

    def submit_verbose(
        self,
        fn: Callable[..., T],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        capabilities: Mapping[str, int] | None = None,
        *,
        reserialize: bool = False,
        priority: int = 0,
        retries: int = 0,
        task_timeout_seconds: float | None = None,
    ) -> ScalerFuture[T]:
        """Submit one call with options; does not wait for it.

        Args:
            fn: any callable.
            args, kwargs: its arguments, as a sequence and as a mapping.
            capabilities: what a worker must offer, by name; -1 for presence, otherwise a quantity.
            reserialize: serialize the function and large arguments again although they seem unchanged.
            priority: higher is more urgent.
            retries: how often to run a call again after an exception of its code.
            task_timeout_seconds: seconds from the start of a run; None for the default of the cluster.

        Raises:
            CapabilityError, ValueError, TypeError: an option is invalid, or the call, as in `submit`.
            SubmitLimitError, ClientQuitError: as in `submit`.

        >>> client.submit_verbose(round, (3.14159, 2), {}, retries=1, task_timeout_seconds=30).result()
        3.14
        """
        options = TaskOptions.of(capabilities, reserialize, priority, retries, task_timeout_seconds)
        return OptionedCalls(self._calls, options).submit(fn, *items("args", args), **keywords("kwargs", kwargs))

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        capabilities: Mapping[str, int] | None = None,
        reserialize: bool = False,
        priority: int = 0,
        retries: int = 0,
        task_timeout_seconds: float | None = None,
        speculate: bool = False,
        progress: bool = False,
        return_exceptions: bool = False,
    ) -> list[T]:
        """Wait for the results of the builtin `map(fn, *iterables)`, as a list in order.

        The first failure is raised, with a note of its item, and the remaining calls are cancelled. A single list or
        tuple of 1-tuples gives a FutureWarning, and is unpacked if the first call raises TypeError.

        Args:
            fn: a callable with as many parameters as there are iterables.
            iterables: the arguments; the shortest one ends the map.
            capabilities: what a worker must offer, by name; -1 for presence, otherwise a quantity.
            reserialize: serialize the function and large arguments again although they seem unchanged.
            priority: higher is more urgent.
            retries: how often to run a call again after an exception of its code.
            task_timeout_seconds: seconds from the start of a run; None for the default of the cluster.
            speculate: whether a call that takes far longer than the others is run a second time, on an idle worker of
                another host; the first outcome counts. For functions without side effects.
            progress: whether to show a progress bar on standard error; needs tqdm.
            return_exceptions: whether an exception takes the place of its result, and nothing is cancelled.

        Raises:
            CapabilityError, ValueError, TypeError: an option or a call is invalid.
            ImportError: `progress` without tqdm.
            SubmitLimitError, ClientQuitError: as in `submit`.

        >>> client.map(pow, [2, 3], [3, 2])
        [8, 9]
        """
        options = TaskOptions.of(capabilities, reserialize, priority, retries, task_timeout_seconds, speculate)
        progress, exceptions = flag("progress", progress), flag("return_exceptions", return_exceptions)
        rows_of_arguments = columns("map()", iterables)
        callee = self._calls.find(fn, options.reserialize)
        prefetchable = can_prefetch(iterables)
        run = partial(self._calls.run, callee, options=options, prefetchable=prefetchable, return_exceptions=exceptions)
        return run_map(run, partial(run, progress=progress), callee.check, iterables, rows_of_arguments)

    def starmap(
        self,
        fn: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        capabilities: Mapping[str, int] | None = None,
        reserialize: bool = False,
        *,
        priority: int = 0,
        retries: int = 0,
        task_timeout_seconds: float | None = None,
        speculate: bool = False,
        progress: bool = False,
        return_exceptions: bool = False,
    ) -> list[T]:
        """Wait for the results of `itertools.starmap(fn, iterable)`, as a list in order.

        The first failure is raised, with a note of its item, and the remaining calls are cancelled.

        Args:
            fn: any callable.
            iterable: the arguments of each call, as an iterable.
            capabilities: what a worker must offer, by name; -1 for presence, otherwise a quantity.
            reserialize: serialize the function and large arguments again although they seem unchanged.
            priority: higher is more urgent.
            retries: how often to run a call again after an exception of its code.
            task_timeout_seconds: seconds from the start of a run; None for the default of the cluster.
            speculate: whether a call that takes far longer than the others is run a second time, on an idle worker of
                another host; the first outcome counts. For functions without side effects.
            progress: whether to show a progress bar on standard error; needs tqdm.
            return_exceptions: whether an exception takes the place of its result, and nothing is cancelled.

        Raises:
            CapabilityError, ValueError, TypeError: an option or a call is invalid.
            ImportError: `progress` without tqdm.
            SubmitLimitError, ClientQuitError: as in `submit`.

        >>> client.starmap(pow, [(2, 3), (3, 2)])
        [8, 9]
        """
        options = TaskOptions.of(capabilities, reserialize, priority, retries, task_timeout_seconds, speculate)
        return OptionedCalls(self._calls, options).starmap(
            fn, iterable, progress=progress, return_exceptions=return_exceptions
        )

    def options(
        self,
        *,
        capabilities: Mapping[str, int] | None = None,
        reserialize: bool = False,
        priority: int = 0,
        retries: int = 0,
        timeout: float | None = None,
    ) -> OptionedCalls:
        """Calls with options: `submit`, `map`, `starmap`, `imap` and `imap_unordered` of what is returned have them.

        Args:
            capabilities: what a worker must offer, by name; -1 for presence, otherwise a quantity.
            reserialize: serialize the function and large arguments again although they seem unchanged.
            priority: higher is more urgent.
            retries: how often to run a call again after an exception of its code.
            timeout: seconds from the start of a run; None for the default of the cluster.

        Raises:
            CapabilityError, ValueError, TypeError: an option is invalid.

        >>> client.options(priority=5, retries=2, timeout=30).submit(pow, 2, 10).result()
        1024
        """
        options = TaskOptions.of(capabilities, reserialize, priority, retries, timeout, timeout_name="timeout")
        return OptionedCalls(self._calls, options)

    def get(
        self,
        graph: Mapping[Any, Any],
        keys: Iterable[Hashable],
        block: bool = True,
        capabilities: Mapping[str, int] | None = None,
        reserialize: bool = False,
        *,
        priority: int = 0,
        retries: int = 0,
        progress: bool = False,
    ) -> dict[Any, Any]:
        """Run what some nodes of a graph need; returns these nodes by key, in the order of `keys`.

        Args:
            graph: nodes by key. A node is a call, `(callable, argument, …)`, or data. An argument that equals a key is
                the value of that node.
            keys: the requested keys.
            block: whether to wait and return values; otherwise futures are returned.
            capabilities: what a worker must offer, by name; -1 for presence, otherwise a quantity.
            reserialize: serialize the function and large arguments again although they seem unchanged.
            priority: higher is more urgent.
            retries: how often to run a call again after an exception of its code.
            progress: whether to show a progress bar on standard error; needs tqdm and `block`.

        Raises:
            KeyError: a key is unknown or requested twice, or a string argument is no key.
            graphlib.CycleError: the needed nodes have a cycle.
            CapabilityError, ValueError, TypeError: an option or a call is invalid.
            ImportError: `progress` without tqdm.
            SubmitLimitError: the graph has more nodes than this client may have unfinished tasks; or as in `submit`.
            ClientQuitError: the client is disconnected.
            With `block` also the first exception of a requested node, with a note of the path to the node that failed;
            the remaining nodes are cancelled then.

        >>> client.get({"a": 2, "b": (pow, "a", 3), "c": (max, "a", "b")}, keys=["c"])
        {'c': 8}
        """
        options = TaskOptions.of(capabilities, reserialize, priority, retries, None)
        block, progress = flag("block", block), flag("progress", progress)
        if not isinstance(graph, Mapping):
            raise TypeError(f"graph is {shown(graph)}, not a mapping from keys to nodes")
        if progress and not block:
            raise ValueError("progress=True needs block=True: the bar is shown while get waits")
        self._calls.check()
        keys = keys if isinstance(keys, str | bytes) else list(items("keys", keys))
        submission = self._calls.graph(graph, keys, options, watched=progress)
        with progress_bar(submission.progress) if progress else nullcontext():
            submission.submit()
            return (submission.results if block else submission.all_futures)(_value, keys)


def _value(node: Any) -> Any:
    if isinstance(node, ScalerFuture):
        return node.result()
    return node.value() if isinstance(node, ObjectReference) else node
