"""Looking into sentences of a run: what is seen is what was computed, as data, as text and as pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
import torch

from dragoman.errors import UserError
from dragoman.lens.gradients import measure_gradient_reach
from dragoman.lens.inspection_types import to_jsonable
from dragoman.lens.model_figures import gradients_figure
from dragoman.lens.png import svg_to_png
from dragoman.lens.sentence_figures import alternatives_figure, attention_figure, layers_figure, select_attention
from dragoman.lens.text_view import alternative_lines, attention_lines, entropy_lines, gradient_lines, layer_lines
from dragoman.run import Run
from dragoman.search import Beam, LengthLimit, Sample

SENTENCE = "The dog sees the tree."


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_what_is_found_is_what_is_translated(run: Run) -> None:
    seen, translation = run.lens(SENTENCE), run.translate([SENTENCE])[0]
    assert seen.target is not None
    assert (seen.target.text, seen.finished, seen.from_search) == (translation.text, translation.finished, True)
    assert seen.score == pytest.approx(translation.score, abs=1e-4)
    assert seen.beam is not None
    assert seen.beam.best.score == pytest.approx(translation.score, abs=1e-4)
    pieces = [node.token for node in seen.beam.path(seen.beam.best)]
    assert pieces == list(seen.target.tokens)
    assert seen.alignment == translation.alignment


def test_a_given_translation_looks_the_same_as_the_one_that_was_found(run: Run) -> None:
    """As far as both go: what was cut off by the length limit has no END."""
    found = run.lens(SENTENCE, prefix="DER dog SIEHT DEN tree.", search=Beam(3, length_limit=LengthLimit(0, 24)))
    assert found.target is not None
    given = run.lens(SENTENCE, found.target.text)
    assert given.beam is None
    assert given.target is not None
    size = len(found.target.tokens)
    assert given.target.tokens[:size] == found.target.tokens
    for one, other in zip(found.attention, given.attention, strict=True):
        assert (one.path, one.kind, one.layer) == (other.path, other.kind, other.layer)
        _, rows, columns = one.weights.shape
        assert (one.queries, one.keys) == (other.queries[:rows], other.keys[:columns])
        same(one.weights, other.weights[:, :rows, :columns])
    attention = run.attention(SENTENCE, found.target.text)
    assert found.cross_attention is not None
    assert attention.cross is not None
    same(found.cross_attention, attention.cross[:size])


def test_every_kind_of_attention_has_its_words(run: Run) -> None:
    seen = run.lens(SENTENCE, "DER dog SIEHT DEN tree.")
    assert {looks.kind for looks in seen.attention} == {"encoder", "decoder", "cross"}
    for looks in seen.attention:
        assert looks.weights.shape[1:] == (len(looks.queries), len(looks.keys))
        same(looks.weights.sum(-1), torch.ones(looks.weights.shape[:2]))
        by_hand = -(looks.weights * looks.weights.clamp(min=1e-30).log2()).sum(-1).mean(-1)
        assert list(looks.entropy) == pytest.approx(by_hand.tolist(), abs=1e-4)
    assert seen.attention_of_kind("decoder")[0].keys[0] == "<s>"
    assert seen.target is not None
    assert seen.attention_of_kind("decoder")[0].queries == seen.target.tokens


def test_probabilities_are_the_runs_scores(run: Run) -> None:
    text = "DER dog SIEHT DEN tree."
    seen, scored = run.lens(SENTENCE, text, alternatives=3), run.score([SENTENCE], [text])[0]
    assert [step.token for step in seen.steps] == scored.tokens
    assert [step.log_probability for step in seen.steps] == pytest.approx(scored.token_scores, abs=1e-4)
    assert all(len(step.alternatives) == 3 for step in seen.steps)
    assert seen.layers[-1].steps[0].probability == pytest.approx(seen.steps[0].probability, rel=1e-4)


def test_a_prefix_is_kept_to(run: Run) -> None:
    seen = run.lens(SENTENCE, prefix="EIN man")
    assert seen.target is not None
    assert seen.target.text.startswith("EIN man")
    sampled = run.lens(SENTENCE, search=Sample(n_best=3, seed=1))
    assert sampled.beam is not None
    assert sampled.beam.search == "sample"


def test_all_of_it_is_data(run: Run) -> None:
    document = json.loads(json.dumps(run.lens(SENTENCE).to_dict(), allow_nan=False))
    assert set(document) == {
        "system",
        "checkpoint",
        "source",
        "target",
        "from_search",
        "finished",
        "score",
        "alignment",
        "cross_attention",
        "attention",
        "steps",
        "layers",
        "beam",
    }
    assert math.isclose(sum(document["attention"][0]["weights"][0][0]), 1, abs_tol=1e-4)
    assert to_jsonable(float("-inf")) is None


@pytest.mark.parametrize("system", ["bahdanau", "sutskever", "convs2s", "transformer-d"])
def test_other_systems_can_be_looked_into(make_run: Callable[..., Run], system: str) -> None:
    run = make_run(system, system)
    seen = run.lens(SENTENCE, search=Beam(2))
    assert seen.beam is not None
    assert seen.target is not None
    assert [node.token for node in seen.beam.path(seen.beam.best)] == list(seen.target.tokens)
    kinds = {looks.kind for looks in seen.attention}
    assert (
        kinds == {"bahdanau": {"cross"}, "sutskever": set(), "convs2s": {"cross"}, "transformer-d": {"decoder"}}[system]
    )
    assert (seen.alignment is None) == ("cross" not in kinds)
    for looks in seen.attention:
        assert looks.weights.shape[1:] == (len(looks.queries), len(looks.keys))
    assert json.dumps(seen.to_dict(), allow_nan=False)
    assert layer_lines(seen)
    assert alternative_lines(seen)
    measured = measure_gradient_reach(
        run, [SENTENCE, "The man sees the house."], ["DER dog SIEHT DEN tree.", "DER man."]
    )
    assert set(measured.curves) == (
        {"source", "target"} if system == "transformer-d" else {"encoder", "source", "target"}
    )
    assert gradient_lines(measured)


def test_gradients_are_those_of_the_embeddings(run: Run) -> None:
    """The size at distance 1 of the first word, by changing what stands there a little."""
    text = "DER dog SIEHT DEN tree."
    measured = measure_gradient_reach(run, [SENTENCE] * 3, [text] * 3)
    assert all(point.norm > 0 and point.pairs >= 3 for curve in measured.curves.values() for point in curve)
    assert measured.curves["encoder"][0].distance == 0
    assert measured.curves["target"][0].distance == 1
    assert all(curve[0].relative == 1 for curve in measured.curves.values())
    assert all(weight.grad is None for weight in run.model.parameters()), "nothing is left behind"
    assert "transformer" in gradients_figure([measured, measured], "encoder")


def test_pictures_and_words_of_a_sentence(run: Run) -> None:
    seen = run.lens(SENTENCE)
    pictures = [
        attention_figure(seen, select_attention(seen)),
        attention_figure(seen, select_attention(seen, "cross", 1, 2), 2),
        alternatives_figure(seen),
        layers_figure(seen),
    ]
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.get("role") == "img"
        assert "var(" not in picture, "not all who draw SVG know variables"
    assert attention_lines(seen.attention)
    assert len(entropy_lines(seen.attention)) == 2 + len(seen.attention)


def test_a_picture_can_be_a_png(run: Run) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    assert matplotlib
    picture = layers_figure(run.lens(SENTENCE))
    light, dark = svg_to_png(picture), svg_to_png(picture, dark=True)
    assert light.startswith(b"\x89PNG")
    assert light != dark
    width = round(float(ElementTree.fromstring(picture).get("width", "0")))
    assert int.from_bytes(light[16:20], "big") == pytest.approx(2 * width, abs=2)


def test_what_cannot_be_looked_into_is_refused(run: Run, make_run: Callable[..., Run]) -> None:
    with pytest.raises(UserError, match="has words"):
        run.lens("  ")
    with pytest.raises(UserError, match="not searched for"):
        run.lens(SENTENCE, "DER dog.", search=Beam(2))
    with pytest.raises(UserError, match="at least 1 alternative"):
        run.lens(SENTENCE, alternatives=0)
    seen = run.lens(SENTENCE, "DER dog.")
    with pytest.raises(UserError, match="no such attention in transformer: it has encoder 1, decoder 1, cross 1"):
        select_attention(seen, layer=7)
    with pytest.raises(UserError, match="numbered from 1 to 2"):
        select_attention(seen, head=3)
