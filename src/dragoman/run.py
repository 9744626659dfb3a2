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
from dragoman.models import Model, ModelSpec, model_from_dict
from dragoman.parts.spec import Spec
from dragoman.search import Beam, Hypothesis, Length, Search, Symbols, search
from dragoman.search.alignment import attention_weights, cross_attention, word_alignment
from dragoman.search.scoring import token_scores
from dragoman.text import SYMBOLS, Tokenizer

CONFIG, MODEL, METRICS, CHECKPOINTS = "config.yaml", "model.json", "metrics.jsonl", "checkpoints"
Links = list[tuple[int, int]]  # (source word, target word)
WINDOW = 4096  # lines that are sorted and translated together


@dataclass(frozen=True)
class Translation:
    """A translation: its text, log p(y|x), pieces, word alignment, and the next best ones if they were asked for."""

    text: str
    score: float
    tokens: list[str] = field(default_factory=list)
    alignment: Links | None = None
    alternatives: list[Translation] = field(default_factory=list)
    finished: bool = True  # False: cut off at the length limit
    whole: bool = True  # False: the source was longer than the run reads, and only its beginning was translated


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
    alignment: Links


class Run:
    """A trained model with its tokenizers, ready to use."""

    def __init__(
        self,
        folder: Path,
        settings: Config,
        model: Model,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        checkpoint_name: str,
    ) -> None:
        self.folder, self.config, self.model = folder, settings, model
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.checkpoint = checkpoint_name
        target = target_tokenizer
        specials = [i for i in range(len(SYMBOLS)) if i not in (target.end, target.unknown)]
        self.symbols = Symbols(target.start, target.end, tuple(specials))
        #: how many tokens of a source are read, END counted in
        self.longest_source = min(
            settings.search.longest_source, model.longest_source or settings.search.longest_source
        )

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def spec(self) -> ModelSpec:
        return self.model.spec  # type: ignore[return-value]

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
        room = self.model.vocabulary - len(self.symbols.banned) - 1
        size = min(self.config.search.beam, room) if beam is None else beam  # a toy vocabulary has no room for a beam
        return Beam(size, self.config.search.length_penalty, length=self.length)

    @property
    def length(self) -> Length:
        """How long targets may get, as the run's configuration says."""
        search = self.config.search
        return Length(search.length_ratio, search.length_extra, search.longest_target)

    def _translate_window(self, texts: list[str], settings: Search, alignment: bool, first: int) -> list[Translation]:
        full = self.source_tokenizer.encode_batch(texts)
        sources = [self._cut(ids) for ids in full]
        results = [Translation("", 0.0, alignment=[] if alignment else None)] * len(texts)
        written = np.array([i for i, text in enumerate(texts) if text.strip()], dtype=np.int64)
        lengths = np.array([len(sources[i]) for i in written])
        budget = max(1, self.config.search.tokens // settings.rows)
        for batch in sorted_batches(lengths, budget) if len(written) else []:
            rows = written[batch]
            source, source_lengths = self.pad([sources[i] for i in rows], self.source_tokenizer.pad)
            keys = torch.from_numpy(rows + first)
            found = search(self.model, source, source_lengths, self.symbols, settings, keys)
            targets = [hypotheses[0].tokens for hypotheses in found]
            links = self._align(source, source_lengths, targets) if alignment else None
            for n, (i, hypotheses) in enumerate(zip(rows, found)):
                whole = len(full[i]) < self.longest_source
                results[i] = self._translation(hypotheses, links[n] if links else None, whole)
        return results

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with END, cut at the longest source that the run reads."""
        return [self._cut(ids) for ids in self.source_tokenizer.encode_batch(list(texts))]

    def _cut(self, ids: list[int]) -> list[int]:
        return [*ids[: self.longest_source - 1], self.source_tokenizer.end]

    def _translation(self, hypotheses: list[Hypothesis], links: Links | None, whole: bool) -> Translation:
        best, *others = (
            Translation(
                self.target_tokenizer.decode(h.tokens),
                h.score,
                self.target_tokenizer.pieces(h.tokens),
                finished=h.finished,
            )
            for h in hypotheses
        )
        return Translation(best.text, best.score, best.tokens, links, others, best.finished, whole)

    def _align(self, source: Tensor, source_lengths: Tensor, targets: list[list[int]]) -> list[Links] | None:
        """The word alignments of some targets, ids without START and END; None for systems without attention."""
        framed = [[self.symbols.start, *ids] for ids in targets]
        target, target_lengths = self.pad(framed, self.target_tokenizer.pad)
        cross = cross_attention(
            self.model, attention_weights(self.model, source, source_lengths, target, target_lengths)
        )
        if cross is None:
            return None
        return [
            word_alignment(
                weights,
                self.source_tokenizer.word_of_piece(ids[:length].tolist()),
                self.target_tokenizer.word_of_piece(written),
            )
            for weights, ids, length, written in zip(cross, source, source_lengths.tolist(), targets)
        ]

    # ---- scores and looks

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Scored]:
        """log p(y|x) of given translations."""
        results = [Scored(0.0, [], [])] * len(sources)
        for rows, source_ids, target_ids in self._pairs(sources, targets):
            source, source_lengths = self.pad(source_ids, self.source_tokenizer.pad)
            framed = [self._framed(ids) for ids in target_ids]
            target, target_lengths = self.pad(framed, self.target_tokenizer.pad)
            scores = token_scores(self.model, source, source_lengths, target, target_lengths).tolist()
            for i, ids, row in zip(rows, framed, scores):
                pieces = self.target_tokenizer.pieces(ids[1:])
                results[i] = Scored(sum(row), pieces, row[: len(pieces)])
        return results

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[Links] | None:
        """Word alignments of given translations: (source word, target word); None for systems without attention."""
        results: list[Links] = [[] for _ in sources]
        for rows, source_ids, target_ids in self._pairs(sources, targets):
            source, source_lengths = self.pad(source_ids, self.source_tokenizer.pad)
            links = self._align(source, source_lengths, target_ids)
            if links is None:
                return None
            for i, found in zip(rows, links):
                results[i] = found
        return results

    def _pairs(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> Iterator[tuple[list[int], list[list[int]], list[list[int]]]]:
        """Pairs in batches of like length: their numbers, source ids with END, target ids bare."""
        if len(sources) != len(targets):
            raise UserError(f"{len(sources):,} sources cannot go with {len(targets):,} targets: one each is needed")
        if not sources:
            return
        source_ids, target_ids = self.encode_sources(sources), self.target_tokenizer.encode_batch(list(targets))
        lengths = np.array([max(len(s), len(t) + 2) for s, t in zip(source_ids, target_ids)])
        for rows in sorted_batches(lengths, self.config.search.tokens):
            yield rows.tolist(), [source_ids[i] for i in rows], [target_ids[i] for i in rows]

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


def read_spec(folder: Path, parts: Sequence[type[Spec]] = ()) -> ModelSpec:
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
    return model_from_dict(spec, {part.__name__: part for part in parts})


def read_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The source's and the target's, which are one where the file is joint."""
    if (folder / "tokenizer.json").exists():
        joint = Tokenizer.load(folder / "tokenizer.json")
        return joint, joint
    return Tokenizer.load(folder / "tokenizer.source.json"), Tokenizer.load(folder / "tokenizer.target.json")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last one that a full disk or a kill has cut short is left out."""
    path = folder / METRICS
    records = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def checkpoint_names(folder: Path) -> list[str]:
    """The checkpoints by name, steps first, then best, last and averaged where they are."""
    place = folder / CHECKPOINTS
    return sorted(p.name for p in place.iterdir() if not p.name.startswith(".")) if place.is_dir() else []
