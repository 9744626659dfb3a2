"""Small runs, a service and a browser for the tests of the page; `conftest.py` makes the fixtures available."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import dragoman
from dragoman.cli import main
from dragoman.data import phrasebook
from dragoman.run import Run
from dragoman.serving import LanguagePair, Service, ServiceLimits, bind_socket
from dragoman.serving.server import create_server

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
Runs = list[tuple[Run, LanguagePair]]
PATIENCE = 180_000  # milliseconds: an upper bound for a busy machine
Page = Any  # Playwright need not be installed where types are checked
SENTENCE = "The old man reads the book."
SCREENS = {"phone": (390, 844), "laptop": (1440, 900), "projector": (1920, 1080)}
#: controls without a name for screen readers
NAMELESS = """() => [...document.querySelectorAll('button, a, input, select, textarea, [role=img], [role=region]')]
  .filter((one) => one.checkVisibility() && !one.closest('[aria-hidden]'))
  .filter((one) => !(one.getAttribute('aria-label') ?? one.textContent).trim()
    && ![...(one.labels ?? [])].some((label) => label.textContent.trim()))
  .map((one) => one.outerHTML)"""
HEBREW = {
    "who": [("the man", "האיש"), ("the girl", "הילדה"), ("our dog", "הכלב שלנו")],
    "verb": [("sees", "רואה"), ("wants", "רוצה")],
    "what": [("the book", "את הספר"), ("water", "מים"), ("the red car", "את המכונית האדומה")],
}
CHINESE = {
    "who": [("男人", "the man"), ("女孩", "the girl"), ("我们的狗", "our dog")],
    "verb": [("看见", "sees"), ("想要", "wants")],
    "what": [("这本书", "this book"), ("水", "water"), ("红色的车", "the red car")],
}


def train(place: Path, name: str, files: list[Path], system: str, steps: int, *more: str) -> Run:
    """A small run that has learned a little."""
    settings = [
        "system.settings.model_dim=32",
        "training.batch_tokens=400",
        "training.warmup_steps=10",
        "search.max_target_length=12",
    ]
    settings += ["system.settings.dropout=0.0", "training.validation_sentences=8", *more]
    options = [part for setting in settings for part in ("--set", setting)]
    arguments = ["train", place / name, "--source", files[0], "--target", files[1], "--system", system]
    arguments += ["--steps", steps, "--device", "cpu", *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dragoman", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return dragoman.load(place / name, device="cpu")


def written(place: Path, endings: tuple[str, str], parts: dict[str, list[tuple[str, str]]], space: str) -> list[Path]:
    """All sentences of some words in both languages."""
    made = list(product(*parts.values()))
    files = [place / f"small.{ending}" for ending in endings]
    for side, file in enumerate(files):
        between = space if side == 0 else " "
        lines = [between.join(word[side] for word in one) + ("。" if not between else ".") for one in made]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return files


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    place = tmp_path_factory.mktemp("page")
    phrasebook.write(place / "book", pairs=300, valid=10, test=10)
    book, size = [place / "book" / "train.en", place / "book" / "train.de"], "text.vocab_size=420"
    layers = ["system.settings.layers=2", "system.settings.heads=2"]
    hebrew = written(place, ("en", "he"), HEBREW, " ")
    chinese = written(place, ("zh", "en"), CHINESE, "")
    return [
        (train(place, "attentive", book, "transformer", 20, size, *layers), LanguagePair("en", "de")),
        (train(place, "recurrent", book, "bahdanau", 6, size, "system.settings.layers=1"), LanguagePair("en", "de")),
        (train(place, "fixed", book, "sutskever", 2, size, "system.settings.layers=1"), LanguagePair("en", "de")),
        (train(place, "right", hebrew, "transformer", 20, "text.vocab_size=330", *layers), LanguagePair("en", "he")),
        (train(place, "east", chinese, "transformer", 20, "text.vocab_size=340", *layers), LanguagePair("zh", "en")),
    ]


def serve_at_address(service: Service) -> Iterator[str]:
    ready, bound = threading.Event(), bind_socket("127.0.0.1", 0)
    server = create_server(service, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    assert ready.wait(300)
    yield "http://{}:{}/".format(*bound.getsockname())
    server.should_exit = True
    thread.join()
    bound.close()


@pytest.fixture(scope="module")
def home(runs: Runs) -> Iterator[str]:
    yield from serve_at_address(Service(runs, ServiceLimits(requests_per_minute=0, max_inspected_tokens=40)))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="the page is tested with Playwright")
    if BROWSER is None:
        pytest.skip("the page is tested in Chromium, which is not installed")
    sync_api.expect.set_options(timeout=PATIENCE)
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"], timeout=PATIENCE)
        yield opened
        opened.close()


Opening = Callable[..., Page]


@pytest.fixture(scope="module")
def idle_pages() -> list[Page]:
    """Pages that no test uses at the moment, each with a context of its own: opening one costs a second of CPU time."""
    return []


def new_page(browser: Any) -> Page:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    return context.new_page()


def reset_page(page: Page, listeners: dict[str, Callable[[Any], None]]) -> None:
    """Remove what a test has left in a page: listeners, routes and stored settings."""
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    page.unroute_all()
    page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
    page.context.clear_cookies()
    page.goto("about:blank")


@pytest.fixture
def show(browser: Any, home: str, idle_pages: list[Page]) -> Iterator[Opening]:
    """Opens the page with a state in its link; what its console says, and whom it asks, is looked at in the end."""
    said: list[str] = []
    asked: list[str] = []
    opened: list[tuple[Page, dict[str, Callable[[Any], None]]]] = []

    def open_page(at: str = home, expected: str = "", **state: object) -> Page:
        page = idle_pages.pop() if idle_pages else new_page(browser)
        page.set_viewport_size(state.pop("viewport", {"width": 1280, "height": 720}))
        media = {"color_scheme": "light", "reduced_motion": "no-preference", "forced_colors": "none"}
        page.emulate_media(**{name: state.pop(name, default) for name, default in media.items()})

        def hear(message: Any) -> None:
            if message.type in ("error", "warning") and not (expected and expected in message.text):
                said.append(message.text)

        listeners: dict[str, Callable[[Any], None]] = {
            "console": hear,
            "pageerror": lambda error: said.append(str(error)),
            "request": lambda request: asked.append(request.url),
        }
        for event, listener in listeners.items():
            page.on(event, listener)
        opened.append((page, listeners))
        page.goto(f"{at}#{urlencode(state)}")
        return page

    yield open_page
    for page, listeners in opened:
        if not page.is_closed():
            reset_page(page, listeners)
            idle_pages.append(page)
    assert not said, said
    assert {re.match(r"(blob:)?http://127\.0\.0\.1:\d+/", url) is not None for url in asked} <= {True}


def own(runs: Runs, number: int, text: str = SENTENCE) -> str:
    return runs[number][0].translate([text], alignment=False)[0].text


def wait_for_link(page: Page, part: str) -> None:
    """Wait until the page's address contains `part`: the page writes its address a moment after a change."""
    page.wait_for_function("(part) => location.hash.includes(part)", arg=part)


def sideways(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
