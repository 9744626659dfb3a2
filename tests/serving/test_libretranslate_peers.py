"""LibreTranslate's own API tests, its web page and a generated client, with our service.

They need the environment variable LIBRETRANSLATE, the path of a checkout of LibreTranslate, and the command
openapi-python-client on the path, or in the environment variable OPENAPI_PYTHON_CLIENT.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from dragoman.run import Run
from dragoman.serving import LanguagePair, Service, ServiceLimits, bind_socket, create_app
from dragoman.serving.suggestions import SuggestionFile

pytestmark = pytest.mark.peer

CHECKOUT = Path(os.environ.get("LIBRETRANSLATE", "missing"))
CLIENT_GENERATOR = os.environ.get("OPENAPI_PYTHON_CLIENT") or shutil.which("openapi-python-client")
needs_checkout = pytest.mark.skipif(not CHECKOUT.is_dir(), reason="LIBRETRANSLATE is not the path of a checkout")
Listening = Callable[[Service], Iterator[tuple[str, int]]]

#: stands in for Flask's test client: the same calls, sent over HTTP
CONFTEST = """
import httpx
import pytest

class Client:
    def __init__(self, base_url):
        self.http = httpx.Client(base_url=base_url)

    def _answer(self, answer):
        return type("Answer", (), {"status_code": answer.status_code, "data": answer.content, "json": answer.json() if
            answer.headers["content-type"].startswith("application/json") else None})

    def get(self, path):
        return self._answer(self.http.get(path))

    def post(self, path, **options):
        return self._answer(self.http.post(path, **options))

@pytest.fixture
def client():
    return Client("%s")
"""


@pytest.fixture(scope="module")
def spanish(run: Run, listening: Listening, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service from English to Spanish, as LibreTranslate's tests want it."""
    service = Service([(run, LanguagePair("en", "es"))], ServiceLimits(requests_per_minute=0))
    service.suggestions = SuggestionFile(tmp_path_factory.mktemp("peer") / "suggestions.jsonl")
    for host, port in listening(service):
        yield f"http://{host}:{port}"


@needs_checkout
def test_api_tests_of_libretranslate_pass(spanish: str, tmp_path: Path) -> None:
    for file in sorted((CHECKOUT / "libretranslate/tests/test_api").glob("test_*.py")):
        shutil.copy(file, tmp_path)
    (tmp_path / "conftest.py").write_text(CONFTEST % spanish, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert re.search(r"\b14 passed in", ended.stdout), ended.stdout
    assert ended.returncode == 0


# ---- the web page


class Templates:
    """The page of LibreTranslate and its files, and our application for everything else."""

    def __init__(self, service: Service) -> None:
        folder = CHECKOUT / "libretranslate"
        environment = Environment(loader=FileSystemLoader(folder / "templates"))
        environment.globals.update(
            _e=lambda text, **values: json.dumps(text % values),
            _h=lambda text, **values: text % values if values else text,
            _=lambda text, **values: text % values if values else text,
            url_for=lambda place, filename="": f"/static/{filename}" if place == "static" else "/",
        )
        values = {"version": "1", "swagger_url": "/docs", "current_locale": "en", "url_prefix": "", "api_secret": ""}

        async def index(_: object) -> Response:
            return HTMLResponse(environment.get_template("index.html").render(values))

        async def script(_: object) -> Response:
            text = environment.get_template("app.js.template").render(values)
            return Response(text, media_type="application/javascript")

        ours = create_app(service)
        static = Mount("/static", StaticFiles(directory=folder / "static"))
        routes = [Route("/", index), Route("/js/app.js", script), static, Mount("/", ours)]
        self.app = Starlette(routes=routes, lifespan=ours.router.lifespan_context)


@pytest.fixture(scope="module")
def web_page(run: Run) -> Iterator[str]:
    """The address of LibreTranslate's page in front of our service."""
    import threading

    import uvicorn

    service = Service([(run, LanguagePair("en", "es"))], ServiceLimits(requests_per_minute=0))
    bound = bind_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(Templates(service).app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    yield "http://{}:{}".format(*bound.getsockname())
    server.should_exit = True
    thread.join()
    bound.close()


@needs_checkout
@pytest.mark.skipif(not shutil.which("chromium"), reason="there is no Chromium")
def test_web_page_of_libretranslate_works_with_our_service(web_page: str, run: Run, tmp_path: Path) -> None:
    playwright = importlib.import_module("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        errors: list[Any] = []
        page.on("pageerror", lambda error: errors.append(error))
        page.goto(web_page)
        page.wait_for_selector("#textarea1", timeout=30_000)
        page.fill("#textarea1", "Anna reads.")
        expected = run.translate(["Anna reads."], alignment=False)[0].text
        playwright.expect(page.locator("#textarea2")).to_have_value(expected, timeout=30_000)
        # a file
        page.get_by_role("button", name="Translate Files").click()
        text = tmp_path / "text.txt"
        text.write_text("Anna reads.\n", encoding="utf-8")
        page.set_input_files("input[type=file]", text)
        page.get_by_role("button", name="Translate", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("link", name="Download").click()
        assert Path(download.value.path()).read_text(encoding="utf-8") == f"{expected}\n"
        assert not errors
        browser.close()


# ---- a generated client


#: calls the generated code, in the environment of its generator
CALLS = """
import io, json
from client import Client
from client.api.dragoman import v1_translate
from client.api.libre_translate import detect, health, languages, suggest, translate, translate_file
from client.models import *
from client.types import File

client = Client(base_url="%s")
text = TranslateLibreTranslateRequest(q="Anna reads.", source="en", target="es")
ours = V1TranslateTranslationRequest(text="Anna reads.", alignment=True)
file = TranslateFileBody(source="en", target="es", file=File(io.BytesIO(b"Anna reads."), file_name="a.txt"))
wrong = TranslateLibreTranslateRequest(q="Anna reads.", source="en", target="zz")
print(json.dumps([
    translate.sync(client=client, body=text).translated_text,
    v1_translate.sync(client=client, body=ours).translations[0].sentences[0].hypotheses[0].text,
    detect.sync(client=client, body=DetectDetectRequest(q="Anna reads."))[0].language,
    [language.code for language in languages.sync(client=client)],
    translate_file.sync(client=client, body=file).translated_file_url.startswith("http"),
    suggest.sync(client=client, body=SuggestSuggestRequest(q="a", s="b", source="en", target="es")).success,
    translate.sync(client=client, body=wrong).error,
    health.sync(client=client).to_dict(),
]))
"""


@pytest.mark.skipif(not CLIENT_GENERATOR, reason="openapi-python-client is missing")
def test_client_generated_from_the_openapi_description(spanish: str, run: Run, tmp_path: Path) -> None:
    generator = Path(str(CLIENT_GENERATOR))
    arguments = ["generate", "--url", f"{spanish}/openapi.json", "--output-path", tmp_path / "client", "--meta", "none"]
    made = subprocess.run([generator, *arguments], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "WARNING parsing" not in made.stdout
    called = subprocess.run(
        [generator.parent / "python", "-c", CALLS % spanish], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert called.returncode == 0, called.stderr
    best = run.translate(["Anna reads."], alignment=False)[0].text
    expected = [best, best, "en", ["en", "es"], True, True, "zz is not supported", {"status": "ok"}]
    assert json.loads(called.stdout) == expected
