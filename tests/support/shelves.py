"""An ObjectConnection whose server is a dict."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scaler_io.objects.operations import views_of
from scaler_io.objects.segments import Copying, copies
from scaler_protocol.buffers import Buffer
from scaler_protocol.errors import ObjectNotFoundError, ScalerError
from scaler_protocol.objects import Reference

Told = Callable[[ScalerError | None], None]


class Shelf:
    """Holds the objects of one session. Objects that are put without waiting arrive when the test calls `arrive`."""

    def __init__(self, session: int) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.deleted: list[bytes] = []
        self.read: list[bytes] = []
        self.opened = 0
        self.server = 1
        self.likely: list[list[bytes]] = []
        self.on_the_way: list[tuple[bytes, bytes, Told]] = []
        self._session = session

    def put(
        self, payload: bytes | Sequence[Buffer], *, session: int, name: bytes, copying: Copying | None = None
    ) -> Reference:
        assert session == self._session
        views = views_of(payload)
        self.objects[name] = content = b"".join(views if copying is None else copies(views, copying))
        return Reference(name, len(content))

    def put_soon(self, payload: bytes, *, session: int, name: bytes, done: Told) -> Reference:
        assert session == self._session
        self.on_the_way.append((name, payload, done))
        return Reference(name, len(payload))

    def arrive(self, error: ScalerError | None = None) -> None:
        """Store, or refuse, the oldest object that was put without waiting."""
        name, payload, done = self.on_the_way.pop(0)
        if error is None:
            self.objects[name] = payload
        done(error)

    def check_server(self, patience: float = 0.0) -> None: ...

    def get(self, reference: Reference, timeout: float = 0.0) -> bytes:
        self.read.append(reference.object)
        if reference.object not in self.objects:
            raise ObjectNotFoundError(f"there is no object {reference}")
        return self.objects[reference.object]

    def get_soon(self, following: Sequence[Reference]) -> None:
        self.likely.append([reference.object for reference in following])

    def delete(self, references: Sequence[Reference], *, session: int) -> None:
        assert session == self._session
        self.deleted += [reference.object for reference in references]
        for reference in references:
            self.objects.pop(reference.object, None)

    def open_soon(self) -> None:
        self.opened += 1

    def list(self) -> Sequence[bytes]:
        return [*self.objects]
