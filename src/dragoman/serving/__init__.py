"""Serving: translation runs over HTTP, with LibreTranslate's API and our own."""

from __future__ import annotations

from dragoman.errors import UserError

try:
    import fastapi  # noqa: F401
    import prometheus_client  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise UserError(
        f"the HTTP service ('dragoman serve') needs the package {error.name}: install it with pip install "
        "'dragoman[serve]'"
    ) from None

from dragoman.run.language_pair import LanguagePair, infer_language_pair, parse_run_argument
from dragoman.serving.analysis_settings import AnalysisSettings, NamedTestSet
from dragoman.serving.api_keys import ApiKeys
from dragoman.serving.app import create_app
from dragoman.serving.quotas import Quotas
from dragoman.serving.run_reloading import RunSource
from dragoman.serving.server import BLOCKED_PORTS, ServerOptions, bind_socket, is_loopback, serve
from dragoman.serving.service import Service
from dragoman.serving.service_log import LogFormat, LogSettings, logger
from dragoman.serving.service_settings import BatchingSettings, ServiceLimits
from dragoman.serving.tls import TlsFiles
from dragoman.serving.web_access import WebAccess, reachable_urls
from dragoman.serving.weighted_routes import parse_route

__all__ = ["ApiKeys", "BatchingSettings", "Service", "ServiceLimits", "bind_socket", "create_app", "serve"]
__all__ += ["BLOCKED_PORTS", "AnalysisSettings", "NamedTestSet", "RunSource", "TlsFiles", "parse_route"]
__all__ += ["LogFormat", "LogSettings", "Quotas", "ServerOptions", "logger"]
__all__ += ["LanguagePair", "WebAccess", "infer_language_pair", "is_loopback", "parse_run_argument", "reachable_urls"]
