"""The laws of the lens, for every system: what is shown is what was computed, and looking changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from small import SYMBOLS, TOLERANCE, every_system, every_writer, pairs, small_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dragoman.lens.axes import evenly_spaced
from dragoman.lens.beam_recorder import RecordingStrategy, assign_ranks
from dragoman.lens.layer_names import layer_name
from dragoman.lens.position_encodings import position_encodings
from dragoman.lens.sentence_inspector import record_forward, token_predictions
from dragoman.models import Model
from dragoman.parts import attention, convolution, recurrent_decoder
from dragoman.parts import long_attention as compressed
from dragoman.parts.attention_function import AttentionArgs
from dragoman.parts.attention_scores import AdditiveScore, ConcatScore, TanhProductScore
from dragoman.parts.hard_alignment import HardAlignmentLayer
from dragoman.parts.long_attention import LocalAttentionMixer
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.parts.positions import ShawKeys
from dragoman.parts.stack import StackMixer
from dragoman.parts.tracing import Trace
from dragoman.search import Beam, LengthLimit, Sample, build_engine
from dragoman.search.forced_decoding import token_scores


def first_pair(variant: str, model: Model) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    p = pairs(variant)
    target = p.target[:1] if model.can_generate else p.target[:1, :0]
    return p.source[:1], p.source_lengths[:1], target, torch.tensor([target.shape[1]])


@dataclass
class Call:
    """What one attention was asked, and what it answered with nobody looking."""

    query: Tensor
    key: Tensor
    queries: SequenceLayout
    keys: SequenceLayout
    look: AttentionArgs
    context: Context
    kernel: Tensor | None  # the weights as PyTorch's kernel has them


@contextmanager
def overheard() -> Iterator[list[Call]]:
    """Every call of `attend`. That the answer is the same without a recorder is checked on the way."""
    calls: list[Call] = []
    original = attention.attend

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_layout: Any,
        key_layout: Any,
        context: Context,
        args: AttentionArgs,
    ) -> Tensor:
        queries, keys, look = query_layout, key_layout, args
        plain = replace(context, recorder=None)
        answer = original(query, key, value, queries, keys, context, look)
        torch.testing.assert_close(answer, original(query, key, value, queries, keys, plain, look), **TOLERANCE)
        kernel = None
        if look.score is None and not any(isinstance(part, ShawKeys) for part in look.positions):
            identity = torch.eye(key.shape[2]).expand(*key.shape[:2], -1, -1)  # what comes out are the weights
            kernel = original(query, key, identity, queries, keys, plain, look)
        calls.append(Call(query, key, queries, keys, look, context, kernel))
        return answer

    with (
        patch.object(attention, "attend", attend),
        patch.object(recurrent_decoder, "attend", attend),
        patch.object(convolution, "attend", attend),
        patch.object(compressed, "attend", attend),
    ):
        yield calls


def by_hand(call: Call) -> Tensor:
    """softmax of the scores, B H T S, written out."""
    query, key = call.query, call.key
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    score, scale = call.look.score, call.look.scale or 1 / math.sqrt(query.shape[-1])
    if isinstance(score, TanhProductScore):  # an additive score as well; the keys are tanh(U k)
        scores = torch.einsum("a,bhta,bhsa->bhts", score.value.weight[0], (query @ score.query.weight.T).tanh(), key)
    elif isinstance(score, (AdditiveScore, ConcatScore)):
        matrix = score.query.weight if isinstance(score, AdditiveScore) else score.both.weight[:, : query.shape[-1]]
        inner = torch.tanh((query @ matrix.T)[..., :, None, :] + key[..., None, :, :])
        scores = (inner * score.value.weight[0]).sum(-1)
    elif score is not None:
        scaled = type(score).__name__ == "ScaledDotScore"
        scores = torch.einsum("bhte,bhse->bhts", query, key) * (1 / math.sqrt(query.shape[-1]) if scaled else 1.0)
    else:
        scores = torch.einsum("bhte,bhse->bhts", query, key) * scale
    i, j = call.queries.encoded_positions, call.keys.encoded_positions
    for part in call.look.positions:
        if isinstance(part, ShawKeys):
            away = (j[:, None, :] - i[:, :, None]).clamp(-part.clip, part.clip) + part.clip
            scores = scores + torch.einsum("bhte,btse->bhts", query, part.keys.weight[away]) * scale
        elif (bias := part.score_bias(call.query * scale, i, j)) is not None:
            scores = scores + bias
    if call.look.visibility is not None:
        scores = scores.masked_fill(~call.look.visibility.mask(i, j, call.context)[:, None], -torch.inf)
    return scores.softmax(-1)


@every_system
@torch.no_grad()
def test_attention_is_what_was_computed_and_its_rows_sum_to_one(variant: str) -> None:
    model = small_model(variant)
    with overheard() as calls:
        done = record_forward(model, *first_pair(variant, model))
    if not done.attention_weights:
        assert not calls, "there was attention that nobody wrote down"
        return
    computed: dict[str, list[Tensor]] = {}
    for call in calls:
        expected = by_hand(call)
        computed.setdefault(call.look.path, []).append(expected)
        if call.kernel is not None:
            torch.testing.assert_close(call.kernel, expected, **TOLERANCE)
    for path, weights in done.attention_weights.items():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), **TOLERANCE)
        if isinstance(dict(model.named_modules()).get(path), HardAlignmentLayer):
            continue  # a distribution over alignments, which tests/parts/test_hard_alignment.py enumerates
        if path == "output.pointer":  # computed by the output layer itself, not by `attend`
            computed[path] = [copy_attention_by_hand(model, *first_pair(variant, model))]
        expected = torch.cat(computed[path], 2)[0]
        if model.predicts_masks:  # the attention of masks, which come last, is left out
            expected = expected[..., : weights.shape[-2], : weights.shape[-1]]
        torch.testing.assert_close(weights, expected, **TOLERANCE)


def copy_attention_by_hand(model: Any, source: Tensor, lengths: Tensor, target: Tensor, _: Tensor) -> Tensor:
    """B 1 T S: softmax of s_t·W h_i / √D over the tokens of the source, which are the first positions of the memory."""
    memory = model.encode(source, SequenceLayout.padded(source.shape[1], lengths))
    context = Context(SequenceLayout.padded(target.shape[1], torch.tensor([target.shape[1]])), memory)
    states = model.decoder(model.target_embedding(target), context).output
    keys = memory.states[:, : source.shape[1]] @ model.output.pointer.key.weight.T
    weights = torch.einsum("btd,bsd->bts", states, keys).div(math.sqrt(states.shape[-1])).softmax(-1)
    return torch.nn.functional.pad(weights, (0, memory.states.shape[1] - source.shape[1]))[:, None]


@every_system
@torch.no_grad()
def test_what_is_recorded_has_a_name(variant: str) -> None:
    """Every recorded layer is found by its path in the model, and no two parts of a stack have one name."""
    model, trace = small_model(variant), Trace()
    source, lengths, target, target_lengths = first_pair(variant, model)
    source_layout = SequenceLayout.padded(source.shape[1], lengths)
    model.forward_features(source, source_layout, target, SequenceLayout.padded(target.shape[1], target_lengths), trace)
    assert trace.results
    for path in {*trace, *(path for path, _ in trace.results)}:
        assert layer_name(model, path)
    for path, stack in model.named_modules():
        if isinstance(stack, StackMixer):
            names = [layer_name(model, f"{path}.layers.{name}") for name, _ in stack.named_layers()]
            assert len(set(names)) == len(names)


@every_writer
@torch.no_grad()
def test_attention_of_decoding_equals_teacher_forcing(variant: str) -> None:
    model = small_model(variant)
    source, lengths, target, target_lengths = first_pair(variant, model)
    whole = record_forward(model, source, lengths, target, target_lengths).attention_weights
    begin = model.start_decoding(source, lengths, beam=1, max_length=9, first=SYMBOLS.bos)
    first, state = int(begin.positions[0]), begin.state
    for t in range(target.shape[1]):
        recorder: dict[str, list[Tensor]] = {}
        context = Context(SequenceLayout.continuation(begin.positions + t), begin.memory, recorder=recorder)
        _, state = model.decode(target[:, t : t + 1], context, state)
        for path, (weights,) in recorder.items():
            row = t if path in model.memory_paths else first + t
            expected, found = whole[path][:, row], weights[0, :, 0]
            part = model.get_submodule(path)
            if isinstance(part, LocalAttentionMixer):  # its cells are those of the block that it stands in
                block = row // part.block_size * part.block_size
                expected, found = expected[:, block : row + 1], found[:, : row + 1 - block]
            seen = min(expected.shape[-1], found.shape[-1])
            torch.testing.assert_close(found[:, :seen], expected[:, :seen], **TOLERANCE)
            assert not found[:, seen:].any()
            assert not expected[:, seen:].any()


@every_system
@torch.no_grad()
def test_the_last_layer_says_what_the_model_says(variant: str) -> None:
    model = small_model(variant)
    source, lengths, target, target_lengths = first_pair(variant, model)
    done = record_forward(model, source, lengths, target, target_lengths)
    own = (model(source, lengths, target, target_lengths) if model.can_generate else model(source, lengths))[0]
    if model.label_names:  # the sigmoid of a single logit is its softmax with a second one, 0
        own = torch.nn.functional.pad(own, (0, 1))
    torch.testing.assert_close(done.logits, own, **TOLERANCE)
    assert next(iter(done.layer_logits)) == "input"
    torch.testing.assert_close(list(done.layer_logits.values())[-1], own, **TOLERANCE)
    assert all(layer.shape == own.shape for layer in done.layer_logits.values())


@every_writer
@torch.no_grad()
def test_alternatives_are_a_teacher_forced_pass(variant: str) -> None:
    model = small_model(variant)
    source, lengths, target, target_lengths = first_pair(variant, model)
    done = record_forward(model, source, lengths, target, target_lengths)
    tokens = [*target[0, 1:].tolist(), SYMBOLS.eos]
    steps = token_predictions(done.logits, tokens, str, 3)
    framed = torch.tensor([[*target[0].tolist(), SYMBOLS.eos]])
    scores = token_scores(model, source, lengths, framed, torch.tensor([framed.shape[1]]))[0]
    torch.testing.assert_close(torch.tensor([step.log_probability for step in steps]), scores, **TOLERANCE)
    for step, p in zip(steps, model(source, lengths, target, target_lengths)[0].softmax(-1), strict=True):
        best = sorted(range(len(p)), key=lambda token: -float(p[token]))
        assert [one.token_id for one in step.alternatives] == best[:3]
        assert step.rank == 1 + best.index(step.token_id)
        assert step.alternatives[0].probability == pytest.approx(float(p.max()), rel=1e-9)
        assert step.entropy == pytest.approx(-sum(float(q) * math.log2(float(q)) for q in p), rel=1e-9)


SEARCHES = {
    "beam": Beam(4, 0.6, n_best=3, length_limit=LengthLimit(0, 6)),
    "greedy": Beam(1, length_limit=LengthLimit(0, 6)),
    "hopeless": Beam(3, early_stopping=False, n_best=2, length_limit=LengthLimit(0, 5)),
    "steps": Beam(2, early_stopping="steps", length_limit=LengthLimit(0, 5), length_normalization="gnmt"),
    "diverse": Beam(4, num_groups=2, n_best=2, length_limit=LengthLimit(0, 5)),
    "samples": Sample(n_best=3, seed=5, length_limit=LengthLimit(0, 6)),
}


@every_writer
def test_the_trees_best_leaf_is_what_was_found(variant: str) -> None:
    check_tree(variant, "beam")


@pytest.mark.parametrize("way", SEARCHES)
def test_every_search_has_a_tree(way: str) -> None:
    check_tree("transformer", way)


def check_tree(variant: str, way: str) -> None:
    model, settings = small_model(variant), SEARCHES[way]
    source, lengths, _, _ = first_pair(variant, model)
    limits, keys = (
        settings.length_limit.max_lengths(lengths, [model]),
        torch.zeros(1, dtype=torch.long),
    )
    plain = build_engine([model], SYMBOLS, settings).search(source, lengths, limits, keys)[0]
    searching = build_engine([model], SYMBOLS, settings)
    watching = RecordingStrategy(searching.strategy, SYMBOLS.eos, settings)
    searching.strategy = watching
    assert searching.search(source, lengths, limits, keys)[0] == plain, "looking has changed what is found"
    nodes = assign_ranks(watching.nodes, plain)
    best = next(node for node in nodes if node.rank == 1)

    def tokens(number: int | None) -> list[int]:
        return [] if not number else [*tokens(nodes[number].parent), nodes[number].token_id]

    written = tokens(best.index)
    assert written == [*plain[0].tokens, *([SYMBOLS.eos] if plain[0].finished else [])]
    assert best.score == pytest.approx(plain[0].score, abs=1e-9)
    assert best.normalized_score == pytest.approx(plain[0].normalized_score, abs=1e-9) or way == "samples"
    assert {node.status for node in nodes[1:] if node.rank} <= {"finished", "truncated"}
    assert [node.index for node in nodes] == list(range(len(nodes)))
    if way not in ("samples", "diverse"):  # whose rows know nothing of each other
        assert len({(node.parent, node.token_id) for node in nodes}) == len(nodes)
    for node in nodes[1 :: len(nodes) // 4]:  # scores are those of teacher forcing
        framed = torch.tensor([[SYMBOLS.bos, *tokens(node.index)]])
        scores = token_scores(model, source, lengths, framed, torch.tensor([framed.shape[1]]))[0]
        assert node.score == pytest.approx(float(scores.sum()), abs=1e-9)
        assert node.log_probability == pytest.approx(float(scores[-1]), abs=1e-9)
        assert node.step == framed.shape[1] - 1
    going_on = {node.parent for node in nodes[1:]}
    assert all(nodes[parent].status == "kept" for parent in going_on if parent is not None)


class Operations(TorchDispatchMode):
    """The names of everything that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("variant", ["transformer", "bahdanau", "convs2s", "gpt", "bert"])
@torch.no_grad()
def test_inspection_leaves_no_hooks(variant: str) -> None:
    model = small_model(variant)
    pair = first_pair(variant, model)
    with Operations() as before:
        model(*pair)
    assert record_forward(model, *pair).attention_weights
    with Operations() as after:
        model(*pair)
    assert before.names == after.names
    for part in model.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
    assert Context(SequenceLayout(torch.zeros(1, 1))).recorder is None


@every_system
def test_every_position_part_can_be_shown(variant: str) -> None:
    for one in position_encodings(small_model(variant), 12):
        count = len(one.labels)
        if one.bias is not None:
            assert one.bias.shape[1:] == (count, count)
        else:
            assert one.encoding is not None
            assert one.similarity is not None
            assert one.encoding.shape[0] == count
            assert one.similarity.diagonal().tolist() == pytest.approx([1.0] * count, abs=1e-5)  # pictures are float32


def test_spread_takes_the_first_and_the_last() -> None:
    assert evenly_spaced(range(3), 5) == [0, 1, 2]
    assert evenly_spaced(range(10), 4) == [0, 3, 6, 9]
