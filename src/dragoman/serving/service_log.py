"""The log of the service on standard error: lines of text or JSON, one for each request."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from dragoman.serving.request_record import RequestRecord

LogFormat = Literal["text", "json"]
logger = logging.getLogger("dragoman.serving")
#: routes that are asked often, and files of the page: only their failures are logged
UNLOGGED_ROUTES = ("/livez", "/readyz", "/health", "/metrics", "/", "/page/{name}")
#: statuses below 500 whose messages do not quote the request; messages of others may contain its text
LOGGED_ERROR_STATUSES = (403, 429)
HIDDEN_TEXT = "[text]"
MIN_HIDDEN_CHARACTERS = 4  # shorter parts of a text say nothing, but occur in messages of their own accord


@dataclass(frozen=True)
class LogSettings:
    """What is logged, and how.

    Attributes:
        format: lines of `text`, or of one JSON object each (`json`)
        texts: whether the texts of requests are logged, which are private data of the users
        addresses: whether IP addresses of clients are logged
        quiet: whether only warnings and errors are logged
    """

    format: LogFormat = "text"
    texts: bool = False
    addresses: bool = True
    quiet: bool = False


def configure_logging(settings: LogSettings) -> None:
    """Send the messages of the service, of uvicorn and of Python's warnings to standard error in the chosen format.

    Messages of level INFO are shown for the service only, and not if it is `quiet`.
    """
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.captureWarnings(True)
    for name in (logger.name, "uvicorn.error", "py.warnings"):
        source = logging.getLogger(name)
        source.handlers, source.propagate = [handler], False
        source.setLevel(logging.WARNING if settings.quiet or source is not logger else logging.INFO)


class StderrHandler(logging.Handler):
    """Writes lines to the present standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message in one piece; nothing happens if the terminal or pipe was closed."""
        with suppress(OSError, ValueError):
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


class TextFormatter(logging.Formatter):
    """Time, level of warnings and errors, message, and the fields of a request as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a message with the fields of its request, and the lines of its traceback if it has one."""
        level = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        fields = {name: value for name, value in _fields(record).items() if value not in (None, "", [])}
        parts = [f"{level}{record.getMessage()}"]
        parts += [f"{name}={_text_value(value)}" for name, value in fields.items() if name != "traceback"]
        line = f"{_timestamp(record.created)} {' '.join(parts)}".rstrip()
        return "\n".join(filter(None, (line, _traceback(self, record))))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, message, and the fields of a request."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a message as one line of JSON."""
        line = {"time": _timestamp(record.created), "level": record.levelname.lower(), "message": record.getMessage()}
        traceback = {"traceback": text} if (text := _traceback(self, record)) else {}
        return json.dumps(line | _fields(record) | traceback, ensure_ascii=False, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that were logged with a message as `extra={"fields": …}`."""
    return getattr(record, "fields", {})


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the traceback of a log record; "" if it has none.

    Texts of the request that are private (`hidden_texts` of the record, see `log_failure`) are replaced by [text].
    """
    text = formatter.formatException(record.exc_info) if record.exc_info else ""
    return hide_texts(text, getattr(record, "hidden_texts", ()))


def _timestamp(seconds: float) -> str:
    """Format a time, given in seconds since 1970, as in 2026-01-31T23:59:59.999Z."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{int(seconds % 1 * 1000):03d}Z"


def _text_value(value: Any) -> str:
    """Format the value of a field for a line of text; lists, and texts with spaces, quotation marks or =, as JSON."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    is_plain = isinstance(value, str | int | float) and re.fullmatch(r'[^\s"=]+', text)
    return text if is_plain else json.dumps(value)


def hide_texts(message: str, texts: Any) -> str:
    """Replace private texts (those of a request, their lines and their sentences) in a message by [text]."""
    parts = {part.strip() for text in texts for part in (text, *re.split(r"(?<=[.!?])\s+|\n", text))}
    for part in sorted(parts, key=len, reverse=True):  # longest first: a sentence may contain another one
        if len(part) >= MIN_HIDDEN_CHARACTERS:  # as it is, and as repr() quotes it in a traceback
            message = message.replace(part, HIDDEN_TEXT).replace(repr(part)[1:-1], HIDDEN_TEXT)
    return message


def log_request(record: RequestRecord, settings: LogSettings) -> None:
    """Log a request that was answered; of routes such as /livez, which are asked often, only errors.

    Texts of the request, and messages that may quote them, are logged only if the `settings` say so. Nothing is logged
    if the service is quiet.
    """
    if not logger.isEnabledFor(logging.INFO) or (record.route in UNLOGGED_ROUTES and record.status < 400):
        return
    fields: dict[str, Any] = {
        "request_id": record.id,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "seconds": round(time.monotonic() - record.start, 6),
        "queue_seconds": None if record.queue_seconds is None else round(record.queue_seconds, 6),
        "run": record.run or None,
        "version": record.version or None,
        "characters": record.characters,
        "client": record.client or (record.address if settings.addresses else "") or None,
    }
    # messages of other statuses may quote the texts of the request
    if record.error and (settings.texts or record.status >= 500 or record.status in LOGGED_ERROR_STATUSES):
        fields["error"] = record.error
    if settings.texts and record.texts:
        fields["texts"] = [*record.texts]
    logger.info("request", extra={"fields": fields})


def log_failure(record: RequestRecord) -> None:
    """Log the exception that is being handled, with the id, route and run of its request.

    If texts of requests are not logged (`hides_texts`), the formatter of the log replaces them in the traceback by
    [text].
    """
    fields = {"request_id": record.id, "route": record.route, "run": record.run or None}
    hidden = record.texts if record.hides_texts else ()
    logger.exception("the service failed", extra={"fields": fields, "hidden_texts": hidden})
