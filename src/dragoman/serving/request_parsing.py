"""What a request says: its fields as JSON or as a form has them, checked, and whether its client still waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import BaseModel, ValidationError

from dragoman.serving.request_error import RequestError

Model = TypeVar("Model", bound=BaseModel)
Answer = TypeVar("Answer")
FORM, PARTS, JSON = "application/x-www-form-urlencoded", "multipart/form-data", "application/json"


async def parse_request(request: Request, model: type[Model]) -> Model:
    """The fields of a request, from the address or from the body, JSON or a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if not body and kind != JSON:
        fields, strict = dict(request.query_params), False
    elif kind in (FORM, PARTS):
        fields, strict = {**request.query_params, **_form(request.headers["content-type"], kind, body)}, False
    elif kind in (JSON, "") or kind.endswith("+json"):
        fields, strict = _json(body), True
    else:
        raise RequestError(415, f"a body of {kind} cannot be read: send {JSON} or {FORM}")
    _check_characters(fields)
    try:
        return model.model_validate(fields, strict=strict)
    except ValidationError as error:
        _refuse(error)


def _json(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise RequestError(400, "the body must be a JSON object with names and values")
    return fields


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that JSON knows")


def _form(header: str, kind: str, body: bytes) -> dict[str, Any]:
    try:
        if kind == FORM:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=1000)
        else:
            parser = BytesParser(policy=HTTP)
            message = parser.parsebytes(b"Content-Type: " + header.encode("latin-1") + b"\r\n\r\n" + body)
            pairs = [
                (
                    str(part.get_param("name", header="content-disposition")),
                    bytes(part.get_payload(decode=True)).decode(),
                )
                for part in message.iter_parts()
            ]
    except (ValueError, TypeError, AttributeError, KeyError, LookupError):
        raise RequestError(400, "the form in the body cannot be read: send names and values in UTF-8") from None
    texts = [value for name, value in pairs if name == "q"]
    return dict(pairs) | ({"q": texts} if len(texts) > 1 else {})


def _check_characters(fields: Any) -> None:
    """A half of a surrogate pair can be written in JSON, but is no character."""
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestError(400, "the text holds half a surrogate pair, which is no character") from None
    except RecursionError:
        raise RequestError(400, "the body is nested too deeply") from None


def _refuse(error: ValidationError) -> NoReturn:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"] if not str(part).endswith("]")) or "the body"
    if first["type"] == "missing":
        raise RequestError(400, f"the field {name!r} is missing")
    if first["type"] == "extra_forbidden":
        raise RequestError(400, f"there is no field {name!r} here")
    raise RequestError(400, f"the field {name!r} is wrong: {first['msg'][:1].lower()}{first['msg'][1:]}")


def request_api_key(request: Request, key: str | None) -> str | None:
    """The key in the fields, or in the header Authorization: Bearer …"""
    scheme, _, told = request.headers.get("authorization", "").partition(" ")
    return key or (told.strip() if scheme.lower() == "bearer" and told.strip() else None)


def client_address(request: Request) -> str:
    return request.client.host if request.client else ""


async def cancel_on_disconnect(request: Request, work: Awaitable[Answer], timeout: float) -> Answer:
    """The answer, unless the client has left or it takes too long: then the work is cancelled."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            return tasks[0].result()
        if tasks[1].done():
            raise RequestError(499, "the client has left")
        raise RequestError(503, f"the translation took longer than {timeout:g} seconds", retry_after=10)
    finally:
        for task in tasks:
            task.cancel()
