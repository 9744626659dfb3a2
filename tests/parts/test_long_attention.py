"""Attention within blocks and to a compressed memory: against loops, against PyTorch, in every chunking."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dragoman.errors import UserError
from dragoman.models import count_parameters
from dragoman.parts.long_attention import (
    CompressedAttention,
    CompressedAttentionMixer,
    LocalAttention,
    LocalAttentionMixer,
    LongAttentionMixer,
)
from dragoman.parts.mixer import Context, SequenceLayout, State, map_state
from dragoman.search import Beam, LengthLimit, SpecialTokens
from dragoman.systems import SYSTEMS, VocabularySizes
from search.plain_search import search

WIDTH, HEADS, LONGEST = 8, 2, 14
SPECS = {
    "local": LocalAttention(HEADS, block_size=4),
    "compressed": CompressedAttention(HEADS),
    "compressed, overlapping": CompressedAttention(HEADS, kernel=5, stride=2),
    "compressed, with gaps": CompressedAttention(HEADS, kernel=1, stride=3),
}
every_part = pytest.mark.parametrize("name", SPECS)


def part(name: str) -> LongAttentionMixer:
    torch.manual_seed(0)
    mixer = SPECS[name].build(WIDTH).double().eval()
    for weight in mixer.parameters():  # biases are not left at zero
        nn.init.normal_(weight, std=0.3)
    return mixer.requires_grad_(False)


def sequences(count: int, length: int) -> Tensor:
    return torch.randn(count, length, WIDTH, dtype=torch.double, generator=torch.Generator().manual_seed(length))


def whole(mixer: LongAttentionMixer, x: Tensor, recorder: dict[str, list[Tensor]] | None = None) -> Tensor:
    layout = SequenceLayout.padded(x.shape[1], torch.full((x.shape[0],), x.shape[1]))
    y, state, *_ = mixer(x, Context(layout, recorder=recorder))
    assert state is None
    return y


def go_on(mixer: LongAttentionMixer, x: Tensor, first: Tensor, state: State | None) -> tuple[Tensor, State]:
    y, state, *_ = mixer(x, Context(SequenceLayout.continuation(first, x.shape[1])), state)
    assert state is not None
    return y, state


# ---- by hand


def test_equal_scores_give_the_mean_of_the_visible_slots() -> None:
    """Width 1, everything the identity, compressed keys all zero, compressed values the means of three tokens.

    1 … 7: the first two see the zero alone, the next three the zero and 2 (mean 1), the next two these and 5 (7/3).
    """
    mixer = CompressedAttention(heads=1, bias=False).build(1)
    nn.init.ones_(mixer.project.weight)
    nn.init.ones_(mixer.output.weight)
    nn.init.zeros_(mixer.compress["key"].weight)
    nn.init.constant_(mixer.compress["value"].weight, 1 / 3)
    y = whole(mixer, torch.arange(1.0, 8.0)[None, :, None])
    assert y.flatten().tolist() == pytest.approx([0, 0, 1, 1, 1, 7 / 3, 7 / 3])


@pytest.mark.parametrize("name", ["compressed", "compressed, overlapping", "compressed, with gaps"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 8, 9])
def test_compressed_attention_equals_its_formula(name: str, length: int) -> None:
    mixer, x = part(name), sequences(1, length)
    assert isinstance(mixer, CompressedAttentionMixer)
    expected = compressed_by_loops(mixer, x[0])
    torch.testing.assert_close(whole(mixer, x)[0], expected, atol=1e-12, rtol=1e-10)


def compressed_by_loops(mixer: CompressedAttentionMixer, x: Tensor) -> Tensor:
    """T D → T D, one position, one head, one cell at a time."""
    (wq, wk, wv), (bq, bk, bv) = mixer.project.weight.chunk(3), mixer.project.bias.chunk(3)
    width = WIDTH // HEADS

    def cell(raw: list[Tensor], last: int, compress: nn.Linear) -> Tensor:
        """b + Σ_j W_j k_{last − kernel + 1 + j}."""
        total = compress.bias.clone()
        for j, weight in enumerate(compress.weight.split(WIDTH, dim=1)):
            place = last - mixer.kernel + 1 + j
            if place >= 0:
                total += weight @ raw[place]
        return total

    keys, values = [wk @ token + bk for token in x], [wv @ token + bv for token in x]
    rows = []
    for i, token in enumerate(x):
        query = wq @ token + bq
        seen = [(torch.zeros(WIDTH, dtype=torch.double), torch.zeros(WIDTH, dtype=torch.double))]
        for last in range(mixer.stride - 1, i + 1, mixer.stride):
            key, value = mixer.compress["key"], mixer.compress["value"]
            assert isinstance(key, nn.Linear)
            assert isinstance(value, nn.Linear)
            seen.append((cell(keys, last, key), cell(values, last, value)))
        heads = []
        for head in range(HEADS):
            own = slice(head * width, (head + 1) * width)
            powers = [math.exp(float(query[own] @ key[own]) / math.sqrt(width)) for key, _ in seen]
            mixed = [power / sum(powers) * value[own] for power, (_, value) in zip(powers, seen)]
            heads.append(torch.stack(mixed).sum(0))
        rows.append(mixer.output.weight @ torch.cat(heads) + mixer.output.bias)
    return torch.stack(rows)


def test_cells_equal_a_strided_convolution() -> None:
    mixer, raw = part("compressed"), sequences(2, 11)
    assert isinstance(mixer, CompressedAttentionMixer)
    kernel = mixer.compress["key"].weight.unflatten(1, (3, WIDTH)).transpose(1, 2)  # out, in, kernel
    expected = F.conv1d(raw.transpose(1, 2), kernel, mixer.compress["key"].bias, stride=3).transpose(1, 2)
    slots = mixer._compress_sequences("key", raw.unflatten(-1, (HEADS, -1))).flatten(2)
    assert slots.shape == (2, 1 + 3, WIDTH)
    assert not slots[:, 0].any()
    torch.testing.assert_close(slots[:, 1:], expected)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 14])
def test_local_attention_is_full_attention_with_a_mask_of_blocks(length: int) -> None:
    mixer, x = part("local"), sequences(3, length)
    torchs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.double)
    torchs.in_proj_weight, torchs.in_proj_bias = mixer.project.weight, mixer.project.bias
    torchs.out_proj.weight, torchs.out_proj.bias = mixer.output.weight, mixer.output.bias
    hidden = torch.tensor([[j > i or j // 4 != i // 4 for j in range(length)] for i in range(length)])
    torch.testing.assert_close(whole(mixer, x), torchs(x, x, x, attn_mask=hidden, need_weights=False)[0])


# ---- what is seen


def sees(name: str, query: int, key: int) -> bool:
    """Does the output at `query` depend on the token at `key`?"""
    spec = SPECS[name]
    if query == key:
        return True
    if isinstance(spec, LocalAttention):
        return key <= query and key // spec.block_size == query // spec.block_size
    assert isinstance(spec, CompressedAttention)
    ends = range(spec.stride - 1, query + 1, spec.stride)
    return any(last - spec.kernel < key <= last for last in ends)


@every_part
@pytest.mark.parametrize("length", [*range(1, 10), 12, 13, 14])
def test_changing_a_token_changes_only_positions_that_see_it(name: str, length: int) -> None:
    mixer, x = part(name), sequences(1, length)
    before = whole(mixer, x)[0]
    for place in range(length):
        changed = x.clone()
        changed[:, place] += 1.0
        difference = (whole(mixer, changed)[0] - before).abs().amax(1)
        for query in range(length):
            if sees(name, query, place):
                assert difference[query] > 1e-8 or (name != "local" and query < mixer.stride - 1)  # the zero alone
            else:
                assert difference[query] < 1e-12


@every_part
def test_padding_does_not_change_the_output(name: str) -> None:
    mixer, x = part(name), sequences(3, 11)
    lengths = torch.tensor([11, 6, 1])
    y = mixer(x, Context(SequenceLayout.padded(11, lengths))).output
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(y[row, :length], whole(mixer, x[row : row + 1, :length])[0])


@every_part
def test_recording_does_not_change_the_output(name: str) -> None:
    mixer, x = part(name), sequences(2, 11)
    recorder: dict[str, list[Tensor]] = {}
    torch.testing.assert_close(whole(mixer, x, recorder), whole(mixer, x), atol=1e-5, rtol=1e-5)  # softmax in 32 bits
    ((weights,),) = recorder.values()
    keys = 11 if isinstance(mixer, LocalAttentionMixer) else 1 + 11 // mixer.stride
    assert weights.shape == (2, HEADS, 11, keys)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 11, dtype=torch.double), atol=1e-6, rtol=0)


# ---- step by step


@every_part
def test_chunks_equal_the_whole_sequence(name: str) -> None:
    """Steps up to every place, a chunk of every length, a step, the rest as a chunk: so every chunking is right."""
    mixer, x = part(name), sequences(2, LONGEST)
    expected = whole(mixer, x)
    state = mixer.init_state(2, LONGEST, x)
    for first in range(LONGEST):
        at = torch.full((2,), first)
        for end in range(first + 1, LONGEST + 1):
            after, borders = map_state(torch.clone, state), sorted({first, end, min(end + 1, LONGEST), LONGEST})
            for begin, stop in pairwise(borders):
                y, after = go_on(mixer, x[:, begin:stop], torch.full((2,), begin), after)
                torch.testing.assert_close(y, expected[:, begin:stop])
        _, state = go_on(mixer, x[:, first : first + 1], at, state)


@st.composite
def chunkings(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Lengths of three rows to begin with, and chunks that go on from them to LONGEST at most."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=3, max_size=3))
    chunks: list[int] = []
    while sum(chunks) < LONGEST - max(lengths):
        chunks.append(draw(st.integers(1, LONGEST - max(lengths) - sum(chunks))))
    return lengths, chunks


@every_part
@settings(max_examples=20, deadline=None)
@given(chunking=chunkings())
def test_rows_of_different_lengths_continue_in_any_chunks(name: str, chunking: tuple[list[int], list[int]]) -> None:
    mixer, x = part(name), sequences(3, LONGEST)
    expected, (lengths, chunks) = whole(mixer, x), chunking
    at = torch.tensor(lengths)
    state = mixer.init_state(3, LONGEST, x)
    width = max(lengths)
    if width:
        prefill = x[:, :width].masked_fill(torch.arange(width)[None, :, None] >= at[:, None, None], 7.0)
        y, after, *_ = mixer(prefill, Context(SequenceLayout.padded(width, at)), state)
        assert after is not None
        state = after
        for row, length in enumerate(lengths):
            torch.testing.assert_close(y[row, :length], expected[row, :length])
    for count in chunks:
        places = at[:, None] + torch.arange(count)
        rows = torch.arange(3)[:, None]
        y, state = go_on(mixer, x[rows, places], at, state)
        torch.testing.assert_close(y, expected[rows, places])
        at = at + count


@every_part
def test_a_prefilled_row_without_tokens_keeps_its_state(name: str) -> None:
    mixer, x = part(name), sequences(2, 9)
    expected, begun = whole(mixer, x), torch.tensor([5, 5])
    _, state = go_on(mixer, x[:, :5], torch.zeros(2, dtype=torch.long), mixer.init_state(2, 9, x))
    layout = SequenceLayout(
        begun[:, None] + torch.arange(3), lengths=torch.tensor([5, 8])
    )  # the first row has nothing more
    chunk = x[:, 5:8].clone()
    chunk[0] = 7.0
    state = mixer(chunk, Context(layout), state).state
    y, _ = go_on(mixer, torch.stack((x[0, 5:6], x[1, 8:9])), torch.tensor([5, 8]), state)
    torch.testing.assert_close(y[:, 0], torch.stack((expected[0, 5], expected[1, 8])))


def test_state_has_the_documented_shape() -> None:
    like = torch.zeros(1)
    local = LocalAttention(HEADS, block_size=4).build(WIDTH).init_state(3, 100, like)
    assert {name: tuple(leaf.shape) for name, leaf in local.items()} == {"key": (3, 4, 2, 4), "value": (3, 4, 2, 4)}
    for kept in CompressedAttention(HEADS).build(WIDTH).init_state(3, 100, like).values():
        assert kept["slots"].shape == (3, 1 + 33 + 1, 2, 4)  # the zero, ⌊100 / 3⌋ cells, one to spare
        assert kept["waiting"].shape == (3, 2, 2, 4)


# ---- what it costs


@pytest.mark.parametrize(
    ("name", "seen_by_a_token"),
    [
        ("local", (4 + 1) / 2),
        ("compressed", (24 / 3 + 1) / 2 + 1 / 3),
        ("compressed, overlapping", (24 / 2 + 1) / 2 + 1 / 2),
    ],
)
def test_number_of_visible_keys_is_as_documented(name: str, seen_by_a_token: float) -> None:
    recorder: dict[str, list[Tensor]] = {}
    whole(part(name), sequences(1, 24), recorder)
    ((weights,),) = recorder.values()
    assert int((weights[0, 0] > 0).sum()) == pytest.approx(24 * seen_by_a_token)


@pytest.mark.parametrize("length", [12, 48, 192])
def test_only_blocks_and_groups_are_computed(length: int) -> None:
    """Multiplications and additions of scores and of sums of values, each 2 · D a pair, by PyTorch's count."""
    groups = length // 3 + 1
    assert attention_operations("local", length) == 2 * (2 * WIDTH) * length * 4
    assert attention_operations("compressed", length) == 2 * (2 * WIDTH) * (groups * 3) * groups


def attention_operations(name: str, length: int) -> int:
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        whole(part(name), sequences(1, length))
    return counter.get_flop_counts()["Global"][torch.ops.aten.bmm]


# ---- the system


def test_layers_alternate_and_have_the_expected_parameter_count() -> None:
    """LMLML: attention 4 (d² + d), compression 2 (3d² + d), feed-forward 2 · 4d² + 5d, two norms of 2d."""
    d, vocabulary = 512, 1000
    spec = SYSTEMS["transformer-dmca"].spec(VocabularySizes(vocabulary, vocabulary, joint=True))
    bodies = [type(layer.body).__name__ for layer in spec.decoder.block[::2]]
    assert bodies == ["LocalAttention", "CompressedAttention"] * 2 + ["LocalAttention"]
    assert {layer.body.block_size for layer in spec.decoder.block[::4]} == {256}
    layer = 4 * (d * d + d) + 8 * d * d + 5 * d + 2 * 2 * d
    assert count_parameters(spec) == 5 * layer + 2 * 2 * (3 * d * d + d) + vocabulary * d


@torch.no_grad()
def test_model_decodes_across_block_borders() -> None:
    settings = {"model_dim": 16, "heads": 2, "layers": 5, "block_size": 4}
    model = (
        SYSTEMS["transformer-dmca"]
        .spec(VocabularySizes(20, 20, joint=True), "tiny", **settings)
        .build()
        .double()
        .eval()
    )
    source, target = torch.randint(4, 20, (3, 9)), torch.randint(4, 20, (3, 10))
    lengths = torch.tensor([9, 4, 1])
    expected = model(source, lengths, target, torch.full((3,), 10))
    begin = model.start_decoding(source, lengths, beam=1, max_length=10, first=2)
    state, at = begin.state, 0
    for count in (1, 1, 5, 1, 2):
        layout = SequenceLayout.continuation(begin.positions + at, count)
        logits, state = model.decode(target[:, at : at + count], Context(layout), state)
        torch.testing.assert_close(logits, expected[:, at : at + count])
        at += count


@pytest.mark.parametrize(
    ("system", "settings"),
    [
        ("transformer-dmca", {}),
        pytest.param("transformer-dmca-moe", {"experts": 128, "ffn_dim": 16}, marks=pytest.mark.exhaustive),
    ],
)
def test_source_of_11000_tokens(system: str, settings: dict[str, int]) -> None:
    settings = {"model_dim": 16, "heads": 2, "layers": 3} | settings
    model = SYSTEMS[system].spec(VocabularySizes(20, 20, joint=True), "tiny", **settings).build().double()
    for name, weight in model.named_parameters():
        if ".router." in name:  # which starts with zeros
            torch.nn.init.normal_(weight)
    source, lengths = torch.randint(4, 20, (1, 11_000)), torch.tensor([11_000])
    model.train()(source, lengths, source[:, :3], torch.tensor([3])).sum().backward()
    symbols = SpecialTokens(bos=2, eos=3, suppressed=(0, 1, 2))
    limit = Beam(1, length_limit=LengthLimit(ratio=0, offset=4))
    found = search(model.eval(), source, lengths, symbols, limit, torch.arange(1))[0][0]
    prefix = torch.tensor([[2, *found.tokens]])
    with torch.no_grad():
        logits = model(source, lengths, prefix[:, :-1], torch.tensor([prefix.shape[1] - 1]))[0]
    logits[:, :3] = -torch.inf
    assert logits.argmax(-1).tolist() == found.tokens


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (LocalAttention(block_size=0), "block_size of LocalAttention, .*, must be at least 1, but is 0"),
        (CompressedAttention(stride=0), "must be at least 1, but are 3 and 0"),
        (LocalAttention(3), "model_dim=8 is not divisible by 3 heads"),
    ],
)
def test_invalid_settings_are_refused(spec: LocalAttention | CompressedAttention, message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec.build(WIDTH)


@pytest.mark.parametrize(
    ("stride", "labels"),
    [(1, ["(zero)", *"abcde"]), (2, ["(zero)", "ab", "cd"]), (5, ["(zero)", "abcde"]), (6, ["(zero)"])],
)
def test_each_recorded_key_has_the_label_of_its_tokens(stride: int, labels: list[str]) -> None:
    """There is a key of zeros, and one for every `stride` tokens: 1 + ⌊5 / stride⌋."""
    mixer = CompressedAttention(HEADS, stride=stride).build(WIDTH).double()
    recorder: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        whole(mixer, sequences(1, 5), recorder)
    ((weights,),) = recorder.values()
    assert list(mixer.key_labels("abcde")) == labels
    assert weights.shape[-1] == len(labels)
