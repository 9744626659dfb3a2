"""Expected reward: gradients against exact enumeration, GLEU against NLTK, candidates against the model's own p."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.data import IGNORE_INDEX, Batch
from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.objectives import RewardObjective, TaskContext, build_objective
from dragoman.objectives.cross_entropy import TokenLogProbs
from dragoman.objectives.reward_objective import CandidateSet, MinimumRiskObjective
from dragoman.search.ngram_metrics import Bleu, ChrF, Gleu
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import Framing

A, B, END = 4, 5, 1  # two words and EOS, of a vocabulary of six
MAX_LENGTH = 3


def small_model(system: str = "transformer") -> Model:
    torch.manual_seed(3)
    sizes = {"model_dim": 8, "layers": 1, "heads": 2, "dropout": 0.0}
    known = SYSTEMS[system].settings()
    settings = {name: value for name, value in sizes.items() if name in known}
    model = SYSTEMS[system].spec(VocabularySizes(6, 6, True), "tiny", **settings).build().double().train()
    with torch.no_grad():  # probabilities that differ
        for weight in model.parameters():
            weight.add_(0.4 * torch.randn_like(weight))
    return model


class Letters:
    """A tokenizer of six letters."""

    vocab_size = 6

    def decode(self, ids: list[int]) -> str:
        return " ".join("abcdef"[number] for number in ids)


def task(model: Model) -> TaskContext:
    tokenizer: Any = Letters()
    return TaskContext(model, tokenizer, tokenizer, Framing(pad=0, bos=2, eos=END, suppressed=(0, 2)))


def pair(target: list[int]) -> Batch:
    """A batch of one source and this target."""
    fed = torch.tensor([[2, *target[:-1]]])
    lengths = torch.tensor([len(target)])
    return Batch(
        torch.tensor([[A, B, END]]), torch.tensor([3]), fed, lengths, torch.tensor([target]), np.arange(1), 3, 2
    )


def sources(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch.source, batch.source_lengths


def all_sequences() -> list[list[int]]:
    """Every target that a search can generate: with EOS, or truncated at the length limit; any token is possible."""
    words = [token for token in range(6) if token != END]
    ended = [[*y, END] for n in range(MAX_LENGTH) for y in itertools.product(words, repeat=n)]
    return ended + [list(y) for y in itertools.product(words, repeat=MAX_LENGTH)]


def rewards_of(sequences: list[list[int]]) -> np.ndarray:
    """A reward without any structure that could help."""
    return np.random.default_rng(1).random(len(sequences))


def candidate_set(sequences: list[list[int]], rewards: Any, counts: Any = None, baseline: Any = None) -> CandidateSet:
    ones = np.ones(len(sequences), np.int64)
    return CandidateSet(sequences, 0 * ones, np.asarray(rewards), ones if counts is None else counts, baseline)


def gradient(value: Tensor, model: Model) -> Tensor:
    gradients = torch.autograd.grad(value, list(model.parameters()), retain_graph=True, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(w) if g is None else g).flatten() for g, w in zip(gradients, model.parameters())]
    )


@pytest.fixture(scope="module", params=["transformer", "luong", "transformer-d"])
def enumerated(request: pytest.FixtureRequest) -> Iterator[tuple[Model, Batch, list[list[int]], Tensor]]:
    """A model, a pair, all targets and their log p with gradients, from the model's plain logits."""
    model, batch, sequences = small_model(request.param), pair([A, B, END]), all_sequences()
    fed = torch.tensor([[2, *y[:-1], *[0] * (MAX_LENGTH - len(y))] for y in sequences])
    lengths = torch.tensor([len(y) for y in sequences])
    labels = torch.tensor([[*y, *[IGNORE_INDEX] * (MAX_LENGTH - len(y))] for y in sequences])
    rows = len(sequences)
    logits = model(batch.source.repeat(rows, 1), batch.source_lengths.repeat(rows), fed, lengths)
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX, reduction="none")
    return model, batch, sequences, -losses.view(rows, MAX_LENGTH).sum(1)


def test_the_enumeration_is_complete(enumerated: tuple[Model, Batch, list[list[int]], Tensor]) -> None:
    *_, log_p = enumerated
    assert float(log_p.detach().exp().sum()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("baseline", [0.0, 0.4])
def test_expected_gradient_with_any_baseline_is_that_of_the_expected_reward(
    enumerated: tuple[Model, Batch, list[list[int]], Tensor], baseline: float
) -> None:
    """Σ_y p(y) ∇ loss(sample y) = −∇ Σ_y p(y) r(y), whatever the baseline: one sample, every possible one."""
    model, batch, sequences, log_p = enumerated
    rewards, objective = rewards_of(sequences), RewardObjective(task(model))
    exact = gradient(-(log_p.exp() * torch.from_numpy(rewards)).sum(), model)
    found, _ = objective.log_probs(*sources(batch), candidate_set(sequences, rewards))
    weighted = torch.zeros((), dtype=torch.float64)
    for n, (y, r) in enumerate(zip(sequences, rewards)):
        loss = objective.risk(candidate_set([y], [r], baseline=np.array([baseline])), found[n : n + 1])
        assert float(loss.detach()) == pytest.approx(-r)  # its value is minus the reward
        weighted = weighted + log_p[n].detach().exp() * loss
    torch.testing.assert_close(gradient(weighted, model), exact, rtol=1e-9, atol=1e-10)


def test_expected_gradient_with_the_other_samples_as_baseline(
    enumerated: tuple[Model, Batch, list[list[int]], Tensor],
) -> None:
    """The same over all pairs of samples, each being the baseline of the other; equal ones are one candidate."""
    model, _, sequences, log_p = enumerated
    rewards, p, objective = rewards_of(sequences), log_p.exp().detach(), RewardObjective(task(model))
    chosen = list(range(0, len(sequences), 7))  # a distribution over fewer, renormalized, for speed
    q = (p[chosen] / p[chosen].sum()).tolist()
    scores = (log_p - log_p[chosen].logsumexp(0))[chosen]
    exact = gradient(-(scores.exp() * torch.from_numpy(rewards[chosen])).sum(), model)
    weighted = torch.zeros((), dtype=torch.float64)
    for i, j in itertools.product(range(len(chosen)), repeat=2):
        unique = sorted({i, j})
        counts = np.array([2] if i == j else [1, 1])
        drawn = candidate_set([sequences[chosen[n]] for n in unique], rewards[[chosen[n] for n in unique]], counts)
        weighted = weighted + q[i] * q[j] * objective.risk(drawn, scores[unique])
    torch.testing.assert_close(gradient(weighted, model), exact, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("sharpness", [0.005, 1.0])
def test_minimum_risk_is_the_exact_risk_over_its_candidates(
    enumerated: tuple[Model, Batch, list[list[int]], Tensor], sharpness: float
) -> None:
    """−Σ q r with q = p^α / Σ p^α, written out; with α = 1 and all targets it is the expected reward itself."""
    model, batch, sequences, log_p = enumerated
    rewards, objective = rewards_of(sequences), MinimumRiskObjective(task(model), sharpness=sharpness)
    for chosen in ([0, 3, 20], list(range(len(sequences)))):
        found, _ = objective.log_probs(
            *sources(batch), some := candidate_set([sequences[n] for n in chosen], rewards[chosen])
        )
        torch.testing.assert_close(found, log_p[chosen], rtol=1e-9, atol=1e-10)
        powers = log_p[chosen].exp() ** sharpness
        exact = -(powers / powers.sum() * torch.from_numpy(rewards[chosen])).sum()
        risk = objective.risk(some, found)
        torch.testing.assert_close(risk, exact, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(gradient(risk, model), gradient(exact, model), rtol=1e-9, atol=1e-12)
    if sharpness == 1:
        torch.testing.assert_close(exact, -(log_p.exp() * torch.from_numpy(rewards)).sum())


def test_sentences_of_different_numbers_of_candidates_do_not_mix() -> None:
    """Risk and advantages of two sentences together are those of each alone."""
    objective = MinimumRiskObjective(task(small_model()), sharpness=0.7)
    log_p, rewards = torch.tensor([-1.0, -2.0, -0.5, -3.0, -1.5]), np.array([0.1, 0.9, 0.4, 0.2, 0.8])
    both = CandidateSet([[A]] * 5, np.array([0, 0, 1, 1, 1]), rewards, np.array([2, 1, 1, 3, 1]))
    parts = [
        CandidateSet([[A]] * n, np.zeros(n, int), rewards[s], both.counts[s])
        for n, s in ((2, slice(2)), (3, slice(2, 5)))
    ]
    alone = objective.risk(parts[0], log_p[:2]) + objective.risk(parts[1], log_p[2:])
    torch.testing.assert_close(objective.risk(both, log_p), alone)
    np.testing.assert_allclose(both.advantages(), np.concatenate([part.advantages() for part in parts]))


def test_advantages_by_hand() -> None:
    """Rewards 0.2 (twice) and 0.8: the others' means are 0.5, 0.5 and 0.2; GNMT's, with the mean of all, times 3/2."""
    drawn = candidate_set([[A], [B]], [0.2, 0.8], np.array([2, 1]))
    np.testing.assert_allclose(drawn.advantages(), [2 * (0.2 - 0.5) / 3, (0.8 - 0.2) / 3])
    np.testing.assert_allclose(drawn.advantages(), 1.5 * np.array([2 * (0.2 - 0.4), 0.8 - 0.4]) / 3)
    greedy = candidate_set([[A], [B]], [0.2, 0.8], np.array([2, 1]), np.array([0.3]))
    np.testing.assert_allclose(greedy.advantages(), [2 * (0.2 - 0.3) / 3, (0.8 - 0.3) / 3])


# ---- candidates


def test_candidates_are_drawn_from_the_model(enumerated: tuple[Model, Batch, list[list[int]], Tensor]) -> None:
    """Of 1,000 samples each first word comes as often as its probability; torch's seed decides them."""
    model, batch, *_ = enumerated
    objective = RewardObjective(task(model), num_candidates=1000)
    torch.manual_seed(5)
    drawn = objective.find_candidates(*sources(batch), [[A, B, END]])
    logits = model(batch.source, batch.source_lengths, torch.tensor([[2]]), torch.tensor([1]))[0, 0]
    first = np.bincount([labels[0] for labels in drawn.labels], drawn.counts, 6) / 1000
    np.testing.assert_allclose(first, logits.softmax(-1).detach().numpy(), atol=5 * 0.5 / 1000**0.5)
    assert drawn.counts.sum() == 1000
    assert len({tuple(labels) for labels in drawn.labels}) == len(drawn.labels)
    torch.manual_seed(5)
    assert objective.find_candidates(*sources(batch), [[A, B, END]]).labels == drawn.labels
    assert objective.find_candidates(*sources(batch), [[A, B, END]]).labels != drawn.labels
    assert model.training


def test_reference_is_a_candidate_of_minimum_risk() -> None:
    objective = MinimumRiskObjective(task(small_model()), num_candidates=3)
    drawn = objective.find_candidates(*sources(pair([A, A, B, B, END])), [[A, A, B, B, END]])
    assert drawn.labels[0] == [A, A, B, B, END]
    assert drawn.rewards[0] == pytest.approx(1.0)
    assert drawn.counts.sum() == 3
    without = MinimumRiskObjective(task(small_model()), num_candidates=3, include_reference=False)
    assert without.find_candidates(*sources(pair([A, END])), [[A, END]]).counts.min() >= 1


@pytest.mark.parametrize("name", ["reward", "minimum-risk"])
@pytest.mark.parametrize("settings", [{"candidates": "beam", "num_candidates": 3}, {"num_candidates": 4}])
@pytest.mark.parametrize("system", ["transformer", "gnmt", "transformer-d"])
def test_rows_without_a_pair_change_nothing(name: str, settings: dict[str, Any], system: str) -> None:
    """A GPU fills batches up with rows that have no label; loss and gradients are those without them."""
    model = small_model(system).float()
    objective = build_objective(name, task(model), settings)
    torch.manual_seed(1)
    loss = objective(one := pair([A, B, END]))
    plain = gradient(loss.total, model)
    filled = {name: torch.cat((tensor, tensor[:1])) for name, tensor in one.tensors().items()}
    filled["labels"][1] = IGNORE_INDEX
    torch.manual_seed(1)
    padded = objective(Batch(**filled, indices=one.indices, source_tokens=3, target_tokens=3))
    torch.testing.assert_close(padded.total, loss.total)
    torch.testing.assert_close(gradient(padded.total, model), plain, rtol=1e-4, atol=1e-5)
    assert loss.num_labels == 3
    assert bool(plain.isfinite().all())
    assert bool(plain.any())


def test_likelihood_is_added_with_its_weight() -> None:
    """With rewards that are all equal, only the weighted likelihood has a gradient."""
    model = small_model()
    loss = RewardObjective(task(model), likelihood_weight=0.25, candidates="beam", num_candidates=2)
    loss.metric = type("Zero", (Gleu,), {"paired": lambda self, texts, references: np.zeros(len(texts))})()
    batch = pair([A, B, END])
    mixed = loss(batch)
    with torch.no_grad():
        likelihood = loss(batch).total  # in validation
    torch.testing.assert_close(mixed.total.detach(), 0.25 * likelihood)
    torch.testing.assert_close(mixed.metrics["nll_loss"], likelihood)


def test_self_critical_baseline_is_the_reward_of_the_greedy_translation() -> None:
    objective = RewardObjective(task(small_model()), baseline="greedy", num_candidates=2)
    drawn = objective.find_candidates(*sources(pair([A, B, END])), [[A, B, END]])
    greedy = RewardObjective(task(small_model()), candidates="beam", num_candidates=1, baseline="none")
    best = greedy.find_candidates(*sources(pair([A, B, END])), [[A, B, END]])
    assert drawn.baseline is not None
    np.testing.assert_allclose(drawn.baseline, best.rewards)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_candidates": 1}, "num_candidates to 2 or more"),
        ({"likelihood_weight": -1.0}, "at least 0"),
        ({"reward": "blue"}, "reward"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_mistakes_are_answered(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_objective("reward", task(small_model()), settings)


# ---- rewards


def test_gleu_by_hand() -> None:
    """ "a b c" and "a b d e": 2 unigrams and 1 bigram match, of 3 + 2 + 1 and 4 + 3 + 2 + 1 n-grams."""
    assert Gleu().paired(["a b c"], ["a b d e"]) == pytest.approx([100 * 3 / 10])
    assert Gleu().paired(["a b d e"], ["a b c"]) == pytest.approx([100 * 3 / 10])  # symmetric
    assert Gleu().paired(["a a a", "", "a", ""], ["a", "a", "a", ""]) == pytest.approx([100 / 6, 0, 100, 0])


def test_gleu_equals_nltk() -> None:
    gleu_score = pytest.importorskip("nltk.translate.gleu_score")
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(["a", "b", "c", "dd", "e"], size=random.integers(1, 12))) for _ in range(80)]
    found = Gleu().paired(texts[:40], texts[40:])
    wanted = [100 * gleu_score.sentence_gleu([r.split()], h.split()) for h, r in zip(texts[:40], texts[40:])]
    np.testing.assert_allclose(found, wanted)


@pytest.mark.parametrize("metric", [Gleu(), Bleu(), ChrF()])
def test_paired_is_the_diagonal_of_pairwise(metric: Any) -> None:
    """Texts may repeat, be equal and be empty; `pairwise` equals sacreBLEU (test_minimum_bayes_risk)."""
    candidates = ["the cat sat", "a dog", "the cat sat", "", "x y z x y z x y"]
    references = ["the cat sat down", "a dog", "a dog", "a", "x y x y z"]
    once, other = list(dict.fromkeys(candidates)), list(dict.fromkeys(references))
    matrix = metric.pairwise(once, other)
    wanted = [matrix[once.index(c), other.index(r)] for c, r in zip(candidates, references)]
    np.testing.assert_allclose(metric.paired(candidates, references), wanted)


@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("bias", [True, False])
def test_token_log_probs_equal_torch(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    x, weight, b = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((9, 5), (7, 5), (7,)))
    labels, leaves = torch.randint(7, (9,)), [x, weight, b] if bias else [x, weight]
    labels[2] = IGNORE_INDEX
    weights = torch.randn(9, dtype=torch.float64)
    ours = TokenLogProbs.apply(x, weight, b if bias else None, labels, rows)
    logits = F.linear(x, weight, b if bias else None)
    theirs = -F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="none")
    torch.testing.assert_close(ours, theirs)
    expected = torch.autograd.grad((weights * theirs).sum(), leaves)
    torch.testing.assert_close(torch.autograd.grad((weights * ours).sum(), leaves), expected)
