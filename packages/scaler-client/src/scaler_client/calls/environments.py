"""Environments: what the functions of a client find in every worker: uploaded modules, and what its initializer did.

A client with an environment wraps the pickles of its functions: with the id of the environment, and its content or the
reference of that. So a function with another environment is another function, and calls that were submitted before an
upload keep what they had. A worker enters the environment before it loads such a function or runs a call, and leaves
it after that: `sys.modules` has the modules of that version meanwhile. They stay loaded, with their state, so that
functions and modules of several versions live in one process.
"""

from __future__ import annotations

import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import CoroutineType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scaler_client.objects.handles import Store, StoredPayload
from scaler_client.payloads import pickles
from scaler_client.payloads.user_exceptions import add_note, headline
from scaler_client.task_context import object_payload
from scaler_protocol.errors import InitializerError
from scaler_protocol.light_crypto import blake2b

if TYPE_CHECKING:
    from scaler_client.calls.bundles import Bundle

KEPT: Final = 64
"""Environments that a worker keeps; one that was used before is made again, and its initializer runs again."""


class EnvironmentKey(NamedTuple):
    """An environment as it travels with each function: its content, or the reference of that in object storage."""

    id: bytes
    content: bytes
    is_stored: bool
    initializes: bool = True
    """Whether its initializer runs first: not for calls that the initializer itself submits."""

    def wrap(self, function: bytes) -> bytes:
        """The pickle of a function in this environment."""
        return pickle.dumps(WrappedFunction(self, function), 5)


class WrappedFunction(NamedTuple):
    """The pickle of a function, and its environment."""

    environment: EnvironmentKey
    function: bytes


class ClientEnvironment:
    """The environment of a client from now on; each upload makes another one."""

    def __init__(self, bundles: Mapping[str, Bundle], initializer: Callable[[], object] | None, owner: bytes) -> None:
        """`owner` identifies the client, for which the initializer runs."""
        self._bundles, self._initializer, self._owner = bundles, initializer, owner
        modules = tuple(bundles[name] for name in sorted(bundles))
        self._content = pickle.dumps((modules, _dumped(initializer) if initializer is not None else b""), 5)
        self._id = blake2b(self._content + (owner if initializer else b""), digest_size=16).digest()
        self._handle: bytes | None = None

    def with_bundle(self, bundle: Bundle) -> ClientEnvironment:
        """The environment after an upload."""
        return ClientEnvironment({**self._bundles, bundle.name: bundle}, self._initializer, self._owner)

    def key(self, store: Store) -> EnvironmentKey:
        """What travels with its functions; its content is stored with the first of them."""
        if self._handle is None:
            self._handle = store(self._content)
            if type(self._handle) is StoredPayload:
                from scaler_client.objects.rebuild import checksum, strong_source  # workers need no hashes for this

                self._handle.object.set_source(strong_source(self._content, bytes, checksum(self._content)))
        if type(self._handle) is StoredPayload:
            return EnvironmentKey(self._id, self._handle.object.reference, is_stored=True)
        return EnvironmentKey(self._id, self._handle, is_stored=False)


def _dumped(initializer: Callable[[], object]) -> bytes:
    """Its pickle; the error of one that has none names the part at fault."""
    try:
        return bytes(pickles.dump(initializer))
    except Exception as error:
        from scaler_client.payloads.unpicklable import fault_in  # workers do not need it

        add_note(error, fault_in("the initializer", initializer, pickles.dump))
        raise


# --- in workers -----------------------------------------------------------------------------------------------------


class Environment:
    """An environment in a worker: a context in which its modules are those that are imported. Not reentrant."""

    def __init__(self, key: EnvironmentKey) -> None:
        """Raises ScalerError if the content cannot be fetched."""
        from scaler_client.calls.bundles import BundleFinder  # as late as possible: it imports much of importlib

        content = bytes(object_payload(key.content)) if key.is_stored else key.content
        bundles, self._initializer = pickle.loads(content)
        self.key = key
        self._finder = BundleFinder(bundles, key.id.hex()[:8])
        self._own: dict[str, ModuleType] = {}
        self._others: dict[str, ModuleType] = {}
        self._last = ""
        """The module that was imported last when it was entered."""
        self._is_initialized = not (self._initializer and key.initializes)
        self.key_of_calls = key
        """What the calls that are submitted inside of it have."""

    def __enter__(self) -> Environment:
        global _entered
        _entered = self
        names = self._finder.names
        if names:
            self._others = _take_modules(names) if any(name in sys.modules for name in names) else {}
            sys.modules.update(self._own)
            sys.meta_path.insert(0, self._finder)
            self._last = next(reversed(sys.modules))
        return self

    def __exit__(self, *error: object) -> None:
        global _entered
        _entered = None
        if names := self._finder.names:
            if self._finder in sys.meta_path:
                sys.meta_path.remove(self._finder)
            if next(reversed(sys.modules)) == self._last:
                self._own = {name: sys.modules.pop(name) for name in self._own if name in sys.modules}
            else:  # modules were imported
                self._own = _take_modules(names)
            sys.modules.update(self._others)

    def initialize(self, finish: Callable[[Any], object]) -> None:
        """Run the initializer if it has not run in this process; raises InitializerError, with its cause.

        If it returns a coroutine, as tasks may, `finish` runs that.
        """
        if self._is_initialized:
            return
        self.key_of_calls = self.key._replace(initializes=False)
        try:
            prepared = pickles.load(self._initializer)()
            if type(prepared) is CoroutineType:
                finish(prepared)
        except BaseException as error:  # sys.exit() does not end the worker
            raise InitializerError(f"the initializer of the client failed: {headline(error)}") from error
        finally:
            self.key_of_calls = self.key
        self._is_initialized = True


_entered: Environment | None = None
_kept: OrderedDict[tuple[bytes, bool], Environment] = OrderedDict()


def environment(key: EnvironmentKey) -> Environment:
    """The environment with this key in this process; raises ScalerError if its content cannot be fetched."""
    name = (key.id, key.initializes)
    found = _kept.pop(name, None) or Environment(key)
    _kept[name] = found
    if len(_kept) > KEPT:
        _kept.popitem(last=False)
    return found


def entered_key() -> EnvironmentKey | None:
    """The environment of the task that this process runs, which clients inside of it have, too."""
    return _entered.key_of_calls if _entered is not None else None


def _take_modules(names: frozenset[str]) -> dict[str, Any]:
    """Remove and return the imported modules of these names, and their parts."""
    found = [name for name in sys.modules if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in found}
