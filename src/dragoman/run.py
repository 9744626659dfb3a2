"""The run: the folder that a training leaves and everything else reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman import checkpoint, config
from dragoman.config import Config
from dragoman.data.batching import sorted_batches
from dragoman.errors import UserError
from dragoman.models import EncoderDecoder, EncoderDecoderModel, model_from_dict
from dragoman.parts.spec import Spec
from dragoman.search import Beam, Hypothesis, Search, Symbols, search
from dragoman.search.alignment import attention_weights, cross_attention, word_alignment
from dragoman.search.scoring import token_scores
from dragoman.text import Tokenizer

CONFIG, MODEL, METRICS, CHECKPOINTS = "config.yaml", "model.json", "metrics.jsonl", "checkpoints"
WINDOW = 4096  # lines that are sorted and translated together


@dataclass(frozen=True)
class Translation:
    """A translation: its text, log p(y|x), pieces, word alignment, and the next best ones if they were asked for."""

    text: str
    score: float
    tokens: list[str] = field(default_factory=list)
    alignment: list[tuple[int, int]] | None = None  # (source word, target word)
    alternatives: list[Translation] = field(default_factory=list)
    finished: bool = True  # False: cut off at the length limit


@dataclass(frozen=True)
class Scored:
    """log p(y|x), in all and for every piece, END last."""

    score: float
    tokens: list[str]
    token_scores: list[float]


@dataclass(frozen=True)
class Attention:
    """Every attention of one sentence pair: by the path of its part, H T S, with the pieces on either side."""

    source: list[str]
    target: list[str]  # row t was looked at to choose this piece
    weights: dict[str, Tensor]
    cross: Tensor | None  # T S: the looks at the source, mean over heads and layers
    alignment: list[tuple[int, int]]


class Run:
    """A trained model with its tokenizers, ready to use."""

    def __init__(
        self,
        folder: Path,
        settings: Config,
        model: EncoderDecoderModel,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        checkpoint_name: str,
    ) -> None:
        self.folder, self.config, self.model = folder, settings, model
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.checkpoint = checkpoint_name
        target = target_tokenizer
        specials = [i for i in range(min(target.size, 7)) if i not in (target.end, target.unknown)]
        self.symbols = Symbols(target.start, target.end, tuple(specials))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def spec(self) -> EncoderDecoder:
        return self.model.spec

    # ---- translation

    def translate(
        self, texts: Sequence[str], beam: int | None = None, *, search: Search | None = None, alignment: bool = True
    ) -> list[Translation]:
        """The translations of some texts, in order; an empty text stays empty."""
        return list(self.translate_stream(texts, self._search(beam, search), alignment=alignment))

    def translate_stream(
        self, texts: Iterable[str], settings: Search, *, alignment: bool = False
    ) -> Iterator[Translation]:
        """The same for any number of texts in bounded memory: sorted by length within a window, given back in order."""
        texts, first = iter(texts), 0
        while window := list(islice(texts, WINDOW)):
            yield from self._translate_window(window, settings, alignment, first)
            first += len(window)

    def _search(self, beam: int | None, settings: Search | None) -> Search:
        if settings is not None:
            return settings
        return Beam(beam or self.config.search.beam, self.config.search.length_penalty)

    def _translate_window(self, texts: list[str], settings: Search, alignment: bool, first: int) -> list[Translation]:
        sources = self.encode_sources(texts)
        results = [Translation("", 0.0, alignment=[] if alignment else None)] * len(texts)
        written = np.array([i for i, text in enumerate(texts) if text.strip()], dtype=np.int64)
        lengths = np.array([len(sources[i]) for i in written])
        width = settings.size if isinstance(settings, Beam) else settings.best
        budget = max(1, self.config.search.tokens // width)
        for batch in sorted_batches(lengths, budget) if len(written) else []:
            rows = written[batch]
            source, source_lengths = self.pad([sources[i] for i in rows], self.source_tokenizer.pad)
            keys = torch.from_numpy(rows + first)
            found = search(self.model, source, source_lengths, self.symbols, settings, keys)
            links = self._align(source, source_lengths, found) if alignment else [None] * len(rows)
            for i, hypotheses, link in zip(rows, found, links):
                results[i] = self._translation(hypotheses, link)
        return results

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with END, cut at the longest source that the run reads."""
        limits = [self.config.search.longest_source, self.model.limits[0]]
        longest = min(limit for limit in limits if limit is not None) - 1
        return [[*ids[:longest], self.source_tokenizer.end] for ids in self.source_tokenizer.encode_batch(list(texts))]

    def _translation(self, hypotheses: list[Hypothesis], links: list[tuple[int, int]] | None) -> Translation:
        best, *others = (
            Translation(
                self.target_tokenizer.decode(h.tokens),
                h.score,
                self.target_tokenizer.pieces(h.tokens),
                finished=h.finished,
            )
            for h in hypotheses
        )
        return Translation(best.text, best.score, best.tokens, links, others, best.finished)

    def _align(
        self, source: Tensor, source_lengths: Tensor, found: list[list[Hypothesis]]
    ) -> list[list[tuple[int, int]] | None]:
        targets = [[self.symbols.start, *hypotheses[0].tokens] for hypotheses in found]
        target, target_lengths = self.pad(targets, self.target_tokenizer.pad)
        cross = cross_attention(
            self.model, attention_weights(self.model, source, source_lengths, target, target_lengths)
        )
        if cross is None:
            return [None] * len(found)
        return [
            word_alignment(
                weights,
                self.source_tokenizer.word_of_piece(ids[:length].tolist()),
                self.target_tokenizer.word_of_piece(hypotheses[0].tokens),
            )
            for weights, ids, length, hypotheses in zip(cross, source, source_lengths.tolist(), found)
        ]

    # ---- scores and looks

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Scored]:
        """log p(y|x) of given translations."""
        if len(sources) != len(targets):
            raise UserError(f"{len(sources):,} sources cannot be scored with {len(targets):,} targets: one each")
        results: list[Scored | None] = [None] * len(sources)
        source_ids = self.encode_sources(sources)
        target_ids = [self._framed(ids) for ids in self.target_tokenizer.encode_batch(list(targets))]
        lengths = np.array([max(len(s), len(t)) for s, t in zip(source_ids, target_ids)])
        for rows in sorted_batches(lengths, self.config.search.tokens) if len(sources) else []:
            source, source_lengths = self.pad([source_ids[i] for i in rows], self.source_tokenizer.pad)
            target, target_lengths = self.pad([target_ids[i] for i in rows], self.target_tokenizer.pad)
            scores = token_scores(self.model, source, source_lengths, target, target_lengths).tolist()
            for i, row in zip(rows, scores):
                pieces = self.target_tokenizer.pieces(target_ids[i][1:])
                results[i] = Scored(sum(row), pieces, row[: len(pieces)])
        return [scored for scored in results if scored is not None]

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[tuple[int, int]]] | None:
        """Word alignments of given translations: (source word, target word); None for systems without attention."""
        links = [self.attention(source, target) for source, target in zip(sources, targets)]
        return None if any(one.cross is None for one in links) else [one.alignment for one in links]

    def attention(self, source: str, target: str | None = None) -> Attention:
        """Everything that was looked at, for a given translation or for the one that the run finds."""
        ids = self.encode_sources([source])[0]
        if target is None:
            target = self.translate([source], alignment=False)[0].text
        target_ids = self._framed(self.target_tokenizer.encode(target))
        sides = (*self.pad([ids], 0), *self.pad([target_ids[:-1]], 0))
        weights = attention_weights(self.model, *sides)
        cross = cross_attention(self.model, weights)
        source_words = self.source_tokenizer.word_of_piece(ids)
        target_words = self.target_tokenizer.word_of_piece(target_ids[1:])
        return Attention(
            self.source_tokenizer.pieces(ids),
            self.target_tokenizer.pieces(target_ids[1:]),
            {path: w[0].cpu() for path, w in weights.items()},
            None if cross is None else cross[0].cpu(),
            [] if cross is None else word_alignment(cross[0], source_words, target_words),
        )

    @torch.inference_mode()
    def logits(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        """Logits at every target position, B T V, from padded ids, B S and B T; the pad id may stand left or right."""
        source, source_lengths, _ = _to_the_left(source_ids.to(self.device), self.source_tokenizer.pad)
        target, target_lengths, order = _to_the_left(target_ids.to(self.device), self.target_tokenizer.pad)
        logits = self.model(source, source_lengths, target, target_lengths)
        back = order.argsort(1)
        return logits.gather(1, back[..., None].expand_as(logits))

    def pad(self, rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
        """B T ids and B lengths on the model's device."""
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.full((len(rows), int(lengths.max())), pad)
        for row, values in zip(ids, rows):
            row[: len(values)] = torch.tensor(values)
        return ids.to(self.device), lengths.to(self.device)

    def _framed(self, ids: list[int]) -> list[int]:
        return [self.target_tokenizer.start, *ids, self.target_tokenizer.end]

    # ---- what the folder holds

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: what was measured, step by step."""
        return read_metrics(self.folder)

    def checkpoints(self) -> list[str]:
        return checkpoint_names(self.folder)


def _to_the_left(ids: Tensor, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows with their real tokens first, the lengths, and the order that did it (B T)."""
    order = (ids == pad).long().argsort(dim=1, stable=True)
    return ids.gather(1, order), (ids != pad).sum(1), order


def load(
    folder: str | Path,
    checkpoint_name: str = "best",
    device: str | None = None,
    parts: Sequence[type[Spec]] = (),
) -> Run:
    """Open a run folder for use; `parts` are a user's own parts, if its model has any."""
    folder = Path(folder)
    spec = read_spec(folder, parts)
    settings = config.from_yaml(folder / CONFIG)
    source_tokenizer, target_tokenizer = read_tokenizers(folder)
    model = spec.build()
    place = folder / CHECKPOINTS / checkpoint_name
    if not place.exists():
        known = ", ".join(checkpoint_names(folder)) or "none: nothing has been trained yet"
        raise UserError(f"{folder} has no checkpoint {checkpoint_name!r}; it has {known}")
    checkpoint.load_weights(model, place)
    model.eval().to(pick_device(device or "auto"))
    return Run(folder, settings, model, source_tokenizer, target_tokenizer, place.resolve().name)


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}: use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda was asked for, but no GPU can be used here: use --device cpu")
    return device


def is_run(folder: Path) -> bool:
    return (folder / MODEL).exists()


def read_spec(folder: Path, parts: Sequence[type[Spec]] = ()) -> EncoderDecoder:
    if not folder.exists():
        raise UserError(f"{folder} does not exist: name a run folder, which 'dragoman train' makes")
    if not is_run(folder):
        raise UserError(f"{folder} is not a run folder: it has no {MODEL}")
    try:
        document = json.loads((folder / MODEL).read_text(encoding="utf-8"))
        version, spec = document["version"], document["spec"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder / MODEL} is damaged: it must hold a version and a spec") from None
    if version != 1:
        raise UserError(f"{folder / MODEL} has format {version!r}, but only 1 is known here: update dragoman")
    model = model_from_dict(spec, {part.__name__: part for part in parts})
    if not isinstance(model, EncoderDecoder):
        raise UserError(f"{folder / MODEL} describes a {type(model).__name__}, which is no model")
    return model


def read_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The source's and the target's, which are one where the file is joint."""
    if (folder / "tokenizer.json").exists():
        joint = Tokenizer.load(folder / "tokenizer.json")
        return joint, joint
    return Tokenizer.load(folder / "tokenizer.source.json"), Tokenizer.load(folder / "tokenizer.target.json")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / METRICS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def checkpoint_names(folder: Path) -> list[str]:
    """The checkpoints by name, steps first, then best, last and averaged where they are."""
    place = folder / CHECKPOINTS
    return sorted(p.name for p in place.iterdir() if not p.name.startswith(".")) if place.is_dir() else []
