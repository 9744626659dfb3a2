"""Looking into sentences of a run: what is inspection is what was computed, as data, as text and as pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

from dragoman.cli import app
from dragoman.errors import UserError
from dragoman.lens.beam_recorder import recorded_search, recorded_searches
from dragoman.lens.figures import (
    alternatives_figure,
    attention_figure,
    gradients_figure,
    layers_figure,
    select_attention,
)
from dragoman.lens.gradients import measure_gradient_reach
from dragoman.lens.inspection_types import to_jsonable
from dragoman.lens.svg import svg_to_png
from dragoman.lens.text_view import (
    alternative_lines,
    attention_lines,
    entropy_lines,
    expert_lines,
    gradient_lines,
    layer_lines,
)
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.run import Run
from dragoman.search import Beam, LengthLimit, Sample
from dragoman.search.constraints import NO_CONSTRAINTS

SENTENCE = "The dog sees the tree."


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_searches_of_a_batch_are_recorded_like_single_ones(run: Run) -> None:
    sources = run.encode_sources([SENTENCE, "Anna reads.", "The man sleeps and the woman reads a long book."])
    search = Beam(3, length_limit=LengthLimit(max=9))
    together = recorded_searches(run, *run.pad_batch(sources), search, NO_CONSTRAINTS)
    for source, (best, tree) in zip(sources, together, strict=True):
        alone, single_tree = recorded_search(run, *run.pad_batch([source]), search, NO_CONSTRAINTS)
        assert best.tokens == alone.tokens
        kept, expected = (
            [(node.parent, node.token_id, node.status, node.rank) for node in one.nodes if node.status != "pruned"]
            for one in (tree, single_tree)
        )
        assert len(kept) > 3
        assert kept == expected


def test_searched_translation_equals_translate(run: Run) -> None:
    inspection, translation = run.lens(SENTENCE), run.translate([SENTENCE])[0]
    assert inspection.target is not None
    assert (inspection.target.text, inspection.finished, inspection.from_search) == (
        translation.text,
        translation.finished,
        True,
    )
    assert inspection.score == pytest.approx(translation.score, abs=1e-4)
    assert inspection.beam is not None
    assert inspection.beam.best.score == pytest.approx(translation.score, abs=1e-4)
    pieces = [node.token for node in inspection.beam.path(inspection.beam.best)]
    assert pieces == list(inspection.target.tokens)
    assert inspection.alignment == translation.alignment


def test_given_and_searched_translation_have_equal_attention(run: Run) -> None:
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


def test_attention_maps_have_labels_and_entropy(run: Run) -> None:
    inspection = run.lens(SENTENCE, "DER dog SIEHT DEN tree.")
    assert {looks.kind for looks in inspection.attention} == {"encoder", "decoder", "cross"}
    for looks in inspection.attention:
        assert looks.weights.shape[1:] == (len(looks.queries), len(looks.keys))
        same(looks.weights.sum(-1), torch.ones(looks.weights.shape[:2]))
        by_hand = -(looks.weights * looks.weights.clamp(min=1e-30).log2()).sum(-1).mean(-1)
        assert list(looks.entropy) == pytest.approx(by_hand.tolist(), abs=1e-4)
    assert inspection.attention_of_kind("decoder")[0].keys[0] == "<s>"
    assert inspection.target is not None
    assert inspection.attention_of_kind("decoder")[0].queries == inspection.target.tokens


def test_probabilities_equal_scores_of_the_run(run: Run) -> None:
    text = "DER dog SIEHT DEN tree."
    inspection, scored = run.lens(SENTENCE, text, alternatives=3), run.score([SENTENCE], [text])[0]
    assert [step.token for step in inspection.steps] == scored.tokens
    assert [step.log_probability for step in inspection.steps] == pytest.approx(scored.token_scores, abs=1e-4)
    assert all(len(step.alternatives) == 3 for step in inspection.steps)
    assert inspection.layers[-1].steps[0].probability == pytest.approx(inspection.steps[0].probability, rel=1e-4)


def test_prefix_is_respected(run: Run) -> None:
    inspection = run.lens(SENTENCE, prefix="EIN man")
    assert inspection.target is not None
    assert inspection.target.text.startswith("EIN man")
    sampled = run.lens(SENTENCE, search=Sample(n_best=3, seed=1))
    assert sampled.beam is not None
    assert sampled.beam.search == "sample"


def test_inspection_as_json(run: Run) -> None:
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
        "experts",
        "generation_probs",
    }
    assert math.isclose(sum(document["attention"][0]["weights"][0][0]), 1, abs_tol=1e-4)
    assert to_jsonable(float("-inf")) is None


@pytest.mark.parametrize("system", ["bahdanau", "sutskever", "convs2s", "transformer-d"])
def test_inspection_of_other_systems(make_run: Callable[..., Run], system: str) -> None:
    run = make_run(system, system)
    inspection = run.lens(SENTENCE, search=Beam(2))
    assert inspection.beam is not None
    assert inspection.target is not None
    assert [node.token for node in inspection.beam.path(inspection.beam.best)] == list(inspection.target.tokens)
    kinds = {looks.kind for looks in inspection.attention}
    assert (
        kinds == {"bahdanau": {"cross"}, "sutskever": set(), "convs2s": {"cross"}, "transformer-d": {"decoder"}}[system]
    )
    assert (inspection.alignment is None) == ("cross" not in kinds)
    for looks in inspection.attention:
        assert looks.weights.shape[1:] == (len(looks.queries), len(looks.keys))
    assert json.dumps(inspection.to_dict(), allow_nan=False)
    assert layer_lines(inspection)
    assert alternative_lines(inspection)
    measured = measure_gradient_reach(
        run, [SENTENCE, "The man sees the house."], ["DER dog SIEHT DEN tree.", "DER man."]
    )
    assert set(measured.curves) == (
        {"source", "target"} if system == "transformer-d" else {"encoder", "source", "target"}
    )
    assert gradient_lines(measured)


def test_gradients_of_a_language_model_reach_back_in_the_text(make_run: Callable[..., Run]) -> None:
    run = make_run("alone", "transformer-d")
    measured = measure_gradient_reach(run, None, ["DER dog SIEHT DEN tree."] * 3)
    assert (set(measured.curves), measured.sentences) == ({"target"}, 3)
    assert measured.curves["target"][0].distance == 1


def test_gradient_reach_has_curves_by_distance(run: Run) -> None:
    """The size at distance 1 of the first word, by changing what stands there a little."""
    text = "DER dog SIEHT DEN tree."
    measured = measure_gradient_reach(run, [SENTENCE] * 3, [text] * 3)
    assert all(point.norm > 0 and point.pairs >= 3 for curve in measured.curves.values() for point in curve)
    assert measured.curves["encoder"][0].distance == 0
    assert measured.curves["target"][0].distance == 1
    assert all(curve[0].relative == 1 for curve in measured.curves.values())
    assert all(weight.grad is None for weight in run.model.parameters()), "nothing is left behind"
    assert "transformer" in gradients_figure([measured, measured], "encoder")


def test_figures_and_text_of_an_inspection(run: Run) -> None:
    inspection = run.lens(SENTENCE)
    pictures = [
        attention_figure(inspection, select_attention(inspection)),
        attention_figure(inspection, select_attention(inspection, "cross", 1, 2), 2),
        alternatives_figure(inspection),
        layers_figure(inspection),
    ]
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.get("role") == "img"
        assert "var(" not in picture, "not all who draw SVG know variables"
    assert attention_lines(inspection.attention)
    assert len(entropy_lines(inspection.attention)) == 2 + len(inspection.attention)


def test_figure_as_png(run: Run) -> None:
    pytest.importorskip("resvg_py")
    picture = layers_figure(run.lens(SENTENCE))
    light, dark = svg_to_png(picture), svg_to_png(picture, dark=True)
    assert light.startswith(b"\x89PNG")
    assert light != dark
    width = round(float(ElementTree.fromstring(picture).get("width", "0")))
    assert int.from_bytes(light[16:20], "big") == pytest.approx(2 * width, abs=2)


def test_invalid_inspections_are_rejected(run: Run, make_run: Callable[..., Run]) -> None:
    with pytest.raises(UserError, match="sentence is empty"):
        run.lens("  ")
    with pytest.raises(UserError, match="none is searched"):
        run.lens(SENTENCE, "DER dog.", search=Beam(2))
    with pytest.raises(UserError, match=r"alternatives, .* must be at least 1"):
        run.lens(SENTENCE, alternatives=0)
    inspection = run.lens(SENTENCE, "DER dog.")
    with pytest.raises(
        UserError, match="no attention of the requested kind and layer: choose one of encoder 1, decoder 1, cross 1"
    ):
        select_attention(inspection, layer=7)
    with pytest.raises(UserError, match="choose one from 1 to 2"):
        select_attention(inspection, head=3)


# ---- experts


@torch.no_grad()
def test_experts_of_a_sentence_are_those_of_the_router(experts_run: Run) -> None:
    """Two of four for each token: the largest scores after the first layer, by their softmax; read from the inputs."""
    inspection = experts_run.lens(SENTENCE, "DER dog SIEHT DEN tree.")
    assert inspection.source is not None
    assert inspection.target is not None
    encoder, decoder = inspection.experts
    assert encoder.tokens == inspection.source.tokens
    assert decoder.tokens == ("<s>", *inspection.target.tokens[:-1])
    for layer in (encoder, decoder):
        assert layer.gates.shape == (len(layer.tokens), 4)
        same(layer.gates.sum(-1), torch.ones(len(layer.tokens)))
        assert ((layer.gates > 0).sum(-1) == 2).all()
    model, (ids,) = experts_run.model, experts_run.encode_sources([SENTENCE])
    context = Context(SequenceLayout.padded(len(ids), torch.tensor([len(ids)])))
    x = model.encoder.layers[0][0](model.source_embedding(torch.tensor([ids])), context).output[0]
    scores = x @ model.encoder.layers[0][1].body.router.weight.T
    kept = scores.masked_fill(scores < scores.sort(descending=True).values[:, 1:2], -torch.inf)
    same(encoder.gates, kept.softmax(-1))
    lines = expert_lines(inspection.experts)
    assert lines[0] == "encoder layer 1: mixture of experts, 4 experts"
    best = int(encoder.gates[0].argmax())
    assert f" {best + 1} ({100 * encoder.gates[0, best]:.1f}%)" in lines[1]


def test_show_experts(experts_run: Run, run: Run, tmp_path: Path) -> None:
    arguments = ["show", "experts", str(experts_run.folder), SENTENCE, "--device", "cpu"]
    answer = CliRunner().invoke(app, [*arguments, "--json", "--svg", str(tmp_path / "experts.svg")])
    assert [len(layer["gates"][0]) for layer in json.loads(answer.stdout)["experts"]] == [4, 4]
    for name in ("experts.svg", "experts-2.svg"):
        drawn = (tmp_path / name).read_text(encoding="utf-8")
        ElementTree.fromstring(drawn)
        assert "% of its gates" in drawn
    with pytest.raises(UserError, match="has no mixtures of experts"):
        app(["show", "experts", str(run.folder), SENTENCE, "--device", "cpu"], standalone_mode=False)


def test_copying_is_visible(make_run: Callable[..., Run]) -> None:
    run = make_run(interrupted=True, settings={"copying": True})
    source, target = "The man sees the dog.", "DER man SIEHT DEN dog."
    inspection = run.lens(source, target)
    assert len(inspection.generation_probs) == len(inspection.steps)
    assert all(0 < p_gen < 1 for p_gen in inspection.generation_probs)
    assert inspection.attention_of_kind("cross")[-1].path == "output.pointer"
    assert inspection.score == pytest.approx(run.score([source], [target])[0].score, abs=1e-3)
    assert inspection.alignment == (run.align([source], [target]) or [])[0]
    shown = [line for line in alternative_lines(inspection) if "p_gen" in line]
    assert len(shown) == len(inspection.steps)
    assert f"p_gen {100 * inspection.generation_probs[0]:5.1f}%" in shown[0]
