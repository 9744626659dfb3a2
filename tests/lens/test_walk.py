"""A walk through a model shows the numbers of the model: each step follows from the ones before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from dragoman.cli import app
from dragoman.config import Config
from dragoman.errors import UserError
from dragoman.lens.saliency import measure_saliency
from dragoman.lens.walk import MAX_KEYS, Walk, WalkStep, walk_through
from dragoman.parts.attention import SelfAttention
from dragoman.parts.attention_quantities import term_quantity
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.parts.norm import RMSNorm
from dragoman.parts.positions import Rotary
from dragoman.parts.tracing import Trace
from dragoman.run import Run, load
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import learn_tokenizer

SENTENCE = "The dog sees the tree."
OTHER_SYSTEMS = [
    "luong",
    "sutskever",
    "gnmt",
    "convs2s",
    "bytenet",
    "t5",
    "moe-2017",
    "transformer-d",
    "gpt",
    "shaw",
    "cho",
    "unilm",
    "unilm-masked",
]


def same(one: Tensor, other: Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


@pytest.fixture(scope="module")
def recurrent_run(make_run: Callable[..., Run]) -> Run:
    return make_run(system="bahdanau")


@pytest.fixture
def make_text_run(tmp_path: Path) -> Callable[[str], Run]:
    """Trains a small model of text for a few steps."""

    def make(system: str) -> Run:
        file = tmp_path / "text.en"
        nouns = ["man", "dog", "house", "tree", "book"]
        file.write_text("".join(f"The {a} sees the {b}.\n" for a in nouns for b in nouns), encoding="utf-8")
        settings = ["system.settings.model_dim=16", "training.batch_tokens=256", "text.vocab_size=330"]
        options = [part for setting in settings for part in ("--set", setting)]
        arguments = ["train", str(tmp_path / "run"), "--source", str(file), "--valid-source", str(file)]
        arguments += ["--system", system, "--steps", "4"]
        result = CliRunner().invoke(app, [*arguments, "--device", "cpu", *options])
        assert result.exit_code == 0, result.output
        return load(tmp_path / "run", device="cpu")

    return make


def by_name(walk: Walk, place: str) -> dict[str, WalkStep]:
    """The steps of a layer."""
    return {step.name: step for step in walk.steps if step.place == place}


def prefix_of(run: Run, count: int) -> list[int]:
    return [step.token_id for step in run.lens(SENTENCE).steps[:count]]


def check_attention(steps: dict[str, WalkStep], recorded: Sequence[float] | Tensor) -> None:
    """Terms sum to scores, scores give the weights that an inspection has recorded, weights give the weighted sum."""
    scores, weights = steps["scores"].values, steps["attention weights"].values
    same(steps["terms of the scores"].values.sum(-1), scores)
    masked = scores if "mask" not in steps else scores.masked_fill(steps["mask"].values == 0, -torch.inf)
    same(masked.softmax(-1), weights)
    same(weights, torch.as_tensor(recorded))
    same(weights @ steps["values"].values, steps["weighted sum"].values)


@pytest.mark.parametrize("head", [1, 2])
def test_transformer(run: Run, head: int) -> None:
    inspection, tokens = run.lens(SENTENCE), prefix_of(run, 3)
    walk = walk_through(run, SENTENCE, tokens, position=1, head=head)
    assert walk.num_heads == 2
    assert inspection.source is not None
    assert walk.source == inspection.source.tokens
    rows = {"encoder": 1, "cross": 3, "decoder": 3}
    for kind, place in [
        ("encoder", "encoder layer 1: self-attention"),
        ("decoder", "decoder layer 1: self-attention"),
        ("cross", "decoder layer 1: cross-attention"),
    ]:
        (attention,) = (found for found in inspection.attention if found.kind == kind)
        steps = by_name(walk, place)
        recorded = attention.weights[head - 1, rows[kind]]
        check_attention(steps, recorded[: len(steps["scores"].keys)])
        same(
            steps["scores"].values, steps["keys"].values @ steps["query"].values / steps["query"].values.shape[0] ** 0.5
        )
        joined, output = steps["all heads joined"].values, steps["output of the attention"].values
        width = len(steps["weighted sum"].values)
        same(joined[(head - 1) * width : head * width], steps["weighted sum"].values)
        assert output.shape == (16,)
    network = by_name(walk, "decoder layer 1: feed-forward network")
    before = by_name(walk, "decoder layer 1: cross-attention")
    last = before.get("normalized sum", before["residual sum"]).values
    same(last + network["output of the network"].values, network["residual sum"].values)


def test_recurrent_decoder_with_attention(recurrent_run: Run) -> None:
    inspection, tokens = recurrent_run.lens(SENTENCE), prefix_of(recurrent_run, 2)
    walk = walk_through(recurrent_run, SENTENCE, tokens)
    steps = by_name(walk, "decoder layer 1: recurrent decoder")
    check_attention(steps, inspection.attention_of_kind("cross")[0].weights[0, 2])
    z, previous = steps["update gate"].values, steps["previous state"].values
    same((1 - z) * steps["candidate"].values + z * previous, steps["new state"].values)
    assert {"forward state", "backward state"} <= by_name(walk, "encoder layer 1: recurrent layer").keys()
    assert steps["keys"].formula == "U h"
    assert steps["scores"].formula == "v·tanh(W s + U h)"
    assert steps["terms of the scores"].formula == "v ⊙ tanh(W s + U h)"
    assert steps["update gate"].formula == "z = σ(W_z x + U_z h)"
    assert steps["new state"].formula == "sᵢ = (1 − z) ⊙ n + z ⊙ h"


def untrained(system: str, **settings: int) -> Run:
    """A run of a model with random weights, whose vocabulary is the words of the sentence."""
    tokenizer = learn_tokenizer([SENTENCE], "word", 20)
    vocabulary = VocabularySizes(tokenizer.vocab_size, tokenizer.vocab_size, joint=True)
    spec = SYSTEMS[system].spec(vocabulary, "tiny", model_dim=8, layers=2, heads=2, **settings)
    model = spec.build().eval()
    return Run(Path("untrained"), Config(), model, tokenizer, tokenizer, spec.default_framing, "last")


def test_layers_of_one_block_are_told_apart() -> None:
    """Local and compressed attention and their feed-forward networks are the parts of one block."""
    places = dict.fromkeys(step.place for step in walk_through(untrained("transformer-dmca"), SENTENCE).steps)
    kinds = ("long attention", "feed-forward network")
    assert list(places)[1:] == [f"decoder layer {number}: {kind}" for number in (1, 2) for kind in kinds]


def test_detector_of_replaced_tokens() -> None:
    """The probability that a token was replaced is the sigmoid of the only output."""
    electra = untrained("electra")
    inspection = electra.lens(SENTENCE)
    assert inspection.source is not None
    ids = torch.tensor([electra.encode_sources([SENTENCE])[0]])
    with torch.no_grad():
        replaced = electra.model(ids, torch.tensor([ids.shape[1]]))[0, :, 0].sigmoid()
    for position, probability in enumerate(replaced.tolist()):
        expected = {"replaced": probability, "original": 1 - probability}
        walk = walk_through(electra, SENTENCE, position=position)
        assert {one.token: one.probability for one in walk.candidates} == pytest.approx(expected)
        alternatives = inspection.steps[position].alternatives
        assert {one.token: one.probability for one in alternatives} == pytest.approx(expected)
    check_attention(
        by_name(walk, "encoder layer 2: self-attention"), inspection.attention_of_kind("encoder")[1].weights[0, -1]
    )


def test_prediction_at_a_mask() -> None:
    """UniLM's walk follows the mask, which attends to all tokens and to itself; its tokens predict nothing."""
    run = untrained("unilm-masked")
    inspection = run.lens(SENTENCE, "The tree.")
    walk = walk_through(run, SENTENCE, [inspection.steps[0].token_id])
    probabilities = {found.token_id: found.probability for found in walk.candidates}
    best = inspection.steps[1].alternatives[0]
    assert probabilities[best.token_id] == pytest.approx(best.probability, rel=1e-3)
    steps = by_name(walk, "decoder layer 2: self-attention")
    check_attention(steps, steps["attention weights"].values)
    assert steps["attention weights"].key_labels == (*walk.source, *walk.inputs, "<mask>", "<mask>")
    assert (steps["attention weights"].values > 0).tolist() == [True] * (len(walk.source) + 2) + [False, True]
    decoder = inspection.attention_of_kind("decoder")[0]
    assert decoder.queries == decoder.keys == (*walk.source, *walk.inputs, *decoder.keys[-2:])
    saliency = measure_saliency(run, SENTENCE, "The tree.")
    assert saliency.target.shape == (len(saliency.target_tokens), len(saliency.input_tokens))
    same(saliency.source.sum(1) + saliency.target.sum(1), torch.ones(len(saliency.target_tokens)))


def test_keys_of_compressed_attention_are_labeled_with_all_their_tokens() -> None:
    """The first is the key of zeros; each of the others belongs to two tokens. The layer before has a key per token."""
    walk = walk_through(untrained("transformer-dmca", stride=2), SENTENCE)
    tokens = (*walk.source, *walk.inputs)
    pairs = ("(zero)", *("".join(pair) for pair in zip(tokens[::2], tokens[1::2])))
    steps = [step for step in walk.steps if step.keys]
    assert list({step.path: step.key_labels for step in steps}.values()) == [tokens, pairs]
    assert all(len(step.key_labels) == len(step.values) for step in steps)


def test_formulas_are_those_of_the_layer(run: Run) -> None:
    steps = by_name(walk_through(run, SENTENCE), "decoder layer 1: cross-attention")
    names = ("query", "keys", "values", "scores", "terms of the scores")
    assert [steps[name].formula for name in names] == [
        "norm(W_Q x + b_Q)",
        "norm(W_K h + b_K)",
        "W_V h + b_V",
        "q·k / √d",
        "q ⊙ k / √d",
    ]
    network = by_name(walk_through(run, SENTENCE), "decoder layer 1: feed-forward network")
    assert network["hidden units"].formula == "silu(W₁ x) ⊙ g"


def test_formulas_name_gates_norms_and_rotations() -> None:
    spec = SelfAttention(heads=2, bias=False, qk_norm=RMSNorm(), position=Rotary(), scale=0.25)
    layers = [spec, FeedForward(inner_dim=6, activation="silu", gated=True, bias=False)]
    trace = Trace()
    for number, layer in enumerate(layers):
        module = layer.build(8).eval()
        module.path = str(number)
        module(torch.randn(1, 3, 8), Context(layout=SequenceLayout.padded(3, torch.tensor([3])), recorder=trace))
    found = {(path, name): value for (path, name), value in trace.results.items()}
    assert [found["0", name].quantity.formula for name in ("query", "keys", "values", "scores")] == [
        "R(position) norm(W_Q x)",
        "R(position) norm(W_K x)",
        "W_V x",
        "0.25 q·k",
    ]
    assert term_quantity(found["0", "scores"].quantity).formula == "0.25 q ⊙ k"
    assert found["1", "gate"].quantity.formula == "g = V x"
    assert found["1", "hidden units"].quantity.formula == "silu(W₁ x) ⊙ g"
    gate, hidden = found["1", "gate"].value, found["1", "hidden units"].value
    assert gate.shape == hidden.shape == (1, 3, 6)


def test_distribution_is_that_of_the_search(run: Run, recurrent_run: Run) -> None:
    for searched in (run, recurrent_run):
        inspection = searched.lens(SENTENCE)
        assert inspection.beam is not None
        path = inspection.beam.path(inspection.beam.best)
        for number in (0, 2):
            tokens = [node.token_id for node in path[:number]]
            walk = walk_through(searched, SENTENCE, tokens)
            (candidate,) = (found for found in walk.candidates if found.token_id == path[number].token_id)
            assert candidate.probability == pytest.approx(math.exp(path[number].log_probability), rel=1e-3)
            assert walk.logits.softmax(-1).sum() == pytest.approx(1)
            assert (walk.logits.diff() <= 0).all()
            assert walk.candidates[0].logit == pytest.approx(float(walk.logits[0]))


def test_matrices_are_bounded(run: Run) -> None:
    walk = walk_through(run, "The dog sees the tree. " * 8)
    steps = by_name(walk, "encoder layer 1: self-attention")
    assert len(steps["scores"].values) == len(walk.source) > MAX_KEYS
    weights = steps["attention weights"].values
    assert len(steps["keys"].values) == MAX_KEYS
    assert weights[list(steps["keys"].keys)].sum() == pytest.approx(float(weights.topk(MAX_KEYS).values.sum()))


def test_wrong_arguments_are_explained(run: Run) -> None:
    with pytest.raises(UserError, match="head must be from 1 to 2, but is 3"):
        walk_through(run, SENTENCE, head=3)
    with pytest.raises(UserError, match="position must be from 0 to"):
        walk_through(run, SENTENCE, position=99)
    with pytest.raises(UserError, match="contain the id 99999"):
        walk_through(run, SENTENCE, [99999])
    with pytest.raises(UserError, match="source sentence is empty"):
        walk_through(run, " ")


@pytest.mark.slow
@pytest.mark.parametrize("system", OTHER_SYSTEMS)
def test_every_system_has_a_walk(make_run: Callable[..., Run], system: str) -> None:
    other = make_run(system=system)
    inspection = other.lens(SENTENCE)
    tokens = [step.token_id for step in inspection.steps[:2]]
    walk = walk_through(other, SENTENCE, tokens)
    step = inspection.steps[2]
    (candidate,) = (found for found in walk.candidates if found.token_id == step.token_id)
    assert candidate.probability == pytest.approx(step.probability, rel=1e-3)
    assert walk.steps
    for place in {step.place for step in walk.steps}:
        steps = by_name(walk, place)
        if "scores" in steps and "position bias" not in steps:
            check_attention(steps, steps["attention weights"].values)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["gpt", "rnn-lm", "bert", "electra"])
def test_walk_of_a_model_of_text(make_text_run: Callable[[str], Run], system: str) -> None:
    model_of_text = make_text_run(system)
    inspection = model_of_text.lens(SENTENCE)
    if inspection.source is None:
        walk = walk_through(model_of_text, None, [step.token_id for step in inspection.steps[:2]])
        step = inspection.steps[2]
    else:
        walk = walk_through(model_of_text, SENTENCE, position=2)
        step = inspection.steps[2]
    probabilities = {found.token_id: found.probability for found in walk.candidates}
    assert probabilities[step.alternatives[0].token_id] == pytest.approx(step.alternatives[0].probability, rel=1e-3)
