"""Expected reward: −Σ_y p(y|x) r(y, y*), estimated on candidates that the model generates in every training step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data import IGNORE_INDEX, Batch
from dragoman.data.batch_arrays import pad_rows
from dragoman.errors import UserError
from dragoman.models import DecoderOnlyModel, EncoderDecoderModel
from dragoman.objectives.objective import Loss, SequenceObjective, TaskContext, token_log_probs
from dragoman.objectives.translation_objective import bpe_dropout_segmenters
from dragoman.search import Beam, Sample, SearchEngine, SpecialTokens, build_engine
from dragoman.search.ngram_metrics import Bleu, ChrF, Gleu, NGramMetric

Reward = Literal["gleu", "bleu", "chrf"]
CandidateSearch = Literal["samples", "beam"]
Baseline = Literal["samples", "greedy", "none"]
Floats = NDArray[np.float64]

REWARD_METRICS: dict[str, NGramMetric] = {"gleu": Gleu(), "bleu": Bleu(), "chrf": ChrF()}

GNMT_SAMPLES, GNMT_LIKELIHOOD_WEIGHT = 15, 0.017  # Wu et al. 2016, §5.3
RISK_SAMPLES, RISK_SHARPNESS = 100, 5e-3  # Shen et al. 2016, §4.2

# the largest length of a candidate by that of its reference; samples of a trained model hardly reach it
MAX_LENGTH_RATIO, MAX_LENGTH_OFFSET = 1.5, 5


@dataclass(frozen=True)
class CandidateSet:
    """Different candidates for the targets of N sentences: C candidates in all.

    Attributes:
        labels: the token ids of each candidate, with EOS if it ended by itself.
        sentence: C, the sentence that each belongs to.
        rewards: C, r(y, y*) from 0 to 1.
        counts: C, how often each was generated; 0 for a reference that was not.
        baseline: N, or None for the mean reward of the sentence's other candidates.
    """

    labels: list[list[int]]
    sentence: NDArray[np.int64]
    rewards: Floats
    counts: NDArray[np.int64]
    baseline: Floats | None = None

    def sum_by_sentence(self, candidate_values: Floats) -> Floats:
        """Sum the values of C candidates over each sentence; return for each candidate the sum of its sentence, C."""
        return np.bincount(self.sentence, candidate_values).astype(float)[self.sentence]

    def advantages(self) -> Floats:
        """Return the weight of each candidate's log p in the gradient (C): reward minus baseline, times its share.

        The share is how often the candidate was generated (`counts`), divided by how many candidates were generated for
        its sentence. Without a `baseline` for each sentence, it is the mean reward of the sentence's other candidates.
        """
        num_generated = self.sum_by_sentence(self.counts.astype(float))  # C: for the sentence of each candidate
        if self.baseline is not None:
            baseline = self.baseline[self.sentence]
        else:  # the mean reward of the others only, so that it is independent of the candidate
            total = self.sum_by_sentence(self.counts * self.rewards)
            baseline = (total - self.rewards) / np.maximum(num_generated - 1, 1)
        return (self.rewards - baseline) * self.counts / num_generated


class RewardObjective(SequenceObjective):
    """Maximizes the expected reward of generated targets, mixed with the likelihood (Wu et al. 2016, §5.2–5.3).

    L = −E_{y ~ p(y|x)} r(y, y*) − α log p(y*|x). The gradient of the expectation is that of Σ (r − b) log p over
    samples (REINFORCE, Williams 1992), where the baseline b only reduces the variance. The reward compares the
    detokenized words of a candidate with those of the reference. The system's dropout is off, as in GNMT: samples
    would otherwise come from another distribution than the one whose gradient is taken. Every token can be sampled,
    also those that a search suppresses later.

    Args:
        reward: sentence GLEU, BLEU or chrF.
        candidates: samples, or the n best of a beam, whose gradient is biased because they are not drawn from p.
        num_candidates: candidates per sentence (15 in GNMT).
        temperature: of the samples; other than 1, the gradient is biased.
        baseline: what is subtracted from the reward: the mean reward of the sentence's other samples (GNMT), the reward
            of the greedy translation (self-critical; Rennie et al. 2017), or none.
        likelihood_weight: weight α of −log p(y*|x) in the loss (0.017 in GNMT).
        dropout_enabled: apply the dropout of the system when gradients are computed; candidates are generated without.
    """

    model_kind = (EncoderDecoderModel, DecoderOnlyModel)
    generates = True
    default_bpe_dropout = False
    decodes_in_training = True
    improves = ("translation", "concatenation", "reward", "minimum-risk")
    learning_rate_factor = 0.1
    learning_rate_reason = "rewards of samples are noisy, and large steps would undo what is learned"
    warm_start_reason = (
        "an untrained model generates nothing that resembles a reference, so that all rewards are about 0: train it "
        "with the objective translation first, and give that run to --start-from"
    )
    default_candidates: ClassVar[int] = GNMT_SAMPLES
    include_reference = False

    @classmethod
    def training_cost(cls, settings: Mapping[str, Any]) -> float:
        """Return the training FLOPs of a pair relative to teacher forcing: the reference, and all candidates.

        A candidate is trained on like a target, and generated before, which costs a third of training on it.
        """
        return 1.0 + settings.get("num_candidates", cls.default_candidates) * 4 / 3

    def __init__(
        self,
        task: TaskContext,
        *,
        reward: Reward = "gleu",
        candidates: CandidateSearch = "samples",
        num_candidates: int = GNMT_SAMPLES,
        temperature: float = 1.0,
        baseline: Baseline = "samples",
        likelihood_weight: float = GNMT_LIKELIHOOD_WEIGHT,
        dropout_enabled: bool = False,
    ) -> None:
        """Set up the search for `num_candidates` candidates of each source, and the metric that scores them (`reward`).

        Candidates are samples, drawn with `temperature`, or the best of a beam. `baseline` is subtracted from rewards;
        `likelihood_weight` is the weight of the loss of the references. `dropout_enabled` applies dropout when
        gradients are computed: the trainer reads it through `uses_dropout`. A UserError is raised if the baseline needs
        other samples and there are none, and for a negative weight.
        """
        super().__init__(task)
        if baseline == "samples" and num_candidates < 2:
            raise UserError(
                "objective.settings.baseline=samples subtracts the mean reward of a sentence's other samples, but "
                "objective.settings.num_candidates allows only one sample: set num_candidates to 2 or more, or "
                "baseline to greedy"
            )
        if likelihood_weight < 0:
            raise UserError(
                "objective.settings.likelihood_weight is the weight of a loss and must be at least 0, but is "
                f"{likelihood_weight}: set it to 0 or more"
            )
        self.metric, self.baseline, self.likelihood_weight = REWARD_METRICS[reward], baseline, likelihood_weight
        self.search: Beam | Sample = Sample(temperature=temperature, n_best=num_candidates)
        if candidates == "beam":
            self.search = Beam(size=num_candidates, n_best=num_candidates)
        self.subword_samplers = bpe_dropout_segmenters(task)
        # the candidates of every step have other lengths: neither CUDA graphs nor several examples in a row (packing)
        self.static_shapes = self.supports_packing = False

    @classmethod
    def rows_per_pair(cls, settings: Mapping[str, Any]) -> int:
        """Return how many sequences the model is trained on for each pair: its candidates and the reference."""
        return 1 + int(settings.get("num_candidates", cls.default_candidates))

    @classmethod
    def uses_dropout(cls, settings: Mapping[str, Any]) -> bool:
        """Whether the system's dropout is applied in training: only with the setting `dropout_enabled`."""
        return bool(settings.get("dropout_enabled", False))

    def text_metrics(self, texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Return the mean reward of decoded validation sentences, from 0 to 100."""
        return {"reward": float(self.metric.paired(texts, references).mean())}

    def forward(self, batch: Batch, step: int = 0) -> Loss:
        """Compute the weighted loss of the references plus the risk of candidates; in validation only the loss.

        The risk is minus the mean reward of each sentence's candidates, summed over the sentences of the batch.
        """
        likelihood = super().forward(batch, step)
        if not torch.is_grad_enabled():
            return likelihood
        rows, references = self.references(batch)  # those that hold a pair
        source, lengths = batch.source[rows], batch.source_lengths[rows]
        candidates = self.find_candidates(source, lengths, references)
        log_p, auxiliary_losses = self.log_probs(source, lengths, candidates)
        total = self.likelihood_weight * likelihood.total + self.risk(candidates, log_p)
        for auxiliary in auxiliary_losses:  # means, such as load balancing, which are added once per label
            total = total + auxiliary * likelihood.num_labels
        return likelihood._replace(total=total)

    def references(self, batch: Batch) -> tuple[Tensor, list[list[int]]]:
        """Return the numbers of the rows of a batch that hold a pair (N), and the token ids of their targets, with EOS.

        Other rows only fill up the batch, and have no labels.
        """
        labels = batch.labels.tolist()
        targets = [[token for token in row if token != IGNORE_INDEX] for row in labels]
        rows = [number for number, target in enumerate(targets) if target]
        return torch.tensor(rows, device=batch.source.device), [targets[number] for number in rows]

    def find_candidates(self, source: Tensor, lengths: Tensor, references: Sequence[list[int]]) -> CandidateSet:
        """Generate candidates for sources (N S, with lengths N), and compute their rewards and baseline.

        Equal candidates of a source become one, with their number. The references, token ids with EOS, limit the
        lengths of candidates, and are candidates too with the setting `include_reference`. Random numbers come from
        torch's generator, which a training step seeds by seed, step and batch.
        """
        keys = torch.randint(2**62, (len(references),))  # seeds of the samples of each source
        limits = torch.tensor([int(MAX_LENGTH_RATIO * len(target)) + MAX_LENGTH_OFFSET for target in references])
        labels: list[list[int]] = []
        sentence: list[int] = []
        counts: list[int] = []
        for number, generated in enumerate(self._generate(self.engine, source, lengths, limits, keys)):
            # candidate → how often it was generated; the reference may be a candidate that was not
            count_of: dict[tuple[int, ...], int] = {tuple(references[number]): 0} if self.include_reference else {}
            for tokens in generated:
                count_of[tuple(tokens)] = count_of.get(tuple(tokens), 0) + 1
            labels += map(list, count_of)
            sentence += [number] * len(count_of)
            counts += count_of.values()
        reference_texts = [self._text(target) for target in references]
        rewards = self._rewards(labels, [reference_texts[number] for number in sentence])
        baseline = None
        if self.baseline == "greedy":
            translations = self._generate(self.greedy_engine, source, lengths, limits, keys)  # one for each source
            baseline = self._rewards([best for (best,) in translations], reference_texts)
        elif self.baseline == "none":
            baseline = np.zeros(len(references))
        return CandidateSet(labels, np.array(sentence), rewards, np.array(counts), baseline)

    def _generate(
        self, engine: SearchEngine, source: Tensor, lengths: Tensor, limits: Tensor, keys: Tensor
    ) -> list[list[list[int]]]:
        """Return the token ids of the targets that an engine generates for each source, with EOS unless truncated.

        Sources are N S, with lengths N; `limits` (N) are the largest lengths of the targets, unless the model's own
        limit is smaller; `keys` (N) seed the random numbers of each source. Dropout is off meanwhile.
        """
        model, max_lengths = self.model, limits.to(source.device)
        if (limit := model.max_target_length(lengths)) is not None:
            max_lengths = torch.minimum(max_lengths, limit.clamp(min=1))
        was_training = model.training
        model.eval()
        # without autocast: its converted weights live for one step, so that CUDA graphs must not refer to them
        with torch.autocast(source.device.type, enabled=False), cumulative_sums_allowed():
            results = engine.search(source, lengths, max_lengths, keys)
        model.train(was_training)
        eos = [self.task.framing.eos]
        return [[[*y.tokens, *(eos if y.finished else ())] for y in hypotheses] for hypotheses in results]

    @cached_property
    def engine(self) -> SearchEngine:
        """The engine that generates candidates with the present weights."""
        return build_engine([self.model], self._special_tokens, self.search)

    @cached_property
    def greedy_engine(self) -> SearchEngine:
        """The engine that generates the greedy translation, whose reward may be the baseline."""
        return build_engine([self.model], self._special_tokens, Beam(size=1))

    @property
    def _special_tokens(self) -> SpecialTokens:
        """The special tokens that a search needs to know: BOS, EOS and forced first tokens, such as a language code.

        None is suppressed, so that every token can be generated.
        """
        framing = self.task.framing
        return SpecialTokens(framing.bos, framing.eos, forced_bos=framing.forced_bos)

    def _rewards(self, labels: Sequence[list[int]], references: Sequence[str]) -> Floats:
        """Return the rewards, from 0 to 1, of candidates (token ids), each compared with the text of its reference."""
        return self.metric.paired([self._text(tokens) for tokens in labels], references) / 100

    def _text(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids without special and forced tokens.

        Ids that the tokenizer does not know, such as those of sentinels, are left out, too.
        """
        tokenizer, framing = self.task.target_tokenizer, self.task.framing
        ignored = {framing.eos, *framing.suppressed, *framing.forced_bos}
        return tokenizer.decode([token for token in tokens if token not in ignored and token < tokenizer.vocab_size])

    def log_probs(self, source: Tensor, lengths: Tensor, candidates: CandidateSet) -> tuple[Tensor, Sequence[Tensor]]:
        """Return log p(y|x) of every candidate (C) with teacher forcing, and the auxiliary losses of the layers.

        Sources are ids N S, with lengths N; `candidates.sentence` (C) has the row of each candidate's source.
        """
        device, framing = source.device, self.task.framing
        # the decoder reads BOS and all tokens but the last, and predicts all tokens
        inputs, input_lengths = pad_rows([[framing.bos, *tokens[:-1]] for tokens in candidates.labels], framing.pad)
        labels, _ = pad_rows(candidates.labels, IGNORE_INDEX)
        labels[:, : len(framing.forced_bos)] = IGNORE_INDEX  # forced first tokens are generated with probability 1
        target, target_lengths, sentence = (
            tensor.to(device) for tensor in (inputs, input_lengths, torch.from_numpy(candidates.sentence))
        )
        features = self.model.forward_targets(source, lengths, target, target_lengths, sentence)
        log_p = token_log_probs(self.model.output, features.output, labels.to(device), features.copying).sum(1)
        return log_p, features.auxiliary_losses

    def risk(self, candidates: CandidateSet, log_p: Tensor) -> Tensor:
        """Return minus the mean reward, summed over sentences; its gradient is that of −Σ (r − b) log p(y|x).

        r is the reward of a candidate, b the baseline. `log_p` (C) are the log-probabilities of the C candidates.
        """
        weights = torch.from_numpy(candidates.advantages()).to(log_p)
        surrogate = -(weights * log_p).sum()
        shares = candidates.counts / candidates.sum_by_sentence(candidates.counts.astype(float))
        # the value of the surrogate, which has no meaning, cancels out; its gradient remains
        return surrogate - surrogate.detach() - float((shares * candidates.rewards).sum())


@contextmanager
def cumulative_sums_allowed() -> Iterator[None]:
    """Disable torch's check for deterministic algorithms (setting `training.deterministic`) to allow sampling.

    The check rejects all cumulative sums on a GPU, but those over rows, which sampling needs, are deterministic.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)


class MinimumRiskObjective(RewardObjective):
    """Minimizes the risk over a set of candidates (Shen et al. 2016): −Σ_y q(y) r(y, y*).

    q(y) = p(y|x)^α / Σ_y′ p(y′|x)^α over the different candidates of a sentence. It is differentiated exactly, without
    a baseline. Otherwise as the objective reward.

    Args:
        reward: sentence GLEU, BLEU or chrF.
        candidates: samples, or the n best of a beam.
        num_candidates: candidates per sentence (100 in the paper).
        temperature: of the samples.
        sharpness: exponent α of p(y|x) (0.005 in the paper); with 1, q is p renormalized.
        include_reference: add the reference to the candidates, as in the paper.
        likelihood_weight: weight of −log p(y*|x) in the loss (0 in the paper).
        dropout_enabled: apply the dropout of the system when gradients are computed; candidates are generated without.
    """

    default_candidates = RISK_SAMPLES

    def __init__(
        self,
        task: TaskContext,
        *,
        reward: Reward = "bleu",
        candidates: CandidateSearch = "samples",
        num_candidates: int = RISK_SAMPLES,
        temperature: float = 1.0,
        sharpness: float = RISK_SHARPNESS,
        include_reference: bool = True,
        likelihood_weight: float = 0.0,
        dropout_enabled: bool = False,
    ) -> None:
        """Set up the search for `num_candidates` candidates of each source, and the metric that scores them (`reward`).

        Candidates are samples, drawn with `temperature`, or the best of a beam, and the reference if
        `include_reference`. Their probabilities are raised to the power of `sharpness`, which must be above 0, and
        normalized. `likelihood_weight` is the weight of the loss of the references. `dropout_enabled` applies dropout
        when gradients are computed, not when candidates are generated.
        """
        super().__init__(
            task,
            reward=reward,
            candidates=candidates,
            num_candidates=num_candidates,
            temperature=temperature,
            baseline="none",  # the risk is differentiated exactly
            likelihood_weight=likelihood_weight,
            dropout_enabled=dropout_enabled,
        )
        if sharpness <= 0:
            raise UserError(
                "objective.settings.sharpness is an exponent of probabilities and must be above 0, but is "
                f"{sharpness}: set it to a positive number, such as 0.005"
            )
        self.sharpness, self.include_reference = sharpness, include_reference

    def risk(self, candidates: CandidateSet, log_p: Tensor) -> Tensor:
        """Return −Σ q(y) r(y), summed over sentences, where q(y) = p(y|x)^α / Σ p^α with α the `sharpness`.

        `log_p` (C) are the log-probabilities of the candidates, which are ordered by sentence.
        """
        sentence = candidates.sentence
        # C: number of each candidate (0, 1, …) among those of its sentence
        number = np.arange(len(sentence)) - np.searchsorted(sentence, sentence)
        index = tuple(torch.from_numpy(indices).to(log_p.device) for indices in (sentence, number))
        shape = (int(sentence.max()) + 1, int(number.max()) + 1)  # sentences, candidates
        # −∞: probability 0 of the places that a sentence with fewer candidates leaves empty
        scores = log_p.new_full(shape, -torch.inf).index_put(index, self.sharpness * log_p)
        rewards = log_p.new_zeros(shape).index_put(index, torch.from_numpy(candidates.rewards).to(log_p))
        return -(scores.softmax(-1) * rewards).sum()
