"""The preload that a worker calls before its first task: `module:function` or `module:function(literal, …)`."""

from __future__ import annotations

import ast
import importlib
import operator
import re
from collections.abc import Callable
from typing import Any, Final

from scaler_protocol.errors import ScalerError
from scaler_protocol.lazy_dataclass import dataclass

_SPEC: Final = re.compile(r"(?P<module>[\w.]+):(?P<path>[\w.]+)(?P<call>\(.*\))?", re.DOTALL)


class PreloadError(ScalerError, ValueError):
    """preload must be in 'module.sub:func(...)' format"""


@dataclass(frozen=True, slots=True)
class Preload:
    """A function's name and its literal arguments."""

    module: str
    path: str
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def parse(cls, spec: str) -> Preload:
        """Parse a specification; raises PreloadError."""
        match = _SPEC.fullmatch(spec.strip())
        if match is None:
            raise PreloadError(f"{PreloadError.__doc__}, not {spec!r}")
        try:
            call = ast.parse(f"f{match['call'] or '()'}", mode="eval").body
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                raise ValueError
            args = tuple(ast.literal_eval(arg) for arg in call.args)
            kwargs = tuple((str(keyword.arg), ast.literal_eval(keyword.value)) for keyword in call.keywords)
        except (ValueError, SyntaxError):
            raise PreloadError(f"{PreloadError.__doc__} with literals as arguments, not {spec!r}") from None
        return cls(match["module"], match["path"], args, kwargs)

    def load(self) -> Callable[..., Any]:
        """Import the function; raises what the import raises, or PreloadError if it is not callable."""
        found = operator.attrgetter(self.path)(importlib.import_module(self.module))
        if not callable(found):
            name, kind = f"{self.module}:{self.path}", type(found).__name__
            raise PreloadError(f"Preload target must be callable: {name} is a {kind}")
        function: Callable[..., Any] = found
        return function

    def run(self) -> None:
        """Import and call the function; raises what either raises."""
        self.load()(*self.args, **dict(self.kwargs))
