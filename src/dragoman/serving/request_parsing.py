"""Parsing of requests: fields from JSON, forms or the query string, API keys, and detection of disconnects."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

from dragoman.serving.request_record import request_record

Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")
FORM, MULTIPART, JSON = "application/x-www-form-urlencoded", "multipart/form-data", "application/json"
MAX_FORM_FIELDS = 1000


class RequestError(Exception):
    """A rejected request: its HTTP status, a message, and the seconds after which to retry."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        """Reject a request with an HTTP status; `retry_after` is the number of seconds after which to try again."""
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after

    def response(self) -> JSONResponse:
        """Return the HTTP response: the message as JSON, and the seconds after which to retry as a header.

        The message is also recorded for the log of requests.
        """
        request_record().error = self.message
        headers = {} if self.retry_after is None else {"retry-after": str(max(1, math.ceil(self.retry_after)))}
        return JSONResponse({"error": self.message}, self.status, headers)


class UploadedFile(NamedTuple):
    """A file in a multipart body."""

    name: str
    content: bytes


@dataclass(frozen=True)
class RequestFields:
    """The fields of a request as they were sent, not yet validated.

    `strict`: values must have the types of the model, as in JSON; otherwise they are converted from text.
    """

    values: dict[str, Any]
    strict: bool
    file: UploadedFile | None = None

    @property
    def api_key(self) -> str | None:
        """The field api_key, if it is a text."""
        key = self.values.get("api_key")
        return key if isinstance(key, str) else None

    def validate(self, model: type[Model]) -> Model:
        """Return the fields as an instance of `model`; a RequestError (400) says what is wrong with them."""
        _check_characters(self.values)
        try:
            return model.model_validate(self.values, strict=self.strict)
        except ValidationError as error:
            raise _invalid_field(error, model, self.values) from None


async def read_fields(request: Request) -> RequestFields:
    """Read the fields of a request from its body (JSON or a form), or from its query string if it has no body.

    A form may have further fields in the query string. Values in JSON must have the types of the model (`strict`);
    those of forms and query strings are text, which is converted.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if not body and content_type != JSON:
        return RequestFields(dict(request.query_params), strict=False)
    if content_type in (FORM, MULTIPART):
        form = _parse_form(request.headers["content-type"], content_type, body)
        return RequestFields({**request.query_params, **form}, strict=False)
    if content_type in (JSON, "") or content_type.endswith("+json"):
        return RequestFields(_parse_json(body), strict=True)
    raise RequestError(415, f"unsupported content type {content_type}: send {JSON} or {FORM}")


async def read_upload(request: Request, field: str = "file") -> RequestFields:
    """Read a multipart body: its fields, and the file in the part named `field` (None if there is none).

    Fields of the query string are added. Another content type is a RequestError (415).
    """
    header = request.headers.get("content-type", "")
    if header.partition(";")[0].strip().lower() != MULTIPART:
        raise RequestError(415, f"a file is expected: send {MULTIPART}")
    values: dict[str, Any] = {**request.query_params}
    file = None
    for name, file_name, content in _multipart(header, await request.body()):
        if name == field and file_name is not None:
            file = UploadedFile(file_name, content)
        else:
            values[name] = content.decode(errors="replace")
    return RequestFields(values, strict=False, file=file)


def _multipart(header: str, body: bytes) -> Iterator[tuple[str, str | None, bytes]]:
    """Yield name, file name (None: not a file) and content of each part of a multipart body.

    `header` is the content type of the request, which has the boundary between parts.
    """
    message = Message()
    message["content-type"] = header
    boundary = message.get_boundary()
    if not boundary:
        raise RequestError(400, "the form in the body cannot be parsed: its content type has no boundary")
    *parts, end = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1", errors="replace"))
    if not end.startswith(b"--"):  # the last boundary is --BOUNDARY--
        raise RequestError(400, "the form in the body cannot be parsed: it is not complete")
    _check_field_count(len(parts) - 1)
    for part in parts[1:]:  # without what is before the first boundary
        head, separator, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        headers = BytesParser(policy=HTTP).parsebytes(head + b"\r\n\r\n", headersonly=True)
        name = headers.get_param("name", header="content-disposition")
        if not separator or not isinstance(name, str):
            raise RequestError(400, "the form in the body cannot be parsed: a part has no name")
        file_name = headers.get_filename()
        yield name, file_name, content


def _check_field_count(count: int) -> None:
    """Raise a RequestError if a form has too many fields."""
    if count > MAX_FORM_FIELDS:
        raise RequestError(400, f"the form has {count:,} fields, but may have {MAX_FORM_FIELDS:,}: send fewer")


def _parse_json(body: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object; NaN and infinities, which JSON does not have, are rejected."""

    def reject_constant(name: str) -> NoReturn:
        """Raise an error for NaN, Infinity or -Infinity."""
        raise ValueError(f"{name} is not a JSON number")

    try:
        fields = json.loads(body, parse_constant=reject_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise RequestError(400, "the body must be a JSON object")
    return fields


def _parse_form(header: str, content_type: str, body: bytes) -> dict[str, Any]:
    """Return the fields of a form, URL-encoded or multipart; several fields `q` (texts) become a list.

    `header` is the whole content type of the request, with the boundary of a multipart body; `content_type` only FORM
    or MULTIPART.
    """
    try:
        if content_type == FORM:
            _check_field_count(body.count(b"&") + 1)
            pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict")
        else:
            parser = BytesParser(policy=HTTP)
            # a multipart body has the format of an e-mail
            message = parser.parsebytes(b"Content-Type: " + header.encode("latin-1") + b"\r\n\r\n" + body)
            pairs = []
            for part in message.iter_parts():
                name = str(part.get_param("name", header="content-disposition"))
                pairs.append((name, bytes(part.get_payload(decode=True)).decode()))
    except (ValueError, TypeError, AttributeError, KeyError, LookupError):
        raise RequestError(400, "the form in the body cannot be parsed: send names and values in UTF-8") from None
    texts = [value for name, value in pairs if name == "q"]
    return dict(pairs) | ({"q": texts} if len(texts) > 1 else {})


def _check_characters(fields: Any) -> None:
    """Raise a RequestError if a field has a lone surrogate, which JSON can express but UTF-8 cannot, or is too deep."""
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestError(400, "the text contains half a surrogate pair, which is not a character") from None
    except RecursionError:
        raise RequestError(400, "the body is nested too deeply") from None


def _invalid_field(error: ValidationError, model: type[BaseModel], fields: dict[str, Any]) -> RequestError:
    """Return the error (400) that describes the first invalid field of a request.

    `model` is the expected type, which may have its own message for a missing field; `fields` are the values sent.
    """
    first_field = error.errors()[0]["loc"][:1]  # its name, the first part of the location
    errors = [details for details in error.errors() if details["loc"][:1] == first_field]
    # a field of several types has an error for each; those deepest in the value belong to the type that nearly fits
    paths = [_field_path(details["loc"], fields) for details in errors]
    first, name = errors[0], max(paths, key=lambda path: path.count("[") + path.count(".")) or "the body"
    if first["type"] == "missing":
        message: str = getattr(model, "missing_message", "the field '{}' is missing")
        return RequestError(400, message.format(name))
    if first["type"] == "extra_forbidden":
        return RequestError(400, f"there is no field {name!r}: see /openapi.json")
    expected = [details["msg"].removeprefix("Input should be ") for details, path in zip(errors, paths) if path == name]
    if first["msg"].startswith("Input should be "):
        return RequestError(400, f"the field {name!r} must be {' or '.join(dict.fromkeys(expected))}")
    return RequestError(400, f"the field {name!r} is invalid: {expected[0][:1].lower()}{expected[0][1:]}")


def _field_path(location: Sequence[int | str], fields: Any) -> str:
    """Return pydantic's `location` of an error in `fields` as the client writes it, such as q[0].

    Pydantic adds the name of a type to the location if a field may have several types; it is left out.
    """
    path, value = "", fields  # the value at this path
    for number, key in enumerate(location):
        is_last = number == len(location) - 1  # it may be missing in the value
        if isinstance(value, list) and isinstance(key, int):
            path += f"[{key}]"
        elif number == 0 or (isinstance(value, dict) and (key in value or is_last)):
            path += f".{key}" if path else str(key)
        else:
            continue  # the name of a type
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            value = None
    return path


def request_api_key(request: Request, field: str | None) -> str | None:
    """Return the API key of a request: `field` (its field api_key), or else that of `Authorization: Bearer …`.

    None: the request has no key.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if field:
        return field
    return token.strip() or None if scheme.lower() == "bearer" else None


async def cancel_on_disconnect(request: Request, work: Awaitable[Result], timeout: float) -> Result:
    """Await `work`, the computation of a response; cancel it if the client disconnects or after `timeout` seconds.

    A RequestError then has status 499 (client closed request) or 503.
    """

    async def wait_for_disconnect() -> None:
        """Return when the client disconnects."""
        while (await request.receive())["type"] != "http.disconnect":
            pass

    result, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait((result, disconnect), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return result.result()
        if disconnect.done():
            raise RequestError(499, "the client has disconnected")
        raise RequestError(503, f"the translation took longer than {timeout:g} seconds", retry_after=10)
    finally:
        result.cancel()
        disconnect.cancel()
