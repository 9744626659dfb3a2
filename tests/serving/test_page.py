"""The page in a real browser: what a reader does, and what is then seen."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import torch
from page_browser import NAMELESS, SENTENCE, Opening, Page, own, serve_at_address, sideways, wait_for_link

import dragoman
from dragoman.lens.walk import walk_through
from dragoman.run import Run
from dragoman.search.greedy_and_sampling import truncate
from dragoman.serving import ApiKeys, LanguagePair, Service, ServiceLimits
from dragoman.text.language_codes import LanguageCodes

sync_api = pytest.importorskip("playwright.sync_api", reason="the page is tested with Playwright")
NUM_LINK_COLORS = """new Set([...document.querySelectorAll('.links path')].map(
  (link) => getComputedStyle(link).stroke)).size"""


def weight(word: Any) -> float:
    return float(word.evaluate("one => getComputedStyle(one).getPropertyValue('--weight')"))


# ---- translating


def test_typed_text_is_translated(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    page = show()
    assert page.locator("#source").evaluate("one => one === document.activeElement")
    page.keyboard.type("The man")
    page.keyboard.type(" sleeps.")
    expected = own(runs, 0, "The man sleeps.")
    sync_api.expect(page.locator(".sentence")).to_have_text(expected)
    sync_api.expect(page.locator("#announcement")).to_have_text(expected)
    sync_api.expect(page.locator("#target-name")).to_have_text("German")


def test_example_is_translated(show: Opening) -> None:
    page = show()
    first = page.locator(".examples button").first
    text = first.text_content()
    first.click()
    sync_api.expect(page.locator("#source")).to_have_value(text)
    page.locator(".stage").wait_for()


def test_text_typed_while_loading_is_kept(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    page, held = show(), []
    page.route("**/v1/runs", lambda route: held.append(route))  # Playwright takes no built-in method
    with page.expect_request("**/v1/runs"):
        page.reload()
    page.locator("#source").fill(SENTENCE)
    page.wait_for_function("() => document.getElementById('run').options.length === 0")
    held[0].continue_()
    sync_api.expect(page.locator(".sentence")).to_have_text(own(runs, 0))


def test_latest_text_wins(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    page = show(text=" ".join([SENTENCE] * 30))
    page.locator(".sentence").nth(1).wait_for()
    page.locator("#source").fill("The man sleeps.")
    sync_api.expect(page.locator(".sentence")).to_have_count(1)
    sync_api.expect(page.locator(".sentence")).to_have_text(own(runs, 0, "The man sleeps."))


def test_four_hundred_words_stay_responsive(show: Opening) -> None:
    """Rows come one by one, and the page can do something else in between."""
    text = " ".join([SENTENCE, "The man sleeps."] * 45)
    assert len(text.split()) > 400
    page = show(text=text, beam=1)
    page.locator(".sentence").first.wait_for()
    rows = page.evaluate(
        """async () => { const rows = [document.querySelectorAll('.sentence').length];
           while (document.getElementById('busy').textContent) {
             await new Promise((done) => setTimeout(done, 10));
             rows.push(document.querySelectorAll('.sentence').length); }
           return rows; }"""
    )
    assert rows[0] == 90 or len(set(rows)) > 1
    assert rows == sorted(rows)
    sync_api.expect(page.locator(".sentence")).to_have_count(90)
    page.locator(".sentence").nth(3).click()
    sync_api.expect(page.locator("#selected-sentence")).to_contain_text("Sentence 4 of 90")
    page.get_by_label("Next sentence").press("Enter")
    sync_api.expect(page.locator("#selected-sentence")).to_contain_text("Sentence 5 of 90")
    page.keyboard.press("Enter")  # the focus has stayed
    sync_api.expect(page.locator("#selected-sentence")).to_contain_text("Sentence 6 of 90")
    page.locator(".stage").wait_for()
    assert sideways(page) <= 0


def test_user_translation_is_inspected(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    page, mine = show(text=SENTENCE), "Der Mann schläft."
    page.locator(".stage").wait_for()
    found = own(runs, 0)
    page.get_by_label("Your translation").fill(mine)
    figures = page.locator("#translation-score")
    sync_api.expect(figures).to_contain_text("less probable than the run's translation")
    score = runs[0][0].score([SENTENCE], [mine])[0].score
    assert f"log p {score:.2f}".replace("-", "−") in figures.text_content()
    sync_api.expect(page.locator(".word[data-word^=q]").first).to_have_text("Der")
    sync_api.expect(page.locator(".sentence")).to_have_text(found)  # which stays
    page.get_by_role("tab", name="Beam").click()
    sync_api.expect(page.locator("#views")).to_contain_text("The translation was given")
    wait_for_link(page, "view=beam")
    page.reload()  # the link says it all
    sync_api.expect(page.locator("#user-translation")).to_have_value(mine)
    sync_api.expect(figures).to_contain_text("less probable")
    page.locator("#user-translation").fill(found)
    sync_api.expect(figures).to_have_text(re.compile("per token · the run's translation$"))
    page.locator("#user-translation").fill(mine)
    sync_api.expect(figures).to_contain_text("less probable")
    page.locator("#source").fill("The man sleeps.")
    sync_api.expect(page.locator("#user-translation")).to_have_value("")
    sync_api.expect(figures).to_have_text("")
    page.locator("#source").fill(SENTENCE)  # which has one
    sync_api.expect(page.locator("#user-translation")).to_have_value(mine)


# ---- attention


def test_words_are_highlighted_by_attention(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    page = show(text=SENTENCE)
    page.locator("[data-word=q0]").hover()
    lit = [weight(word) for word in page.locator(".word[data-word^=k]").all()]
    inspection = runs[0][0].lens(SENTENCE)
    assert inspection.cross_attention is not None
    assert sum(lit) == pytest.approx(1, abs=1e-3)
    assert max(lit) > 0
    pieces = [n for n, word in enumerate(inspection.target.word_ids) if word == 0]  # type: ignore[union-attr]
    last = inspection.cross_attention[pieces].mean(0)[-1].item()  # END stands alone
    assert lit[-1] == pytest.approx(last, abs=1e-3)
    sync_api.expect(page.locator(".attention-status")).to_contain_text("attends to")
    page.locator("[data-word=k1]").hover()
    sync_api.expect(page.locator(".attention-status")).to_contain_text("“old”")
    assert [weight(word) for word in page.locator(".word[data-word^=k]").all()] == [0] * len(lit)
    assert any(weight(word) > 0 for word in page.locator(".word[data-word^=q]").all())


def test_head_selection(show: Opening) -> None:
    page = show(text=SENTENCE)
    thumbs = page.locator(".thumb")
    sync_api.expect(thumbs).to_have_count(4)
    assert "bits" in thumbs.nth(3).text_content()
    assert thumbs.nth(0).bounding_box()["y"] == thumbs.nth(1).bounding_box()["y"]  # heads of a layer stand in a row
    thumbs.nth(3).click()
    sync_api.expect(page.locator("figcaption h3").first).to_have_text("Cross-attention layer 2, head 2")
    sync_api.expect(page.get_by_role("combobox", name="Layer")).to_have_value("2")
    page.get_by_role("combobox", name="Head").select_option("0")
    sync_api.expect(page.locator("figcaption h3").first).to_have_text("Cross-attention layer 2, all heads")
    colors = page.get_by_role("group", name="Heads in colors").get_by_role("button")
    sync_api.expect(colors).to_have_count(2)
    colors.nth(0).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("figcaption h3").first).to_have_text("Cross-attention layer 2, heads 1, 2")
    page.wait_for_function(f"{NUM_LINK_COLORS} === 2")  # links are drawn when the layout is known
    page.get_by_role("button", name="within the source").click()
    sync_api.expect(page.locator("figcaption h3").first).to_have_text("Encoder, all layers, all heads")
    sync_api.expect(page.locator(".line").nth(1).locator(".word").first).to_have_text("The")
    page.get_by_role("button", name="tokens").click()
    sync_api.expect(page.locator(".line").first.locator(".word").first).to_contain_text("▁")


def test_attention_of_recurrent_systems(show: Opening) -> None:
    page = show(run="recurrent", text=SENTENCE)
    sync_api.expect(page.locator(".thumb")).to_have_count(1)
    page.locator("[data-word=q0]").hover()
    assert sum(weight(word) for word in page.locator(".word[data-word^=k]").all()) == pytest.approx(1, abs=1e-3)
    page = show(run="fixed", text=SENTENCE)
    sync_api.expect(page.locator(".empty")).to_contain_text("no attention")


def test_right_to_left(show: Opening) -> None:
    page = show(run="right", text="the man sees the book.")
    line = page.locator(".line").nth(1)
    sync_api.expect(line).to_have_attribute("lang", "he")
    boxes = [line.locator(".word").nth(n).bounding_box() for n in range(2)]
    assert boxes[0]["x"] > boxes[1]["x"]
    assert page.locator(".sentence").evaluate("one => getComputedStyle(one).direction") == "rtl"
    line.locator(".word").first.focus()
    page.keyboard.press("ArrowLeft")
    sync_api.expect(line.locator(".word").nth(1)).to_be_focused()


def test_chinese_is_shown_in_tokens(show: Opening) -> None:
    page = show(run="east", text="女孩看见这本书。")
    words = page.locator(".line").first.locator(".word")
    words.first.wait_for()
    assert words.count() > 3
    assert "".join(words.all_text_contents()).startswith("女孩看见这本书。")
    words.first.hover()
    sync_api.expect(page.locator(".attention-status")).to_contain_text(words.first.text_content())


# ---- probabilities


def test_forced_token_and_reset(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    run = runs[0][0]
    page = show(text=SENTENCE, view="probabilities")
    first = page.locator(".chip").first
    first.click()
    options = page.locator(".option")
    other = options.nth(1).locator(".piece").text_content()
    options.nth(1).click()
    sync_api.expect(page.locator(".chip.forced")).to_have_count(1)
    step = run.lens(SENTENCE, alternatives=8).steps[0]
    token = step.alternatives[1].token_id
    expected = run.lens(SENTENCE, prefix=[token])
    assert expected.target is not None
    sync_api.expect(page.locator(".chip .piece").first).to_have_text(other)
    sync_api.expect(page.locator(".sentence")).to_have_text(expected.target.text)
    wait_for_link(page, f"forced=0.0-{token}")
    page.locator("#compare").select_option("recurrent")  # which leaves the first as it is
    sync_api.expect(page.locator(".sentence").first).to_have_text(expected.target.text)
    page.locator("#compare").select_option("")
    sync_api.expect(page.locator(".result")).to_have_count(1)
    sync_api.expect(page.locator(".chip.forced")).to_have_count(1)
    page.get_by_role("button", name="Back to the run's translation").click()
    sync_api.expect(page.locator(".sentence")).to_have_text(own(runs, 0))
    sync_api.expect(page.locator(".chip.forced")).to_have_count(0)


# ---- the beam


def test_beam_steps(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    page = show(text=SENTENCE, view="beam", beam=3)
    told = page.locator(".toolbar output")
    told.wait_for()
    steps = int(told.text_content().split()[-1])
    assert told.text_content() == f"step 1 of {steps}"
    assert page.locator(".tree").evaluate("one => one.scrollLeft") == 0
    assert page.locator(".node:not(.future)").evaluate_all("all => all.every((one) => one.dataset.step === '1')")
    tree = runs[0][0].lens(SENTENCE, search=runs[0][0].beam_config(3)).beam
    assert tree is not None
    chosen = {str(node.index) for node in tree.path(tree.best)}
    page.get_by_label("Step forward").click()
    sync_api.expect(told).to_have_text(f"step 2 of {steps}")
    marked = page.locator(".node.best").evaluate_all(
        "all => all.filter((one) => getComputedStyle(one).opacity === '1').map((one) => one.dataset.node)"
    )
    assert set(marked) == chosen  # the whole path, also in steps that are not shown yet
    page.locator(".node[data-step='1']").nth(1).click()  # another step: slider and table follow
    sync_api.expect(told).to_have_text(f"step 1 of {steps}")
    assert page.get_by_label("Step of the beam search").input_value() == "1"
    sync_api.expect(page.locator(".hypotheses thead")).to_contain_text("step 1")
    titles = page.locator(".toolbar .group button").evaluate_all("all => all.map((one) => one.title)")
    assert titles == ["First step", "Step back", "Step forward", "Last step"]
    page.get_by_role("button", name="Play").click()
    sync_api.expect(page.get_by_role("button", name="Pause")).to_be_visible()
    sync_api.expect(told).to_have_text(f"step 2 of {steps}")
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("Step forward").click()
    page.get_by_label("Step back").click()
    page.locator(".tree").focus()
    page.keyboard.press("ArrowLeft")
    sync_api.expect(told).to_have_text(f"step 1 of {steps}")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    sync_api.expect(told).to_have_text(f"step {steps} of {steps}")
    fates = set(page.locator(".hypotheses tr[class]").evaluate_all("all => all.map((one) => one.classList[0])"))
    assert fates <= {"kept", "pruned", "finished", "truncated", "common"}
    listed = page.locator(".hypotheses tr[data-listed]").evaluate_all("all => all.map((one) => one.dataset.listed)")
    assert set(listed) == {str(node.index) for node in tree.nodes if node.step == steps}
    page.locator(".hypotheses tr.selected").focus()
    page.keyboard.press("ArrowDown")
    sync_api.expect(page.locator(".hypotheses tr.selected")).to_be_focused()
    assert page.locator(".node").count() == len(tree.nodes) - 1
    last = page.locator(f"[data-node='{tree.best.index}']")
    assert last.locator("text").first.text_content().startswith("1.")
    assert sideways(page) <= 0


# ---- heads, neurons, the walk through the model, decoding

CELL_CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map(Number);
  const brightness = (colour) => { const [r, g, b] = colour.map((part) => { const s = part / 255;
    return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const probe = document.body.appendChild(document.createElement('i'));
  probe.style.color = 'var(--paper)';
  const paper = numbers(getComputedStyle(probe).color);
  probe.remove();
  const texts = [...document.querySelectorAll('figure svg [class*=on-]')];
  return texts.map((text) => {
    let cell = text;
    do cell = cell.previousElementSibling; while (cell.tagName !== 'rect');
    const style = getComputedStyle(cell);
    const opacity = Number(style.fillOpacity);
    const under = numbers(style.fill).map((part, n) => opacity * part + (1 - opacity) * paper[n]);
    const pair = [brightness(under), brightness(numbers(getComputedStyle(text).fill))].sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05); }); }"""


def test_cells_are_readable_and_labelled(show: Opening) -> None:
    page = show(text=SENTENCE)
    for view in ("Attention", "Layers", "Probabilities"):
        page.get_by_role("tab", name=view).click()
        page.locator("figure svg [class*=on-]").first.wait_for()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            ratios = page.evaluate(CELL_CONTRAST)
            assert ratios
            assert min(ratios) >= 4.5, (view, scheme)
    page.get_by_role("tab", name="Attention").click()
    page.locator("figure svg[tabindex='0']").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    status = page.locator(".cell-status")
    sync_api.expect(status).to_contain_text(re.compile(r"^\S+ → old: weight \d"))
    page.locator("[data-row='1'][data-cell='2']").hover()
    sync_api.expect(status).to_contain_text(" → man: weight ")
    classes = page.evaluate(
        "import('/page/figures.js').then((m) => [0, .1, .3, .4, .5, .6, .7, .9, 1].map((w) => m.textClass(w)))"
    )
    assert classes[0] == "on-black-white"
    assert classes[-1] == "on-white-black"


def test_links_between_words_stay_when_lines_wrap(show: Opening) -> None:
    page = show(text=SENTENCE, viewport={"width": 390, "height": 844})
    page.locator(".stage.columns .links path").first.wait_for(state="attached")
    assert page.locator(".links").is_visible()
    assert sideways(page) <= 0
    page.set_viewport_size({"width": 1440, "height": 900})
    sync_api.expect(page.locator(".stage.columns")).to_have_count(0)
    page.locator(".stage .links path").first.wait_for(state="attached")
    page.set_viewport_size({"width": 700, "height": 900})
    page.locator("#source").fill("The old man reads the book and the old dog.")
    page.locator(".stage.columns .links path").first.wait_for(state="attached")


def test_neurons_sum_to_scores(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    page = show(text=SENTENCE, view="neurons", layer=2, head=2)
    for kind, query in (("cross", 1), ("encoder", 2), ("decoder", 1)):
        page.get_by_role("combobox", name="Attention").select_option(kind)
        page.get_by_role("combobox", name="Layer").select_option("2")
        button = page.get_by_role("group", name="Query").get_by_role("button").nth(query)
        button.click()
        sync_api.expect(button).to_have_attribute("aria-pressed", "true")  # together with the figure
        sync_api.expect(button).to_be_focused()
        figure = page.locator("figure").first
        found = next(map for map in runs[0][0].lens(SENTENCE).attention_of_kind(kind) if map.layer == 2)  # type: ignore[arg-type]
        shares = [float(text.strip("<\u00a0% ")) for text in figure.locator("[data-weight]").all_text_contents()]
        visible = found.weights[1, query][: len(shares)]
        assert shares == pytest.approx([100 * share for share in visible.tolist()], abs=0.6)
    page.locator("figure svg[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    sync_api.expect(page.locator(".strip-value")).to_contain_text("query × key, element 1:")


def test_walk_through_the_model_by_keyboard(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    page = show(text=SENTENCE, view="walk", walkStep=1, compare="recurrent")
    page.locator(".walk").nth(1).locator(".cards").wait_for()
    walk = page.locator(".walk").first
    assert walk.locator(".places li").first.text_content() == "encoder: input"
    walk.locator(".cards").focus()
    page.keyboard.press("ArrowRight")
    sync_api.expect(walk.locator("output")).to_contain_text("step 2 of")
    page.keyboard.press("End")
    sync_api.expect(walk.locator(".card-step.current")).to_have_attribute("data-name", "probabilities")
    step = runs[0][0].lens(SENTENCE).steps[1]
    sync_api.expect(walk.locator(".card-step.current")).to_contain_text(f"log p −{-step.log_probability:.3f}")
    walk.get_by_role("button", name="decoder layer 1: cross-attention").click()
    for name in ("query", "keys", "values", "terms of the scores", "scores", "attention weights", "weighted sum"):
        while walk.locator(f".card-step[data-name='{name}']").count() == 0:
            walk.get_by_label("Next step").click()
    other = page.locator(".walk").nth(1)
    other.get_by_role("button", name="recurrent decoder").click()
    while other.locator(".card-step[data-name='update gate']").count() == 0:
        other.get_by_label("Next step").click()
    page.locator(".walk").first.locator(".strip svg").first.focus()
    page.keyboard.press("ArrowRight")
    sync_api.expect(walk.locator(".strip-value").first).to_contain_text("element 1:")
    wait_for_link(page, "walkAt")


def test_sliders_change_distribution_and_translation(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    page = show(text=SENTENCE, view="decoding", decoding="sampling", walkStep=1)
    page.locator("[data-probability='0']").wait_for()
    tokens = [step.token_id for step in runs[0][0].lens(SENTENCE).steps[:1]]
    walk = walk_through(runs[0][0], SENTENCE, tokens)
    settings = {"temperature": 0.7, "topK": 6, "topP": 0.6, "suppressed": list(walk.suppressed)}
    found = page.evaluate(
        "([logits, settings]) => import('/page/sampling.js').then((m) => m.samplingProbabilities(logits, settings))",
        [walk.logits.tolist(), settings],
    )
    logits = walk.logits.clone()
    logits[list(walk.suppressed)] = -torch.inf
    p, _ = truncate((logits / 0.7).softmax(-1)[None], dragoman.Sample(top_k=6, top_p=0.6))
    assert sorted(found, reverse=True)[:8] == pytest.approx((p / p.sum())[0, :8].tolist(), abs=1e-5)
    page.get_by_label("Top-k").focus()
    page.keyboard.press("Home")  # one token remains
    sync_api.expect(page.locator("[data-probability='0']")).to_have_text("100\u00a0%")
    sync_api.expect(page.locator("[data-probability='1']")).to_have_text("left out")
    greedy = runs[0][0].translate([SENTENCE], search=dragoman.Sample(top_k=1), alignment=False)[0].text
    sync_api.expect(page.locator(".decoded tbody th").first).to_contain_text(greedy)
    page.get_by_role("button", name="Reset to the run's defaults").click()
    sync_api.expect(page.get_by_label("Top-k")).to_have_value("51")
    page.get_by_role("button", name="Beam search").click()
    page.get_by_label("Beam size").focus()
    page.keyboard.press("Home")
    sync_api.expect(page.locator(".decoded tbody tr")).to_have_count(1)
    one = runs[0][0].translate([SENTENCE], search=replace(runs[0][0].beam_config(1), n_best=1), alignment=False)[0].text
    sync_api.expect(page.locator(".decoded tbody th")).to_contain_text(one)


# ---- byte-pair encoding


def texts(page: Page, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def test_merges_of_byte_pair_encoding_are_stepped_through(show: Opening) -> None:
    """The classical counts: e s, s t and t </w> occur 9 times each, and the first in the text is merged.

    With each word once, six pairs are tied, and e s is the first in the alphabet.
    """
    page = show(view="bpe", expected="400")  # the answer to an empty text
    expect = sync_api.expect
    expect(page.locator(".bpe tr.chosen .symbol")).to_have_text(["l", "o"])  # the page is complete: nothing moves
    page.get_by_role("button", name="Classical counts").click()
    status = page.locator(".bpe output")
    expect(page.locator(".bpe tr.chosen .symbol")).to_have_text(["e", "s"])
    expect(status).to_have_text("merge 0 of 15")
    assert texts(page, ".bpe tr.tied .symbol") == ["s", "t", "t", "</w>"]
    assert len(texts(page, ".bpe section:has-text('Vocabulary') .symbol")) == 11
    page.get_by_role("button", name="Next merge").click()
    expect(status).to_have_text("merge 1 of 15")
    assert texts(page, ".bpe-headline .symbol") == ["e", "s", "es"]
    assert texts(page, ".bpe section:has-text('Vocabulary') .symbol")[-1] == "es"
    assert texts(page, ".bpe-words li:nth-child(3) .symbol") == ["n", "e", "w", "es", "t", "</w>"]
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    expect(status).to_have_text("merge 5 of 15")
    assert texts(page, ".bpe-segmentation li:last-child .symbol") == ["low", "est</w>"]  # lowest
    page.keyboard.press("ArrowLeft")
    expect(status).to_have_text("merge 4 of 15")
    page.keyboard.press("End")
    expect(page.locator(".bpe-headline")).to_contain_text("Stopped: every word is one symbol")
    page.keyboard.press("Home")
    expect(status).to_have_text("merge 0 of 15")
    page.get_by_label("or at compression").fill("1.2")
    expect(status).to_have_text("merge 0 of 2")
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Last merge").click()
    expect(page.locator(".bpe-headline")).to_contain_text("the compression ratio 1.2 is reached")
    page.get_by_label("or at compression").fill("")
    page.get_by_role("button", name="Each word once").click()
    expect(page.locator(".bpe tr.tied")).to_have_count(5)
    page.get_by_label("Ties").select_option("alphabetical")
    expect(page.locator(".bpe tr.chosen .symbol")).to_have_text(["e", "s"])
    field = page.get_by_label("Learn from")
    field.fill("aab aab")
    expect(page.locator(".bpe tbody tr")).to_have_count(3)
    page.get_by_label("Word", exact=True).fill("abba")
    assert texts(page, ".bpe-segmentation .symbol") == ["a", "b", "b", "a", "</w>"]
    field.fill("x" * 5000)
    assert len(field.input_value()) == 2000
    field.fill(" ")
    expect(page.locator("#bpe-error")).to_contain_text("The text is empty")
    expect(page.locator(".bpe-result")).to_be_hidden()
    wait_for_link(page, "ties=alphabetical")


# ---- two runs, training, positions


def test_two_runs_are_compared(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    page = show(text=SENTENCE)
    page.get_by_label("Compare with").select_option("recurrent")
    results = page.locator(".sentence")
    sync_api.expect(results).to_have_count(2)
    sync_api.expect(results.nth(0)).to_have_text(own(runs, 0))
    sync_api.expect(results.nth(1)).to_have_text(own(runs, 1))
    sync_api.expect(page.locator(".stage")).to_have_count(2)
    page.get_by_role("tab", name="Training").click()
    loss = page.locator("figure", has=page.get_by_role("heading", name="Loss"))
    sync_api.expect(loss.locator(".curve.series0").first).to_be_visible()
    sync_api.expect(loss.locator(".dot.series1").first).to_be_visible()
    page.get_by_role("tab", name="Positions").click()
    sync_api.expect(page.locator("section[data-panel='0'] figure")).not_to_have_count(0)
    sync_api.expect(page.locator("section[data-panel='1'] .empty")).to_contain_text("no position encodings")
    page.get_by_role("tab", name="Layers").click()
    sync_api.expect(page.locator("section[data-panel='0'] .scroll .picture")).to_be_visible()


# ---- links, files


def test_link_restores_the_view(show: Opening) -> None:
    text = f"{SENTENCE} The man sleeps."
    page = show(text=text, compare="recurrent", sentence=1, layer=2, head=1, word="q0", view="attention")
    page.locator(".stage").nth(1).wait_for()
    page.get_by_role("button", name="Copy link").click()
    sync_api.expect(page.locator("#copy")).to_have_text("Copied")
    link = page.evaluate("navigator.clipboard.readText()")
    again = show()
    again.goto(link)
    again.locator(".stage").nth(1).wait_for()
    for one in (page, again):
        sync_api.expect(one.locator(".word.highlighted").first).to_be_visible()
        sync_api.expect(one.locator("#busy")).to_have_text("")
    texts = [one.locator("main").inner_text().replace("Copied", "") for one in (page, again)]
    assert texts[0] == texts[1]
    assert again.locator("#source").input_value() == text


def test_outdated_link_is_explained(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    link = {"run": "gone", "beam": 7, "forced": "0.0-999999", "text": SENTENCE, "view": "probabilities"}
    page = show(expected="status of 400", **link)
    sync_api.expect(page.locator("#notice")).to_contain_text("gone, which is not served here; this is attentive.")
    sync_api.expect(page.locator("#beam")).to_have_value("")
    sync_api.expect(page.locator("#views")).to_contain_text("999999")
    page.get_by_role("button", name="Back to the run's translation").click()
    page.locator(".chip").first.wait_for()
    sync_api.expect(page.locator(".sentence")).to_have_text(own(runs, 0))


def test_figures_are_downloaded_with_title_run_and_sentence(show: Opening, home: str, tmp_path: Path) -> None:
    page, file = show(reduced_motion="reduce"), tmp_path / "figure"
    for view in ("attention", "neurons", "probabilities", "beam", "decoding", "layers", "positions", "training"):
        page.goto("about:blank")
        page.goto(f"{home}#{urlencode({'text': SENTENCE, 'view': view})}")
        page.locator("figure").first.wait_for()
        for number in range(min(5, page.locator("figure").count())):  # Chromium allows ten downloads at once
            figure = page.locator("figure").nth(number)
            with page.expect_download() as saved:
                figure.get_by_role("button", name="SVG").click()
            saved.value.save_as(file)
            assert ElementTree.parse(file).getroot().tag == "{http://www.w3.org/2000/svg}svg", view
            text = file.read_text(encoding="utf-8")
            assert "prefers-color-scheme: dark" in text, view
            assert "var(" not in text, view
            assert figure.locator("h3").text_content() in "".join(ElementTree.parse(file).getroot().itertext())
            if view != "training":  # of all runs
                assert "run: attentive" in text, view
                assert 'aria-label="Legend' in text or 'aria-label="Color scale' in text, view
            if view not in ("positions", "training"):
                assert f"{SENTENCE} →" in text, view
            with page.expect_download() as saved:
                figure.get_by_role("button", name="JSON").click()
            saved.value.save_as(file)
            assert json.loads(file.read_text(encoding="utf-8")), view
    page.goto("about:blank")
    page.goto(f"{home}#{urlencode({'text': SENTENCE, 'view': 'layers'})}")
    with page.expect_download() as saved:
        page.get_by_role("button", name="PNG").click()
    saved.value.save_as(file)
    assert file.read_bytes().startswith(b"\x89PNG")


# ---- what goes wrong


def test_service_errors_are_shown_as_sentences(show: Opening) -> None:
    page = show(text=SENTENCE, expected="status of 400")
    page.locator(".stage").wait_for()
    refused = {"status": 400, "json": {"error": "a request may have 10 characters, but has 27"}}
    page.route("**/v1/stream", lambda route: route.fulfill(**refused), times=1)
    page.locator("#source").fill("The man sees a very long night.")
    sync_api.expect(page.locator("#notice")).to_contain_text("A request may have 10 characters, but has 27.")
    sync_api.expect(page.locator(".sentence")).to_have_count(0)  # nothing is left of the previous text
    sync_api.expect(page.locator(".stage")).to_have_count(0)
    page.get_by_role("button", name="Try again").click()
    page.locator(".stage").wait_for()
    sync_api.expect(page.locator("#notice")).to_be_hidden()


def test_unreachable_service_is_tried_again(show: Opening) -> None:
    page = show(text=SENTENCE, expected="Failed to load resource")
    page.locator(".stage").wait_for()
    page.route("**/v1/**", lambda route: route.abort())
    page.locator("#source").fill("The man sleeps.")
    sync_api.expect(page.locator("#notice")).to_contain_text("cannot be reached")
    sync_api.expect(page.locator("#countdown")).to_contain_text("Trying again in")
    sync_api.expect(page.locator(".sentence")).to_have_count(0)
    page.unroute("**/v1/**")
    page.locator(".stage").wait_for()  # it was tried again
    sync_api.expect(page.locator("#notice")).to_be_hidden()


def test_views_that_failed_are_loaded_again(show: Opening) -> None:
    page = show(text=SENTENCE, expected="Failed to load resource")
    page.locator(".stage").wait_for()
    again = page.get_by_role("button", name="Try again")
    for tab, address, content in (("Walk", "walk", ".card-step"), ("Positions", "runs/*/positions", "#views figure")):
        page.route(f"**/v1/{address}", lambda route: route.abort())
        page.get_by_role("tab", name=tab).click()
        sync_api.expect(page.locator("#views .empty")).to_contain_text("cannot be reached")
        page.unroute(f"**/v1/{address}")
        again.click()
        page.locator(content).first.wait_for()
    page.get_by_role("tab", name="Attention").click()
    page.route("**/v1/lens", lambda route: route.abort())
    page.locator("#source").fill("The man sleeps.")
    sync_api.expect(page.locator("#views .empty")).to_contain_text("cannot be reached")
    page.unroute("**/v1/lens")
    again.click()
    page.locator(".stage").wait_for()


def test_interrupted_stream_is_tried_again(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    page = show(expected="Failed to load resource")
    event = 'event: tokens\ndata: {"sentence": 0, "text": "Der", "tentative_text": ""}\n\n'
    page.route("**/v1/stream", lambda route: route.fulfill(status=200, body=event), times=1)
    page.locator("#source").fill(SENTENCE)
    sync_api.expect(page.locator("#notice")).to_contain_text("The connection was interrupted.")
    sync_api.expect(page.locator(".sentence")).to_have_text(own(runs, 0))  # it was tried again


def test_page_waits_for_a_service_that_starts(show: Opening, home: str) -> None:
    page = show(expected="Failed to load resource")
    page.route("**/v1/runs", lambda route: route.abort(), times=1)
    page.goto("about:blank")
    page.goto(f"{home}#{urlencode({'text': SENTENCE})}")
    sync_api.expect(page.locator("#notice")).to_contain_text("cannot be reached")
    page.locator(".stage").wait_for()
    sync_api.expect(page.locator("#notice")).to_be_hidden()


def test_refused_stream_is_replaced_by_a_plain_request(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    page = show(expected="Failed to load resource")
    busy = {"status": 503, "headers": {"retry-after": "1"}, "json": {"error": "8 translations are being sent already"}}
    page.route("**/v1/stream", lambda route: route.fulfill(**busy))
    page.locator("#source").fill(SENTENCE)
    sync_api.expect(page.locator(".sentence")).to_have_text(own(runs, 0))
    sync_api.expect(page.locator("#notice")).to_be_hidden()
    page.locator(".stage").wait_for()


def test_too_long_sentence_is_explained(show: Opening) -> None:
    page = show(text=" ".join(["the old man and"] * 15), expected="status of 400")
    sync_api.expect(page.locator(".views .empty")).to_contain_text("of at most 40 tokens can be inspected")


def test_page_asks_for_the_api_key(show: Opening, runs: list[tuple[Run, LanguagePair]]) -> None:
    for at in serve_at_address(Service(runs[:1], ServiceLimits(requests_per_minute=0), keys=ApiKeys(["secret"]))):
        page = show(at, expected="status of 403", text=SENTENCE)
        page.get_by_label("This service requires an API key").fill("secret")
        page.keyboard.press("Enter")
        page.locator(".stage").wait_for()
        sync_api.expect(page.locator("#key")).to_be_hidden()
        page.close()


# ---- readers of all kinds


def test_keyboard_navigation(show: Opening) -> None:
    page = show(text=SENTENCE)
    page.locator(".stage").wait_for()
    page.locator("#tab-attention").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    sync_api.expect(page.locator("#tab-probabilities")).to_have_attribute("aria-selected", "true")
    page.locator(".chip").first.wait_for()
    page.keyboard.press("Tab")
    while not page.evaluate("document.activeElement.matches('.chip')"):
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    sync_api.expect(page.locator(".chip").nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    sync_api.expect(page.locator(".option:focus")).to_have_count(1)
    page.keyboard.press("Escape")
    sync_api.expect(page.locator(".choices")).to_have_count(0)
    sync_api.expect(page.locator(".chip").nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator(".chip.forced")).to_have_count(2)
    sync_api.expect(page.locator(".chip").nth(1)).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


CONTRAST = """() => {
  const brightness = (colour) => { const [r, g, b] = colour.map((part) => { const s = part / 255;
    return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const probe = document.body.appendChild(document.createElement('i'));
  const read = (name) => { probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3).map(Number); };
  const ratio = (a, b) => { const [x, y] = [brightness(read(a)), brightness(read(b))].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05); };
  const found = {};
  for (const text of ['ink', 'muted', 'accent', 'cold', 'good'])
    for (const under of ['paper', 'ground', 'wash']) found[`${text} on ${under}`] = ratio(text, under);
  probe.remove(); return found; }"""


def test_accessible_names_and_contrast(show: Opening) -> None:
    page = show(text=SENTENCE, compare="recurrent")
    page.locator(".stage").nth(1).wait_for()
    for name in ("Probabilities", "Beam", "Layers", "Positions", "Training", "BPE", "Attention"):
        page.get_by_role("tab", name=name).click()
        page.locator("figure, .bpe-headline").first.wait_for()
        assert page.evaluate(NAMELESS) == []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert {pair: ratio for pair, ratio in page.evaluate(CONTRAST).items() if ratio < 4.5} == {}, scheme
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(14, 16, 20)") == (scheme == "dark")


def test_theme_and_font_size_are_stored(show: Opening) -> None:
    page = show(text=SENTENCE)
    before = page.locator("#source").evaluate("one => parseFloat(getComputedStyle(one).fontSize)")
    for _ in range(3):
        page.get_by_label("Larger font").click()
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Theme: light").click()
    page.reload()
    sync_api.expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert page.locator("#source").evaluate("one => parseFloat(getComputedStyle(one).fontSize)") > 1.5 * before
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 16, 20)"


def test_no_horizontal_scrolling_on_phones(show: Opening) -> None:
    page = show(text=SENTENCE, compare="recurrent", viewport={"width": 360, "height": 740})
    page.locator(".stage").nth(1).wait_for()
    for name in ("Attention", "Probabilities", "Beam", "Layers", "Positions", "Training", "BPE"):
        page.get_by_role("tab", name=name).click()
        page.locator("figure, .bpe-headline").first.wait_for()
        assert sideways(page) <= 0, name


def test_languages_of_a_multilingual_run_can_be_selected(runs: list[tuple[Run, LanguagePair]], show: Opening) -> None:
    run = copy(runs[0][0])
    codes = LanguageCodes({"eng_Latn": 20, "fra_Latn": 21, "arb_Arab": 22})  # any tokens will do
    run._set_framing(replace(run.model_framing, languages=codes))
    first, second = (run.with_languages("en", to).translate([SENTENCE])[0].text for to in ("fr", "ar"))
    assert first != second
    for home in serve_at_address(Service([(run, None)], ServiceLimits(requests_per_minute=0))):
        page = show(at=home, text=SENTENCE, **{"from": "eng_Latn", "to": "fra_Latn"})
        sync_api.expect(page.locator("#target")).to_contain_text(first)
        assert page.locator("#from option").all_inner_texts()[0] == "English (eng_Latn)"
        page.select_option("#to", "arb_Arab")
        sync_api.expect(page.locator("#target")).to_contain_text(second)
        page.wait_for_url("**to=arb_Arab*")
