"""Forms that come to no end, or are none: everybody may post one to the page of the login."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request

from oncelog import limits
from oncelog.console import forms
from oncelog.errors import InvalidArgument


def _form(receive: Callable[[], Any]) -> forms.Form:
    return asyncio.run(forms.form_of(Request({"type": "http", "method": "POST", "headers": []}, receive)))


def test_a_form_that_does_not_come_to_its_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection was held for ever; one that was cut wrote a traceback to the log of the server."""
    monkeypatch.setattr(limits, "HTTP_BODY_S_MAX", 0.01)
    part = {"type": "http.request", "body": b"token=a", "more_body": True}
    for left in (True, False):
        parts = [part]

        async def receive(parts: list[Any] = parts, left: bool = left) -> Any:  # noqa: FBT001
            if parts:
                return parts.pop()
            if left:
                return {"type": "http.disconnect"}
            return await asyncio.Event().wait()

        with pytest.raises(InvalidArgument, match="to its end"):
            _form(receive)
