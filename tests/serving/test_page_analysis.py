"""The views of learning, training, gradients and errors in a real browser, and the page of a training."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from page_browser import BROWSER, PATIENCE, SCREENS, SENTENCE, Opening, Page, serve_at_address
from starlette.testclient import TestClient

import dragoman
from dragoman.run import Run
from dragoman.serving import LanguagePair, Service, ServiceLimits
from dragoman.watch.watch_server import WatchServer

sync_api = pytest.importorskip("playwright.sync_api", reason="the page is tested with Playwright")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="the page is tested in Chromium, which is not installed")


@pytest.fixture(scope="module")
def home(run: Run) -> Iterator[str]:
    """A service with the same run twice."""
    service = Service([(run, LanguagePair("en", "de"))] * 2, ServiceLimits(requests_per_minute=0))
    yield from serve_at_address(service)


@pytest.fixture(scope="module")
def only_page() -> Iterator[tuple[Page, list[str]]]:
    """A page for all tests, and the errors of its console."""
    said: list[str] = []
    sync_api.expect.set_options(timeout=PATIENCE)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(reduced_motion="reduce")
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: message.type in ("error", "warning") and said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        yield page, said
        browser.close()


@pytest.fixture
def show(only_page: tuple[Page, list[str]], home: str) -> Iterator[Opening]:
    """Opens the page with a state in its link; errors in its console fail the test."""
    page, said = only_page
    said.clear()

    def open_page(at: str = home, screen: str = "laptop", scheme: str = "light", **state: object) -> Page:
        width, height = SCREENS[screen]
        page.goto("about:blank")
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{at}#{urlencode({'text': SENTENCE, **state})}")
        return page

    yield open_page
    page.goto("about:blank")
    assert said == []


def test_slider_over_checkpoints_by_keyboard(show: Opening, folder: Path) -> None:
    page = show(view="history")
    expect = sync_api.expect
    expect(page.locator(".history-table tbody tr")).to_have_count(5)
    page.locator("#history-step").focus()
    page.keyboard.press("Home")
    expect(page.locator(".history-label")).to_have_text("Step 0")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".history-label")).to_have_text("Step 1")
    early = dragoman.load(folder, "history/000001", device="cpu").translate([SENTENCE], alignment=False)[0].text
    expect(page.locator(".history-translation")).to_have_text(early or "(empty)")
    expect(page.locator("figure", has_text="Cross-attention at step 1")).to_be_visible()
    page.wait_for_function("() => location.hash.includes('trainingStep=1')")
    page.get_by_role("button", name="Of its own translation").click()
    page.get_by_role("button", name="Play").click()
    expect(page.locator(".history-label")).to_have_text("Step 4")  # the last one, where it stops


def test_errors_are_sorted_filtered_edited_and_inspected_by_keyboard(show: Opening, run: Run) -> None:
    page = show(view="errors")
    expect = sync_api.expect
    expect(page.locator(".errors-summary table")).to_contain_text("chrF")  # complete
    rows = page.locator(".open-row")
    count = rows.count()
    page.get_by_role("button", name="Words", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("[aria-sort=ascending]")).to_have_text("Words ▲")
    words = [int(text) for text in page.locator("[data-label=Words]").all_inner_texts()]
    assert words == sorted(words)
    page.keyboard.press("Enter")
    expect(page.locator("[aria-sort=descending]")).to_have_text("Words ▼")
    rows.first.focus()
    page.keyboard.press("ArrowDown")
    expect(rows.nth(1)).to_be_focused()
    source = page.locator("td[data-label=Source]").nth(1).inner_text()
    page.keyboard.press("Enter")
    editor = page.locator(".error-detail textarea")
    expect(editor).to_have_value(source)
    editor.focus()
    editor.fill("The dog sees the cat.")
    expected = run.translate(["The dog sees the cat."], alignment=False)[0].text
    expect(page.locator(".detail-results .detail-text")).to_have_text(expected or "(empty)")
    expect(page.locator(".detail-results")).to_contain_text("before:")
    page.get_by_role("button", name="Inspect", exact=True).press("Enter")
    expect(page.locator("#source")).to_have_value("The dog sees the cat.")
    expect(page.locator("#tab-attention")).to_have_attribute("aria-selected", "true")
    page.locator("#tab-errors").click()
    word = source.split()[0]
    page.get_by_role("searchbox", name="Contains").fill(word)
    page.wait_for_function(f"() => document.querySelectorAll('.open-row').length < {count}")
    page.get_by_role("searchbox", name="Contains").fill("no such text")
    expect(page.locator(".errors-table")).to_have_text("No sentence passes the filters.")


def test_two_runs_are_compared_with_the_reference(show: Opening, client: TestClient) -> None:
    page = show(view="errors", compare="run-2")
    expect = sync_api.expect
    expect(page.locator(".errors-outcomes")).to_contain_text("equal: ")
    page.get_by_role("button", name="run better: 0", exact=True).click()
    expect(page.locator(".errors-table")).to_have_text("No sentence passes the filters.")
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator(".translation-line .run-name").nth(1)).to_have_text("run-2 ")
    page.get_by_role("button", name="Diagnosis").click()
    expect(page.locator(".finding-value")).not_to_have_count(0)


def test_training_view_has_curves_sentences_and_the_report(show: Opening, home: str) -> None:
    page = show(view="training")
    sync_api.expect(page.locator(".gallery figure")).not_to_have_count(0)
    sync_api.expect(page.locator(".validation-sentences > li")).not_to_have_count(0)
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Report of this training").click()
    sync_api.expect(opened.value.locator("h1")).to_be_visible()
    assert opened.value.evaluate("() => getComputedStyle(document.body).fontFamily") != ""


def test_gradients(show: Opening) -> None:
    page = show(view="gradients")
    figure = page.get_by_role("img", name="Influence of the source")
    figure.focus()
    page.keyboard.press("ArrowDown")
    sync_api.expect(figure).to_contain_text("%")


@pytest.fixture
def watched(folder: Path) -> Iterator[str]:
    """The address of the page of a training."""
    server = WatchServer(folder)
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server.url
    server.server.should_exit = True
    thread.join()


def test_page_of_a_training(show: Opening, watched: str) -> None:
    page = show(at=watched)
    sync_api.expect(page.locator(".training-state")).to_contain_text("Finished")
    sync_api.expect(page.locator("#run-name")).to_have_text("run")
    sync_api.expect(page.locator(".gallery figure")).not_to_have_count(0)


def check_fit(page: Page, view: str) -> None:
    """The page fits the screen, and axe finds nothing serious."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, view
    found = axe.run(page).response["violations"]
    serious = [rule for rule in found if rule["impact"] in ("serious", "critical")]
    assert serious == [], [(rule["id"], node["html"]) for rule in serious for node in rule["nodes"]]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_page_of_a_training_fits_the_screen(show: Opening, watched: str, screen: str, scheme: str) -> None:
    page = show(at=watched, screen=screen, scheme=scheme)
    page.locator(".gallery figure").first.wait_for()
    check_fit(page, "watch")
    page.keyboard.press("Tab")  # its tables open with the keyboard
    while not page.evaluate("document.activeElement.matches('summary')"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("details[open]").first.wait_for()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("compare", ["", "run-2"])
def test_views_fit_the_screen(show: Opening, screen: str, scheme: str, compare: str) -> None:
    contents = {
        "history": ".history-table tr",
        "errors": ".errors-table tbody tr",
        "training": ".gallery figure",
        "gradients": ".gallery figure",
    }
    for view, content in contents.items():
        page = show(screen=screen, scheme=scheme, view=view, compare=compare)
        page.locator(content).first.wait_for()
        page.wait_for_function("() => getComputedStyle(document.getElementById('views')).opacity === '1'")  # complete
        check_fit(page, view)
