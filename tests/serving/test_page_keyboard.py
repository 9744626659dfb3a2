"""Every view of the page without a mouse: all controls are reached and left with the keyboard, and show the focus."""

from __future__ import annotations

import pytest
from page_browser import BROWSER, SENTENCE, Opening, Page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="the page is tested in Chromium, which is not installed"),
]

#: what a view shows when it is complete; a control and a key that change what it shows
VIEWS: dict[str, tuple[str, str, str]] = {
    "attention": (".links path", "select", "ArrowDown"),
    "neurons": ("figure", "svg[tabindex]", "ArrowRight"),
    "walk": (".card-step", "select", "ArrowDown"),
    "probabilities": (".chip", ".chip", "Enter"),
    "beam": (".node", "input[type=range]", "ArrowRight"),
    "decoding": (".decoded tr", "input[type=range]", "Home"),
    "layers": ("figure", "summary", "Enter"),
    "positions": ("figure", "", ""),
    "gradients": ("figure", "summary", "Enter"),
    "history": (".history-table tr", "input[type=range]", "ArrowLeft"),
    "training": (".gallery figure", "summary", "Enter"),
    "errors": (".errors-table", "select", "ArrowDown"),
    "bpe": ("input[type=range]", "input[type=range]", "ArrowRight"),
}

#: number the elements of the view that Tab should reach
NUMBER_CONTROLS = """() => { let count = 0;
  const selector = 'button, a[href], input, select, textarea, summary, [tabindex]';
  for (const one of document.querySelectorAll(`#views :is(${selector})`))
    if (one.tabIndex >= 0 && !one.disabled && one.checkVisibility()) one.dataset.control = count++;
  return count; }"""

FOCUSED = """() => { const one = document.activeElement, style = getComputedStyle(one);
  return { control: one.dataset.control ?? null, inView: Boolean(one.closest('#views')),
    shown: style.outlineStyle !== 'none' || style.boxShadow !== 'none' }; }"""


def open_by_keyboard(page: Page, view: str) -> None:
    """Select a view with arrow keys in the list of tabs."""
    page.locator(".stage").first.wait_for()
    page.locator("#tab-attention").focus()
    for _ in list(VIEWS)[: list(VIEWS).index(view)]:
        page.keyboard.press("ArrowRight")
    page.locator(f"#tab-{view}[aria-selected=true]").wait_for()
    page.locator(f"#views {VIEWS[view][0]}").first.wait_for(state="attached")
    page.wait_for_function("() => !document.querySelector('#views.stale')")


# “Learning” and “Errors” need other runs: see test_page_analysis.py
@pytest.mark.parametrize("view", [view for view in VIEWS if view not in ("history", "errors")])
def test_controls_are_reached_and_used_with_the_keyboard(show: Opening, view: str) -> None:
    page = show(text=SENTENCE, reduced_motion="reduce")
    open_by_keyboard(page, view)
    count = page.evaluate(NUMBER_CONTROLS)
    visited: set[str | None] = set()
    for _ in range(count + 60):  # the controls between the tabs and the view come first
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if not focused["inView"] and visited:
            break  # the view can be left
        if focused["inView"]:
            assert focused["shown"], page.evaluate("document.activeElement.outerHTML")
            visited.add(focused["control"])
    assert not page.evaluate(FOCUSED)["inView"]
    assert len(visited - {None}) == count  # controls that appear meanwhile have no number
    _, selector, key = VIEWS[view]
    if selector:
        page.locator(f"#views {selector}").first.focus()
        before = page.evaluate("document.getElementById('views').innerHTML + location.hash")
        page.keyboard.press(key)
        page.wait_for_function(
            "(before) => document.getElementById('views').innerHTML + location.hash !== before", arg=before
        )
