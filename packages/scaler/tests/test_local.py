"""The process of scheduler and agent of a local cluster; its users test the rest."""

from __future__ import annotations

from support.processes import run_code


def test_what_needs_openssl_has_it_later() -> None:
    code = """
    import sys
    from scaler_launch.local import _import_asyncio

    _import_asyncio()
    assert not {"ssl", "_ssl", "_hashlib"} & sys.modules.keys(), "asyncio goes without"
    import asyncio, ssl, urllib.request
    urllib.request.HTTPSHandler(context=ssl.create_default_context())
    asyncio.run(asyncio.sleep(0))
    """
    assert run_code(code) == ""
