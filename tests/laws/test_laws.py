"""The laws of the design, for every system. A new system is tested the day it is added."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small import (
    ENCODERS,
    SYMBOLS,
    TOLERANCE,
    VARIANTS,
    VOCABULARY,
    WRITERS,
    as_read,
    every_encoder,
    every_system,
    every_writer,
    laws_over,
    pairs,
    small_model,
    small_spec,
)

from dragoman import checkpoint
from dragoman.models import (
    DecoderOnlyModel,
    EncoderOnlyModel,
    Model,
    model_from_dict,
    model_to_dict,
    unallocated_model,
)
from dragoman.parts.mixer import Context, SequenceLayout, State, map_state
from dragoman.search import Beam, LengthLimit
from dragoman.search.beam import BeamSearch
from dragoman.search.engine import SearchEngine
from dragoman.search.forced_decoding import token_scores
from dragoman.systems import SYSTEMS, VocabularySizes
from search.exhaustive import exhaustive_search
from search.plain_search import search


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, **TOLERANCE)


@laws_over(WRITERS, always=WRITERS)
@torch.no_grad()
def test_whole_equals_steps(variant: str) -> None:
    model, p = small_model(variant), pairs(variant)
    whole = model(p.source, p.source_lengths, p.target, torch.full((3,), 6))
    begin = model.start_decoding(p.source, p.source_lengths, beam=1, max_length=9, first=SYMBOLS.bos)
    for chunks in ([1] * 6, [3, 1, 2], [2, 4]):
        state, at, parts = map_state(torch.clone, begin.state), 0, []
        for count in chunks:
            layout = SequenceLayout.continuation(begin.positions + at, count)
            logits, state = model.decode(p.target[:, at : at + count], Context(layout, begin.memory), state)
            parts.append(logits)
            at += count
        close(torch.cat(parts, 1), whole)


@pytest.mark.portable
@every_writer
@torch.no_grad()
def test_rows_may_stand_at_different_positions(variant: str) -> None:
    model, p = small_model(variant), pairs(variant)
    whole = model(p.source, p.source_lengths, p.target, torch.full((3,), 6))
    begin = model.start_decoding(p.source, p.source_lengths, beam=1, max_length=9, first=SYMBOLS.bos)
    state, at = begin.state, torch.tensor([0, 0, 0])
    pace = [torch.tensor([1, 0, 1]), torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0]), torch.tensor([1, 1, 1])]
    for moves in pace:
        tokens = p.target.gather(1, at[:, None])
        logits, after = model.decode(
            tokens,
            Context(SequenceLayout.continuation(begin.positions + at), begin.memory),
            map_state(torch.clone, state),
        )
        for row in range(3):
            close(logits[row, 0], whole[row, at[row]])
        state = merge(state, after, moves.bool())  # rows that did not move keep their old state
        at = at + moves


def merge(old: State, new: State, moved: torch.Tensor) -> State:
    return {
        name: merge(value, new[name], moved)
        if isinstance(value, dict)
        else torch.where(moved.view(-1, *[1] * (value.dim() - 1)), new[name], value)
        for name, value in old.items()
    }


@laws_over(WRITERS, always=WRITERS)
@torch.no_grad()
def test_no_peeking(variant: str) -> None:
    model, p = small_model(variant), pairs(variant)
    before = model(p.source, p.source_lengths, p.target, torch.full((3,), 6))
    changed = p.target.clone()
    changed[:, 3] = (changed[:, 3] - 4 + 1) % (VOCABULARY - 4) + 4
    after = model(p.source, p.source_lengths, changed, torch.full((3,), 6))
    close(before[:, :3], after[:, :3])
    assert (before[:, 3] - after[:, 3]).abs().amax() > 1e-3
    other = p.source.clone()
    other[:, 1] = (other[:, 1] - 4 + 1) % (VOCABULARY - 4) + 4
    assert (before[:, 0] - model(other, p.source_lengths, p.target, torch.full((3,), 6))[:, 0]).abs().amax() > 1e-4


@laws_over(WRITERS, always=WRITERS)
@torch.no_grad()
def test_padding_is_invisible(variant: str) -> None:
    model, p = small_model(variant), pairs(variant)
    together = model(p.source, p.source_lengths, p.target, p.target_lengths)
    for row in range(3):
        s, t = int(p.source_lengths[row]), int(p.target_lengths[row])
        alone = model(p.source[row : row + 1, :s], torch.tensor([s]), p.target[row : row + 1, :t], torch.tensor([t]))
        close(together[row, :t], alone[0])
    padding = torch.arange(7) >= p.source_lengths[:, None]
    garbage = p.source.clone()
    garbage[padding] = 9
    close(model(garbage, p.source_lengths, p.target, p.target_lengths)[:, :3], together[:, :3])


@every_writer
@torch.no_grad()
def test_several_targets_of_a_source_equal_repeated_sources(variant: str) -> None:
    model, p = small_model(variant), pairs(variant)
    rows, targets = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 1, 1, 2, 0])
    several = model.forward_targets(p.source, p.source_lengths, p.target[targets], p.target_lengths[targets], rows)
    repeated = model(p.source[rows], p.source_lengths[rows], p.target[targets], p.target_lengths[targets])
    mask = torch.arange(p.target.shape[1]) < p.target_lengths[targets][:, None]
    close(model.logits(several)[mask], repeated[mask])


PACKING = [variant for variant in VARIANTS if small_spec(variant).build().supports_packing]


def packed(rows: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, SequenceLayout]:
    """Padded rows as one row, one after the other."""
    row = torch.cat([row[:n] for row, n in zip(rows, lengths)])
    return row[None], SequenceLayout.packed_row(len(row), lengths, int(lengths.max()))


@laws_over([variant for variant in PACKING if variant in WRITERS], always=PACKING)
@torch.no_grad()
def test_packing_is_invisible(variant: str) -> None:
    model, p = small_model(variant), pairs(variant)
    if isinstance(model, DecoderOnlyModel):  # one sequence: the target alone
        together = model(p.source[:, :0], torch.zeros(3, dtype=torch.long), p.target, p.target_lengths)
        memory = None
    else:
        together = model(p.source, p.source_lengths, p.target, p.target_lengths)
        memory = model.encode(*packed(p.source, p.source_lengths))
    target, layout = packed(p.target, p.target_lengths)
    logits = model.decode(target, Context(layout, memory))[0][0]
    close(logits, torch.cat([row[:n] for row, n in zip(together, p.target_lengths)]))


@laws_over(ENCODERS, always=ENCODERS)
@torch.no_grad()
def test_padding_is_invisible_to_an_encoder(variant: str) -> None:
    model, p = small_model(variant), pairs(variant)
    together = model(p.source, p.source_lengths)
    for row in range(3):
        s = int(p.source_lengths[row])
        close(together[row, :s], model(p.source[row : row + 1, :s], torch.tensor([s]))[0])
    garbage = p.source.masked_fill(torch.arange(7) >= p.source_lengths[:, None], 9)
    close(model(garbage, p.source_lengths)[:, :2], together[:, :2])


@laws_over([variant for variant in PACKING if variant in ENCODERS], always=PACKING)
@torch.no_grad()
def test_packing_is_invisible_to_an_encoder(variant: str) -> None:
    model, p = small_model(variant), pairs(variant)
    model = getattr(model, "discriminator", model)
    assert isinstance(model, EncoderOnlyModel)
    together = model(p.source, p.source_lengths)
    source, layout = packed(p.source, p.source_lengths)
    logits = model.output(model.forward_features(source, layout).output)[0]
    close(logits, torch.cat([row[:n] for row, n in zip(together, p.source_lengths)]))


@every_encoder
@torch.no_grad()
def test_an_encoder_looks_both_ways(variant: str) -> None:
    model, p = small_model(variant), pairs(variant)
    before = model(p.source, torch.full((3,), 7))
    for place in (0, 6):
        changed = p.source.clone()
        changed[:, place] = (changed[:, place] - 4 + 1) % (VOCABULARY - 4) + 4
        assert (before - model(changed, torch.full((3,), 7)))[:, 3].abs().amax() > 1e-4


def leaves(state: State, path: str = "") -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        found |= leaves(value, f"{path}.{name}") if isinstance(value, dict) else {f"{path}.{name}": value}
    return found


@laws_over(WRITERS, always=("bahdanau", "transformer", "gpt"))
@torch.no_grad()
def test_state_keeps_its_shape_and_a_step_compiles_to_one_graph(variant: str) -> None:
    model, p = small_model(variant), pairs(variant)
    begin = model.start_decoding(p.source, p.source_lengths, beam=2, max_length=9, first=SYMBOLS.bos)
    form = {path: (t.shape, t.dtype, t.stride()) for path, t in leaves(begin.state).items()}

    def step(tokens: torch.Tensor, positions: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        return model.decode(tokens[:, None], Context(SequenceLayout.continuation(positions), begin.memory), state)

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend="aot_eager")
    eager_state, state = map_state(torch.clone, begin.state), map_state(torch.clone, begin.state)
    tokens, positions = begin.tokens, begin.positions
    for _ in range(5):
        expected, eager_state = step(tokens, positions, eager_state)
        logits, state = compiled(tokens, positions, state)
        close(logits, expected)
        assert {path: (t.shape, t.dtype, t.stride()) for path, t in leaves(state).items()} == form
        tokens, positions = logits[:, 0].argmax(-1), positions + 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def naive_greedy(model: Model, source: torch.Tensor, longest: int) -> list[int]:
    """arg-max over the whole prefix, fed again at every step."""
    prefix = [SYMBOLS.bos]
    for _ in range(longest):
        lengths = torch.tensor([len(prefix)])
        logits = model(source, torch.tensor([source.shape[1]]), torch.tensor([prefix]), lengths)[0, -1]
        logits[list(SYMBOLS.suppressed)] = -torch.inf
        prefix.append(int(logits.argmax()))
        if prefix[-1] == SYMBOLS.eos:
            break
    return [token for token in prefix[1:] if token != SYMBOLS.eos]


@pytest.mark.portable
@every_writer
@torch.no_grad()
def test_beam_of_one_equals_greedy_equals_naive_argmax(variant: str) -> None:
    model, p = small_model(variant), pairs(variant)
    length = LengthLimit(ratio=0, offset=12)
    greedy = search(model, p.source, p.source_lengths, SYMBOLS, Beam(1, length_limit=length), torch.arange(3))
    one_wide = SearchEngine([model], SYMBOLS, BeamSearch(Beam(1), SYMBOLS.eos))
    beam = one_wide.search(p.source, p.source_lengths, torch.full((3,), 12), torch.arange(3))
    for row in range(3):
        expected = naive_greedy(model, p.source[row : row + 1, : p.source_lengths[row]], 12)
        assert greedy[row][0].tokens == expected
        assert beam[row][0].tokens == expected
        assert beam[row][0].score == pytest.approx(greedy[row][0].score, abs=1e-9)


@pytest.mark.portable
@every_writer
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_hypothesis_scores_what_teacher_forcing_gives_it(variant: str, alpha: float) -> None:
    model, p = small_model(variant), pairs(variant)
    settings = Beam(4, alpha, n_best=4, length_limit=LengthLimit(ratio=0, offset=8))
    for row, hypotheses in enumerate(search(model, p.source, p.source_lengths, SYMBOLS, settings, torch.arange(3))):
        assert [h.normalized_score for h in hypotheses if h.finished] == sorted(
            (h.normalized_score for h in hypotheses if h.finished), reverse=True
        )
        for h in hypotheses:
            framed = torch.tensor([[SYMBOLS.bos, *h.tokens, *([SYMBOLS.eos] if h.finished else [])]])
            source = p.source[row : row + 1, : p.source_lengths[row]]
            scores = token_scores(
                model, source, torch.tensor([source.shape[1]]), framed, torch.tensor([framed.shape[1]])
            )
            assert h.score == pytest.approx(float(scores.sum()), abs=1e-9)
            assert h.normalized_score == pytest.approx(h.score / (framed.shape[1] - 1) ** alpha, abs=1e-9)


@every_writer
@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_a_beam_as_wide_as_the_space_equals_exhaustive_search(variant: str, alpha: float) -> None:
    model = small_model(variant, vocabulary=7)  # 3 words and END: 1 + 3 + 9 + 27 targets of up to 4 tokens
    source = as_read(variant, torch.tensor([[4, 6, 5, 4]]))
    wide = Beam(128, alpha, early_stopping="steps", n_best=40)
    engine = SearchEngine([model], SYMBOLS, BeamSearch(wide, SYMBOLS.eos))
    found = engine.search(source, torch.tensor([4]), torch.tensor([4]), torch.tensor([0]))[0]
    oracle = exhaustive_search(model, source, SYMBOLS, max_length=4, alpha=alpha, n_best=40)
    assert len(oracle) == 40
    assert [h.tokens for h in found if h.finished] == [h.tokens for h in oracle]
    for one, other in zip(found, oracle):
        assert one.score == pytest.approx(other.score, abs=1e-9)


@every_writer
def test_batch_and_order_never_change_a_result(variant: str) -> None:
    model, p = small_model(variant), pairs(variant)
    settings = Beam(3, n_best=2, length_limit=LengthLimit(ratio=1, offset=3))
    together = search(model, p.source, p.source_lengths, SYMBOLS, settings, torch.arange(3))
    for row in range(3):
        source = p.source[row : row + 1, : p.source_lengths[row]]
        alone = search(model, source, p.source_lengths[row : row + 1], SYMBOLS, settings, torch.tensor([row]))[0]
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[row]], abs=1e-9)


@laws_over(VARIANTS, always=VARIANTS)
def test_a_spec_is_a_model(variant: str) -> None:
    spec = small_spec(variant)
    written = json.dumps(model_to_dict(spec))
    assert model_from_dict(json.loads(written)) == spec
    assert json.dumps(model_to_dict(model_from_dict(json.loads(written)))) == written
    weights = []
    for _ in range(2):
        torch.manual_seed(5)
        weights.append(spec.build().state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@every_system
def test_a_model_opened_from_a_file_is_the_saved_one(variant: str, tmp_path: Path) -> None:
    """Its weights are assigned to a model that was built without memory for them."""
    saved, p = small_model(variant), pairs(variant)
    checkpoint.save(tmp_path / "saved", {"model": checkpoint.named_weights(saved)}, {})
    opened = unallocated_model(saved.spec).eval()
    assert all(weight.is_meta for weight in opened.parameters())
    tensors = checkpoint.open_tensors(tmp_path / "saved", "model")
    checkpoint.assign_weights(opened, tensors, tmp_path, torch.device("cpu"))
    assert [name for name, _ in opened.named_parameters()] == [name for name, _ in saved.named_parameters()]
    expected, logits = (model(p.source, p.source_lengths, p.target, p.target_lengths) for model in (saved, opened))
    assert torch.equal(logits, expected)


@every_system
def test_every_weight_learns(variant: str) -> None:
    model, p = small_model(variant).train(), pairs(variant)
    elsewhere = ("pooler.", "generator.")  # take part in what is learned, but not in these logits
    own = {name: weight for name, weight in model.named_parameters() if not name.startswith(elsewhere)}
    idle = list(own)
    for _ in range(20):  # dropout decides which experts a token goes to: until every expert has had one
        logits = model(p.source, p.source_lengths, p.target, p.target_lengths)
        (logits * torch.randn_like(logits)).sum().backward()
        idle = [name for name, weight in own.items() if weight.grad is None or not weight.grad.any()]
        if not idle:
            break
    assert idle == []


def test_a_decoder_alone_searches_up_to_its_last_position() -> None:
    """A long and a short source together: each has the room that it has alone, however little the other leaves."""
    model = (
        SYSTEMS["gpt"]
        .spec(VocabularySizes(VOCABULARY, VOCABULARY, True), "tiny", model_dim=16, layers=1, heads=2, max_positions=12)
        .build()
    )
    model.eval()
    source = torch.randint(4, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(3))
    lengths = torch.tensor([9, 2])
    for settings in (
        Beam(1, length_limit=LengthLimit(0, 50)),
        Beam(3, early_stopping="steps", length_limit=LengthLimit(0, 50)),
    ):
        together = search(model, source, lengths, SYMBOLS, settings, torch.arange(2))
        for row, length in enumerate(lengths.tolist()):
            own = source[row : row + 1, :length]
            alone = search(model, own, lengths[row : row + 1], SYMBOLS, settings, torch.tensor([row]))[0]
            assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
            assert all(len(h.tokens) + length <= 12 for h in alone)
