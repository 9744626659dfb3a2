"""Hard attention against the definition: every alignment is enumerated, its probability multiplied step by step."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from dragoman.models import HardAttentionModel
from dragoman.parts import hard_alignment
from dragoman.parts.hard_alignment import HardAlignment
from dragoman.parts.inference import optimize_for_inference
from dragoman.parts.mixer import Context, Memory, SequenceLayout
from dragoman.systems import SYSTEMS, VocabularySizes

BOS, VOCABULARY, WIDTH = 2, 9, 8
SOURCE = torch.tensor([[5, 8, 4, 7], [6, 5, 0, 0]])
LENGTHS = torch.tensor([4, 2])
TARGET = torch.tensor([[BOS, 5, 4, 8, 3], [BOS, 7, 6, 6, 3]])
KINDS = {
    "0-hard": {"order": 0, "monotonic": False},
    "0-mono": {"order": 0, "monotonic": True},
    "1-hard": {"order": 1, "monotonic": False, "max_jump": 2},
    "1-mono": {"order": 1, "monotonic": True, "max_jump": 2},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _in_float64() -> object:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(kind: str) -> HardAttentionModel:
    torch.manual_seed(3)
    settings = {"model_dim": WIDTH, "layers": 1} | KINDS[kind]
    model = SYSTEMS["hard-monotonic"].spec(VocabularySizes(VOCABULARY, VOCABULARY), "tiny", **settings).build().eval()
    assert isinstance(model, HardAttentionModel)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.4 * torch.randn_like(weight))
    return model


def states(model: HardAttentionModel, row: int) -> tuple[Tensor, Tensor]:
    """What encoder (S D) and decoder (T D) compute for a row, without its padding."""
    length = int(LENGTHS[row])
    memory = model.encode(SOURCE[row : row + 1, :length], SequenceLayout.padded(length, LENGTHS[row : row + 1]))
    context = Context(SequenceLayout.padded(4, torch.tensor([4])), memory)
    decoded = model.decoder(model.target_embedding(TARGET[row : row + 1, :-1]), context).output
    return memory.states[0], decoded[0]


def transition(model: HardAttentionModel, kind: str, encoded: Tensor, state: Tensor, previous: int) -> list[float]:
    """p(a_t = i | a_{t−1} = previous), by the formulas of the papers."""
    part, settings = model.alignment.transition, KINDS[kind]
    weights = []
    for i in range(len(encoded)):
        jump = i - previous
        if settings["monotonic"] and jump < 0:
            weights.append(0.0)
        elif settings["order"] == 0:
            weights.append(math.exp(float(state @ (part.key.weight @ encoded[i]))))
        elif abs(jump) > 2:
            weights.append(0.0)
        else:
            both = torch.cat((part.query.weight, part.key.weight), 1)[2 - jump]  # columns are jumps from 2 downward
            weights.append(math.exp(float(both @ torch.cat((state, encoded[previous])) + part.query.bias[2 - jump])))
    return [weight / sum(weights) for weight in weights]


def emission(model: HardAttentionModel, encoded: Tensor, state: Tensor, i: int) -> Tensor:
    """p(y_t | a_t = i), V."""
    part = model.alignment.emission
    both = torch.cat((part.query.weight, part.key.weight), 1)
    hidden = torch.tanh(both @ torch.cat((state, encoded[i])) + part.query.bias)
    return torch.softmax(part.output.weight @ hidden + part.output.bias, 0)


def enumerate_alignments(model: HardAttentionModel, kind: str, row: int) -> dict[tuple[int, ...], float]:
    """p(a, y | x) of every alignment a of the row's target."""
    encoded, decoded = states(model, row)
    joint = {}
    for alignment in itertools.product(range(len(encoded)), repeat=4):
        p, previous = 1.0, 0
        for t, i in enumerate(alignment):
            p *= transition(model, kind, encoded, decoded[t], previous)[i]
            p *= float(emission(model, encoded, decoded[t], i)[TARGET[row, t + 1]]) if p else 1.0
            previous = i
        joint[alignment] = p
    return joint


@every_kind
@torch.no_grad()
def test_the_sum_over_all_alignments_is_the_probability(kind: str) -> None:
    model = build(kind)
    log_p = model(SOURCE, LENGTHS, TARGET[:, :-1], torch.tensor([4, 4]))
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(2, 4), rtol=0, atol=1e-12)
    posterior = model.posterior_alignment(SOURCE, LENGTHS, TARGET, torch.tensor([5, 5]))[:, :-1]
    for row in range(2):
        joint = enumerate_alignments(model, kind, row)
        expected = math.log(sum(joint.values()))
        assert float(log_p[row].gather(1, TARGET[row, 1:, None]).sum()) == pytest.approx(expected, abs=1e-10)
        for t, i in itertools.product(range(4), range(4)):
            here = sum(p for alignment, p in joint.items() if alignment[t] == i) / sum(joint.values())
            assert float(posterior[row, t, i]) == pytest.approx(here, abs=1e-10)


@pytest.mark.parametrize("kind", ["0-mono", "1-mono"])
@torch.no_grad()
def test_monotonic_alignments_never_move_backward(kind: str) -> None:
    """From the last position nothing else can be reached, whatever follows; and there is no mass on padding."""
    model = build(kind)
    layer = model.alignment
    memory = model.encode(SOURCE, SequenceLayout.padded(4, LENGTHS))
    x = torch.randn(2, 3, WIDTH)
    mask = memory.layout.token_mask
    assert mask is not None
    tables = layer.transition.tables(x, layer.transition.key(memory.states), mask)
    for position in range(4):
        before = torch.full((2, 4), hard_alignment.IMPOSSIBLE)
        before[:, position] = 0.0
        after = layer.transition.step(before, *(table[:, 1] for table in tables)).exp()
        for row in range(2):
            if position < LENGTHS[row]:
                assert after[row, :position].eq(0).all()
                assert after[row, LENGTHS[row] :].eq(0).all()
                assert float(after[row].sum()) == pytest.approx(1.0, abs=1e-12)


@every_kind
def test_gradients_equal_differences(kind: str) -> None:
    torch.manual_seed(1)
    layer = HardAlignment(**KINDS[kind]).build_layer(5, 4, None, True)  # type: ignore[arg-type]
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.7)
    tokens = torch.tensor([[1, 4, 2], [1, 3, 3]])

    def log_p(x: Tensor, encoded: Tensor) -> Tensor:
        memory = Memory(encoded, SequenceLayout.padded(3, torch.tensor([3, 2])))
        return layer.log_probabilities(x, tokens, Context(SequenceLayout.padded(3, torch.tensor([3, 3])), memory))[0]

    x, encoded = torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 3, 4, requires_grad=True)
    assert torch.autograd.gradcheck(log_p, (x, encoded))


@every_kind
def test_parts_of_a_batch_give_the_same_gradients(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(kind)
    results = []
    for limit in (2**25, 1):  # all rows at once, and one at a time
        monkeypatch.setitem(hard_alignment.MAX_PAIR_NUMBERS, "cpu", limit)
        model.zero_grad()
        log_p = model(SOURCE, LENGTHS, TARGET[:, :-1], torch.tensor([4, 4]))
        log_p.gather(2, TARGET[:, 1:, None]).sum().backward()
        results.append([log_p.detach()] + [weight.grad.clone() for weight in model.parameters()])
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_a_restricted_vocabulary_has_its_own_ids() -> None:
    """All tokens in another order: the same probabilities in that order, at once and step by step."""
    model, order = build("1-mono"), torch.tensor([2, 0, 8, 1, 3, 5, 4, 7, 6])
    expected = model(SOURCE, LENGTHS, TARGET[:, :-1], torch.tensor([4, 4]))[..., order]
    restricted = optimize_for_inference(model).restrict_vocabulary(order)
    target = order.argsort()[TARGET[:, :-1]]
    torch.testing.assert_close(restricted(SOURCE, LENGTHS, target, torch.tensor([4, 4])), expected)
    start = restricted.start_decoding(SOURCE, LENGTHS, 1, 9, int(target[0, 0]))
    state = start.state
    for t in range(4):
        context = Context(SequenceLayout.continuation(start.positions + t), start.memory)
        log_p, state = restricted.decode(target[:, t : t + 1], context, state)
        torch.testing.assert_close(log_p[:, 0], expected[:, t])
