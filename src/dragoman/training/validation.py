"""Validation: loss by teacher forcing, and what the model says when it is on its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from dragoman import evaluation
from dragoman.data import Batches, Framing, TokenStore
from dragoman.objectives import Translation
from dragoman.run import Run
from dragoman.search import Beam


@dataclass(frozen=True)
class Sample:
    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Validation:
    """What a validation found. BLEU is of greedy translations of the first sentences, the loss of all."""

    loss: float
    perplexity: float
    bleu: float
    exact_match: float
    samples: list[Sample]

    def record(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if name != "samples"}


class Validator:
    """Validates a model on the run's validation store, always in the same way."""

    def __init__(self, run: Run, store: TokenStore, tokens: int, sentences: int) -> None:
        self.run, self.store = run, store
        target = run.target_tokenizer
        framing = Framing(target.pad, target.start, target.end)
        self.batches = Batches(store, max(tokens, store.longest + 2), seed=0, shuffle=False, framing=framing)
        self.objective = Translation(pad=target.pad)
        shown = range(min(sentences, len(store)))
        self.sources = [run.source_tokenizer.decode(store.source(i).tolist()) for i in shown]
        self.references = [target.decode(store.target(i).tolist()) for i in shown]

    @torch.inference_mode()
    def validate(self) -> Validation:
        model, training = self.run.model, self.run.model.training
        model.eval()
        total, count = 0.0, 0
        for batch in self.batches.epoch(0):
            loss = self.objective(model, batch.to(self.run.device))
            total, count = total + float(loss.total), count + loss.count
        greedy = Beam(1, length_penalty=self.run.config.search.length_penalty)
        texts = [t.text for t in self.run.translate(self.sources, search=greedy, alignment=False)]
        model.train(training)
        perplexity = evaluation.perplexity(-total, count).value
        bleu, exact = 0.0, 0.0
        if texts:
            bleu = evaluation.bleu(texts, self.references).value
            exact = evaluation.exact_match(texts, self.references).value
        shown = list(map(Sample, self.sources, self.references, texts))[:20]
        return Validation(total / count, perplexity, bleu, exact, shown)
