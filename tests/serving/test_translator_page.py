"""The translator of the page in a real browser: text, languages, words, warnings, files, history, presentation."""

from __future__ import annotations

import json
from copy import copy
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from page_browser import (
    NAMELESS,
    SCREENS,
    SENTENCE,
    Opening,
    Page,
    Runs,
    own,
    serve_at_address,
    sideways,
    wait_for_link,
)

from dragoman.lens.word_alternatives import word_alternatives
from dragoman.serving import LanguagePair, Service, ServiceLimits
from dragoman.serving.suggestions import SuggestionFile

sync_api = pytest.importorskip("playwright.sync_api", reason="the page is tested with Playwright")

PARAGRAPHS = "The old man reads the book. The man sleeps.\n\nThe girl sees the dog."
#: what a view shows when it is complete; “Learning” and “Errors” are checked in test_page_analysis.py
VIEW_CONTENTS = {
    "Attention": ".links path",
    "Walk": ".card-step",
    "Beam": ".node",
    "Decoding": ".decoded tr",
    **dict.fromkeys(("Neurons", "Layers", "Positions", "Gradients", "Training", "Probabilities"), "#views figure"),
}


def expect(locator: Any) -> Any:
    return sync_api.expect(locator)


def select_text(page: Page, selector: str) -> str:
    """Select an element with the mouse, from its beginning to its end, and return the selected text."""
    box = page.locator(selector).bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 12)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + box["height"] - 12, steps=5)
    page.mouse.up()
    return page.evaluate("getSelection().toString()")


# ---- text


def test_translation_is_text_with_paragraphs(show: Opening, runs: Runs) -> None:
    page = show(text=PARAGRAPHS)
    expect(page.locator(".sentence")).to_have_count(3)
    page.locator(".stage").wait_for()
    parts = [
        own(runs, 0, text) for text in ("The old man reads the book.", "The man sleeps.", "The girl sees the dog.")
    ]
    expected = f"{parts[0]} {parts[1]}\n\n{parts[2]}"
    assert page.locator(".translation").inner_text().strip() == expected.strip()
    selected = select_text(page, ".translation")
    assert selected.strip()
    assert "\n\n" in selected
    expect(page.locator("#selected-sentence")).to_contain_text("Sentence 1 of 3")  # a selection selects no sentence
    expect(page.locator(".choices")).to_have_count(0)
    page.evaluate("getSelection().removeAllRanges()")
    page.get_by_role("button", name="Copy", exact=True).click()
    expect(page.locator("#copy-translation")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == expected
    page.locator(".sentence").nth(2).hover()
    assert "".join(page.locator("#source-marks .pointed").all_text_contents()) == "The girl sees the dog."
    page.locator(".sentence").nth(2).click()
    expect(page.locator("#selected-sentence")).to_contain_text("Sentence 3 of 3")
    expect(page.locator(".choices")).to_have_count(0)


def test_copying_without_the_clipboard_of_secure_pages(show: Opening, browser: Any) -> None:
    """On plain http, navigator.clipboard does not exist."""
    page = show(text=SENTENCE)
    page.locator(".stage").wait_for()  # leaving a page cancels requests, and the console says so
    page.add_init_script("Object.defineProperty(Navigator.prototype, 'clipboard', { value: undefined })")
    page.goto("about:blank")
    page.go_back()
    page.locator("#source").fill(SENTENCE)
    page.locator(".stage").wait_for()
    assert page.evaluate("navigator.clipboard === undefined")
    for button, expected in (
        ("copy", "text=The+old+man"),
        ("copy-translation", page.locator(".translation").inner_text()),
    ):
        page.locator(f"#{button}").click()
        expect(page.locator(f"#{button}")).to_have_text("Copied")
        page.locator("#source").fill("")
        page.locator("#source").focus()
        page.keyboard.press("Control+v")
        assert expected.strip() in page.locator("#source").input_value()
        page.locator("#source").fill(SENTENCE)
        page.locator(".stage").wait_for()
    page.close()  # it has no clipboard


def test_character_count_and_limit(show: Opening, runs: Runs) -> None:
    for at in serve_at_address(Service(runs[:1], ServiceLimits(requests_per_minute=0, max_characters=30))):
        page = show(at)
        count, notice = page.locator("#count"), page.locator("#notice")
        expect(count).to_have_text("0 / 30")
        page.locator("#source").fill(SENTENCE)
        expect(count).to_have_text("27 / 30")
        page.locator("#source").fill(SENTENCE + "😀")  # one character, two code units
        expect(count).to_have_text("28 / 30: nearly full")
        expect(notice).to_be_hidden()
        page.locator("#source").fill(SENTENCE * 2)
        expect(count).to_have_text("54 / 30: too long")
        expect(notice).to_contain_text("24 characters more than the 30 that are translated at a time")
        expect(page.locator(".sentence")).to_have_count(0)
        page.get_by_role("button", name="Clear").click()
        expect(count).to_have_text("0 / 30")
        expect(page.locator("#source")).to_be_focused()
        expect(notice).to_be_hidden()
        page.close()


def test_typed_text_is_not_lost(show: Opening, runs: Runs) -> None:
    """What was typed a moment before a menu is used is translated; removed text comes back with Ctrl+Z."""
    page = show(text=SENTENCE)
    page.locator(".stage").wait_for()
    page.locator("#source").fill("The man sleeps.")
    page.locator("#beam").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#beam")).to_have_value("1")
    expect(page.locator("#source")).to_have_value("The man sleeps.")
    expect(page.locator(".translation")).to_have_text(runs[0][0].translate(["The man sleeps."], 1)[0].text)
    page.locator("#user-translation").fill("Der Mann schläft.")
    page.locator("#user-translation").press("Tab")
    expect(page.locator("#translation-score")).to_contain_text("log p")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#source")).to_have_value("")
    page.keyboard.press("Control+z")
    expect(page.locator("#source")).to_have_value("The man sleeps.")


def test_page_works_where_storage_is_blocked(show: Opening, runs: Runs) -> None:
    page = show()
    for name in ("localStorage", "sessionStorage"):
        page.add_init_script(f"Object.defineProperty(window, '{name}', {{ get() {{ throw new Error('blocked'); }} }})")
    page.goto("about:blank")
    page.go_back()
    page.locator("#source").fill(SENTENCE)
    expect(page.locator(".translation")).to_have_text(own(runs, 0))
    page.locator("#theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="History").click()
    expect(page.get_by_role("dialog", name="History")).to_contain_text(SENTENCE)
    page.close()  # it has no storage


# ---- languages


@pytest.mark.slow
def test_languages_are_swapped(show: Opening, runs: Runs) -> None:
    (run, _), reverse = runs[0], copy(runs[0][0])
    for at in serve_at_address(Service([(run, LanguagePair("en", "de")), (reverse, LanguagePair("de", "en"))])):
        page = show(at, text=SENTENCE)
        page.locator(".stage").wait_for()
        assert page.locator("#from option").all_inner_texts() == ["Detect language", "English", "German"]
        assert page.locator("#to option").all_inner_texts() == ["German"]
        translation = page.locator(".translation").inner_text()
        page.get_by_role("button", name="Swap languages").click()
        expect(page.locator("#source")).to_have_value(translation)
        expect(page.locator("#run")).to_have_value("attentive-2")
        expect(page.locator("#from")).to_have_value("de")
        page.close()


def test_language_is_selected_or_detected(show: Opening) -> None:
    page = show(text=SENTENCE)
    page.locator(".stage").wait_for()
    assert page.locator("#to option").all_inner_texts() == ["German", "Hebrew"]
    expect(page.get_by_role("button", name="Swap languages")).to_be_disabled()  # no run translates back
    page.locator("#to").select_option("he")
    expect(page.locator("#run")).to_have_value("right")
    page.locator("#from").select_option("auto")
    expect(page.locator("#from option").first).to_have_text("English (detected)")
    wait_for_link(page, "from=auto")
    page.locator("#source").fill("女孩看见这本书。")
    expect(page.locator("#from option").first).to_have_text("Chinese (detected)")
    expect(page.locator("#run")).to_have_value("east")
    expect(page.locator("#target-name")).to_have_text("English")
    expect(page.locator(".sentence")).to_have_count(1)


def test_compared_runs_of_different_languages(show: Opening) -> None:
    page = show(text=SENTENCE, compare="recurrent")
    page.locator(".stage").nth(1).wait_for()
    expect(page.locator("#run-warning")).to_be_hidden()
    page.get_by_label("Compare with").select_option("right")
    expect(page.locator("#run-warning")).to_contain_text(
        "attentive translates from English to German, but right from English to Hebrew"
    )
    assert page.locator("#compare").get_attribute("title") == "right · en → he · transformer"


# ---- words


def test_other_words_are_offered_and_can_be_undone(show: Opening, runs: Runs) -> None:
    run, page = runs[0][0], show(text=SENTENCE, view="probabilities")
    page.locator(".chip").first.wait_for()
    first, translation = own(runs, 0), page.locator(".sentence")
    found = word_alternatives(run, SENTENCE, [], 8)
    page.locator(".target-word").first.click()
    options = page.locator(".result .option")
    expect(options).to_have_count(len(found))
    assert [word.inner_text() for word in options.locator(".piece").all()] == [one.word or "(end)" for one in found]
    number, other = next((n, one) for n, one in enumerate(found) if one.word and not first.startswith(one.word))
    options.nth(number).click()
    expected = run.lens(SENTENCE, prefix=list(other.token_ids)).target
    assert expected is not None
    expect(translation).to_have_text(expected.text)
    expect(page.locator(".target-word.forced").first).to_be_visible()
    expect(page.locator(".chip.forced").first).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(translation).to_have_text(first)
    expect(page.locator(".chip.forced")).to_have_count(0)
    page.get_by_role("button", name="Redo").click()
    expect(translation).to_have_text(expected.text)
    page.locator("#source").fill("The man sleeps.")
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)


def test_words_are_chosen_with_the_keyboard(show: Opening) -> None:
    page = show(text=PARAGRAPHS)
    page.locator(".stage").wait_for()
    page.locator("#to").focus()
    while not page.evaluate("document.activeElement.matches('.target-word')"):
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")  # to the next sentence
    expect(page.locator(".sentence").nth(1).locator(".target-word").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#selected-sentence")).to_contain_text("Sentence 2 of 3")
    page.locator(".stage").wait_for()
    page.keyboard.press("Enter")
    expect(page.locator(".result .option:focus")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    expect(page.locator(".choices")).to_have_count(0)
    expect(page.locator(".sentence").nth(1).locator(".target-word").first).to_be_focused()
    page.keyboard.press("End")
    expect(page.locator(".target-word").last).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Help")).to_have_count(0)


# ---- warnings


def test_warnings_mark_what_they_are_about(show: Opening) -> None:
    text = "The man has 1,250 books. Der alte Mann liest heute das Buch."
    page = show(text=text)
    warnings = page.locator(".warnings")
    expect(warnings).to_contain_text("“1,250” may be missing from the translation.")
    expect(warnings).to_contain_text("The text looks like German, but this run translates from English.")
    marks = "".join(page.locator("#source-marks .doubtful").all_text_contents())
    assert "1,250" in marks
    assert "Der alte Mann liest heute das Buch." in marks
    warnings.get_by_role("button", name="Sentence 2").first.click()
    expect(page.locator("#selected-sentence")).to_contain_text("Sentence 2 of 2")
    page.locator("#source").fill("The man")
    expect(page.locator("#source-marks .doubtful")).to_have_count(0)


# ---- files, history


def test_text_files_are_opened_and_dropped(show: Opening, tmp_path: Path) -> None:
    page, file = show(), tmp_path / "text.txt"
    file.write_text(PARAGRAPHS, encoding="utf-8")
    with page.expect_file_chooser() as chosen:
        page.get_by_role("button", name="Open file").click()
    chosen.value.set_files(file)
    expect(page.locator("#source")).to_have_value(PARAGRAPHS)
    expect(page.locator(".sentence")).to_have_count(3)
    drop = """(text) => { const data = new DataTransfer(); data.items.add(new File([text], 'dropped.txt'));
      for (const name of ['dragover', 'drop']) document.getElementById('translator').dispatchEvent(
        new DragEvent(name, { dataTransfer: data, bubbles: true, cancelable: true })); }"""
    page.evaluate(drop, "The man sleeps.")
    expect(page.locator("#source")).to_have_value("The man sleeps.")
    expect(page.locator(".sentence")).to_have_count(1)
    expect(page.locator("#busy")).to_have_text("")
    page.evaluate(drop.replace("dropped.txt", "program.exe").replace("getElementById('translator')", "body"), "x")
    expect(page.locator("#notice")).to_contain_text("program.exe cannot be translated")


def test_files_are_translated_by_the_service(show: Opening, runs: Runs) -> None:
    """Files are translated one after the other, by the run that is selected."""
    page = show(run="recurrent", expected="status of 400")  # the answer to subtitles without any
    page.locator(".examples button").first.wait_for()
    drop = """() => { const data = new DataTransfer();
      for (const text of ['The man sleeps.', 'The girl sees the dog.'])
        data.items.add(new File([`<p>${text}</p>`], `${text}html`, { type: 'text/html' }));
      data.items.add(new File(['no subtitles'], 'empty.srt'));
      const dropped = new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true });
      document.body.dispatchEvent(dropped); }"""
    page.evaluate(drop)
    expect(page.locator("#file-result li")).to_contain_text(["is translated", "is translated", "no subtitles"])
    for link, text in zip(page.locator("#file-result a").all(), ("The man sleeps.", "The girl sees the dog.")):
        with page.expect_download() as saved:
            link.click()
        assert unescape(Path(saved.value.path()).read_text(encoding="utf-8")) == f"<p>{own(runs, 1, text)}</p>"
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#file-result")).to_be_hidden()


def test_numbers_in_files_are_kept_on_request(show: Opening) -> None:
    page = show()
    drop = """() => { const data = new DataTransfer();
      data.items.add(new File(['<p>The man reads 1250 books.</p>'], 'a.html', { type: 'text/html' }));
      document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })); }"""
    page.get_by_label("Keep numbers in files").check()
    page.evaluate(drop)
    with page.expect_download() as saved:
        page.locator("#file-result a").click()
    assert "1250" in Path(saved.value.path()).read_text(encoding="utf-8")


def test_a_translation_is_suggested_to_the_operator(show: Opening, runs: Runs, tmp_path: Path) -> None:
    service = Service(runs[:1], ServiceLimits(requests_per_minute=0))
    service.suggestions = SuggestionFile(tmp_path / "suggestions.jsonl")
    for at in serve_at_address(service):
        page = show(at, text=SENTENCE)
        page.locator(".stage").wait_for()
        suggest = page.get_by_role("button", name="Suggest yours")
        expect(suggest).to_be_hidden()
        page.get_by_label("Your translation").fill("Der alte Mann liest.")
        suggest.click()
        expect(page.locator("#notice")).to_contain_text("was sent to the operator")
        page.close()
    record = json.loads((tmp_path / "suggestions.jsonl").read_text(encoding="utf-8"))
    assert [record[name] for name in "qs"] == [SENTENCE, "Der alte Mann liest."]


def test_history_is_kept_cleared_and_switched_off(show: Opening, runs: Runs) -> None:
    page = show(text=SENTENCE)
    stored = "() => JSON.parse(localStorage.getItem('dragoman history') ?? '[]').map((entry) => entry.text)"
    page.locator(".stage").wait_for()
    page.wait_for_function(f"() => ({stored})().length === 1")
    page.locator("#source").fill("The man sleeps.")
    page.wait_for_function(f"() => ({stored})().length === 2")
    page.locator("#source").fill("The man sleeps. The girl")  # continues the last text
    page.wait_for_function(f"() => ({stored})()[0].endsWith('girl')")
    assert page.evaluate(stored) == ["The man sleeps. The girl", SENTENCE]
    page.get_by_role("button", name="History").click()
    dialog = page.get_by_role("dialog", name="History")
    dialog.get_by_role("button", name=SENTENCE).click()
    expect(page.locator("#source")).to_have_value(SENTENCE)
    expect(page.locator(".sentence")).to_have_text(own(runs, 0))
    page.get_by_role("button", name="History").click()
    dialog.get_by_role("button", name="Clear history").click()
    expect(dialog).to_contain_text("Nothing has been translated yet")
    dialog.get_by_label("Keep a history in this browser").uncheck()
    expect(dialog).to_contain_text("switched off")
    page.keyboard.press("Escape")
    page.locator("#source").fill("The man sleeps.")
    expect(page.locator(".sentence")).to_have_text(own(runs, 0, "The man sleeps."))
    expect(page.locator("#busy")).to_have_text("")
    assert page.evaluate(stored) == []


# ---- speech

SPEECH = """
Object.defineProperty(window, 'speechSynthesis', { value: Object.assign(new EventTarget(), {
  speaking: false, said: [], getVoices: () => ['en_GB', 'de-DE'].map((lang) => ({ lang })),
  speak(one) { this.speaking = true; this.said.push([one.text, one.lang]); this.last = one; },
  cancel() { if (this.speaking) { this.speaking = false; this.last.onend(); } } }) });
window.SpeechSynthesisUtterance = class { constructor(text) { this.text = text; } };
window.SpeechRecognition = class {
  start() { window.recognition = this; }
  stop() { this.onend(); }
  abort() { this.onend(); }
  hear(...texts) { this.onresult({ results: texts.map((transcript) => [{ transcript }]) }); }
};
"""


def test_translation_is_read_out_and_text_dictated(show: Opening, runs: Runs) -> None:
    """With objects in place of those of the browser, which needs voices and a microphone."""
    page = show()
    page.add_init_script(SPEECH)
    page.goto("about:blank")
    page.go_back()
    source, listen, dictate = (page.locator(f"#{name}") for name in ("source", "speak", "dictate"))
    expect(listen).to_be_hidden()
    source.fill(SENTENCE)
    listen.click()
    assert page.evaluate("speechSynthesis.said") == [[own(runs, 0), "de-DE"]]
    expect(listen).to_have_attribute("aria-pressed", "true")
    listen.click()
    expect(listen).to_have_text("Listen")
    listen.click()
    page.get_by_role("button", name="Clear").click()  # what is read is gone
    page.wait_for_function("() => !speechSynthesis.speaking")
    dictate.click()
    assert page.evaluate("recognition.lang") == "en"
    page.evaluate("recognition.hear('The man ', 'sleeps.')")
    expect(page.locator(".translation")).to_have_text(own(runs, 0, "The man sleeps."))
    source.fill("The man sleeps.!")
    page.evaluate("recognition.hear('The man ', 'sleeps. The girl')")  # what the user has typed stays
    expect(source).to_have_value("The man sleeps.!")
    expect(dictate).to_have_attribute("aria-pressed", "false")
    dictate.click()
    page.evaluate("recognition.onerror({ error: 'not-allowed' })")
    expect(page.locator("#notice")).to_contain_text("does not allow this page to use the microphone")
    page.locator("#to").select_option("he")  # the browser has no such voice
    expect(page.locator(".translation")).to_have_attribute("lang", "he")
    page.locator(".stage").wait_for()
    expect(listen).to_be_hidden()
    page.close()


# ---- presentation mode, shortcuts


def test_presentation_mode(show: Opening) -> None:
    page = show(text=SENTENCE, viewport={"width": 1920, "height": 1080})
    page.locator(".stage").wait_for()
    size = "parseFloat(getComputedStyle(document.documentElement).fontSize)"
    before, height = page.evaluate(size), page.locator("#translator").bounding_box()["height"]
    assert page.locator("main").bounding_box()["width"] > 1850  # the content uses the width
    page.get_by_role("button", name="Present").click()
    expect(page.locator("#present")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(size) > 1.3 * before
    assert page.locator("#translator").bounding_box()["height"] < 0.5 * height
    wait_for_link(page, "present=1")
    page.locator("#source").focus()  # the translator opens when it is used
    assert page.locator("#translator").bounding_box()["height"] > 0.5 * height
    page.keyboard.press("Escape")  # leaves the text
    page.keyboard.press("p")
    expect(page.locator("#present")).to_have_attribute("aria-pressed", "false")
    assert page.evaluate(size) == before
    page = show(text=SENTENCE, present=1, viewport={"width": 1920, "height": 1080})  # a link to a presentation
    page.locator(".stage").wait_for()
    assert page.locator("#translator").bounding_box()["height"] < 0.5 * height


@pytest.mark.slow
def test_view_is_visible_with_large_fonts(show: Opening) -> None:
    page = show(text=SENTENCE, viewport={"width": 1440, "height": 900})
    page.locator(".stage").wait_for()
    for _ in range(5):
        page.keyboard.press("Escape")
        page.keyboard.press("+")
    assert page.evaluate("parseFloat(getComputedStyle(document.documentElement).fontSize)") == 32
    assert page.locator(".stage").bounding_box()["y"] < 900


@pytest.mark.slow
def test_shortcuts(show: Opening) -> None:
    page = show(text=PARAGRAPHS)
    page.locator(".stage").wait_for()
    second = page.get_by_role("tab").nth(1)
    page.locator("#source").blur()
    page.keyboard.press("2")
    expect(second).to_have_attribute("aria-selected", "true")
    page.keyboard.press("]")
    expect(page.locator("#selected-sentence")).to_contain_text("Sentence 2 of 3")
    page.keyboard.press("[")
    expect(page.locator("#selected-sentence")).to_contain_text("Sentence 1 of 3")
    page.keyboard.press("/")
    expect(page.locator("#source")).to_be_focused()
    page.keyboard.press("3")  # typed into the text
    expect(second).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    page.get_by_label("Use single-key shortcuts").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    expect(second).to_have_attribute("aria-selected", "true")


# ---- accessibility


def serious_violations(page: Page) -> list[str]:
    """Run axe, and return its serious findings and those about headings."""
    axe = pytest.importorskip("axe_playwright_python", reason="accessibility is checked with axe")
    source = Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    page.evaluate(source)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations)")
    return [
        f"{one['id']} ({one['impact']}): {json.dumps([node['target'] for node in one['nodes']][:4])} {one['help']}"
        for one in found
        if one["impact"] in ("serious", "critical") or one["id"] == "heading-order"
    ]


def test_axe_finds_nothing_serious(show: Opening) -> None:
    page = show(text="The man has 1,250 books. The man sleeps.", reduced_motion="reduce")
    page.locator(".stage").wait_for()
    page.locator(".warnings li").first.wait_for()
    for width, height in SCREENS.values():
        page.set_viewport_size({"width": width, "height": height})
        assert sideways(page) <= 0
        assert serious_violations(page) == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SCREENS)
def test_every_view_at_every_width(show: Opening, width: str, scheme: str) -> None:
    """All views fit the width, with one run and with two, and axe finds nothing serious."""
    viewport = dict(zip(("width", "height"), SCREENS[width]))
    for compare in ("", "recurrent"):
        page = show(text=PARAGRAPHS, compare=compare, viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
        page.locator(".stage").first.wait_for()
        for tab in page.get_by_role("tab").all():
            tab.click()
            name = tab.inner_text()
            page.locator(VIEW_CONTENTS.get(name, "#views > *")).first.wait_for(state="attached")
            page.wait_for_function("() => !document.querySelector('#views.stale')")
            assert sideways(page) <= 0, name
            assert page.evaluate(NAMELESS) == [], name
            assert serious_violations(page) == [], name
        page.close()


@pytest.mark.slow
def test_forced_colors_and_dialogs(show: Opening) -> None:
    page = show(text=PARAGRAPHS)
    page.emulate_media(forced_colors="active")
    page.locator(".stage").wait_for()
    outline = page.locator(".sentence[aria-current=true]").evaluate("one => getComputedStyle(one).outlineStyle")
    assert outline == "solid"
    for name in ("History", "Help and keyboard shortcuts"):
        page.get_by_role("button", name=name).click()
        page.locator("dialog[open]").wait_for()
        assert serious_violations(page) == [], name
        page.keyboard.press("Escape")
