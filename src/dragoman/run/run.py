"""The run: a trained model with its tokenizers, ready to use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman import checkpoint, config
from dragoman.config import Config
from dragoman.data.batching import sorted_batches
from dragoman.data.reading import dialogue
from dragoman.data.signals import checked
from dragoman.errors import UserError, unknown
from dragoman.models import DecoderOnlyModel, Model, ModelSpec
from dragoman.parts.spec import Spec
from dragoman.run import labels
from dragoman.run.folder import (
    CHECKPOINTS,
    CONFIG,
    checkpoint_names,
    pick_device,
    read_framing,
    read_metrics,
    read_spec,
    read_tokenizers,
)
from dragoman.run.results import Attention, Filled, Links, Scored, Tagged, Translation
from dragoman.run.wishes import Wishes
from dragoman.search import Beam, Decision, Hypothesis, Length, MinimumRisk, Sample, Symbols, engine
from dragoman.search.alignment import attention_weights, cross_attention, word_alignment
from dragoman.search.forbidden import Forbidden
from dragoman.search.scoring import token_scores
from dragoman.search.unknown import UnknownWords
from dragoman.text import Framing, Tokenizer

WINDOW = 4096  # lines that are sorted and translated together
WAITING = 4  # sources that are given to a search for each that it works on

NO_WISHES = Wishes()

Source = str | NDArray[Any]  # a text, or vectors in its place, S F
Tag = str | Sequence[str] | None  # for all texts, or one for each; None: as the run would


class Run:
    """A trained model with its tokenizers, ready to use."""

    def __init__(
        self,
        folder: Path,
        settings: Config,
        model: Model,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        framing: Framing,
        checkpoint_name: str,
    ) -> None:
        self.folder, self.config, self.model = folder, settings, model
        self.others: list[Model] = []  # that write together with it
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.framing, self.checkpoint = framing, checkpoint_name
        self.symbols = Symbols(framing.start, framing.end, framing.banned, framing.forced, framing.closed)
        #: how many tokens of a source are read, the symbols around it counted in
        longest = settings.search.longest_source
        self.longest_source = min(longest, model.longest_source or longest)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def spec(self) -> ModelSpec:
        return self.model.spec  # type: ignore[return-value]

    def together(self, *others: Run) -> Run:
        """This run and others as an ensemble, which writes each word by the mean of their probabilities.

        The systems may be different ones, the words may not. What is not about translating is this run's own.
        """
        for other in others:
            self._check_words(other)
        joined = copy(self)
        joined.others = [*self.others, *(model for other in others for model in other.models)]
        return joined

    @property
    def models(self) -> list[Model]:
        return [self.model, *self.others]

    def _check_words(self, other: Run) -> None:
        """Refuse a run that cuts text into other tokens, or that is on another device."""
        own, its = ((run.source_tokenizer.to_json(), run.target_tokenizer.to_json()) for run in (self, other))
        if own != its or self.framing != other.framing:
            raise UserError(
                f"{other.folder} cuts text into other tokens than {self.folder}, but an ensemble has one vocabulary: "
                "take runs that were trained on the same text, with other seeds or systems"
            )
        if self.model.source_features != other.model.source_features:
            raise UserError(f"{other.folder} reads something else than {self.folder}: an ensemble reads one source")
        if self.device != other.device:
            raise UserError(f"{other.folder} is on {other.device} and {self.folder} on {self.device}: load both on one")

    # ---- translation

    def translate(
        self,
        texts: Sequence[Source],
        beam: int | None = None,
        *,
        search: Decision | None = None,
        alignment: bool = True,
        dictionary: Mapping[str, str] | None = None,
        tag: Tag = None,
        prefixes: Sequence[str] | None = None,
        required: Sequence[Sequence[str]] | None = None,
        forbidden: Sequence[str] = (),
    ) -> list[Translation]:
        """The translations of some texts, in order; an empty text stays empty.

        A run that reads images or speech is given arrays of length × features instead.
        `tag` names the corpus (of data.tags) from which the texts shall be taken to be: the first, unless told.
        `prefixes` say how each translation begins ('' for any); what they cost is counted in the scores. `required` are
        phrases that each must contain, `forbidden` ones that none may, as whole words.
        With a dictionary, which may be empty, unknown words of a closed vocabulary are looked up in it or copied.
        """
        settings = self._search(beam, search)
        for name, given in (("prefixes", prefixes), ("lists of required phrases", required)):
            if given is not None and len(given) != len(texts):
                raise UserError(f"{len(given)} {name} came with {len(texts)} texts: give one for each, '' for any")
        return list(
            self.translate_stream(
                texts,
                settings,
                alignment=alignment,
                dictionary=dictionary,
                tag=tag,
                prefixes=prefixes,
                required=required,
                forbidden=forbidden,
            )
        )

    def translate_stream(
        self,
        texts: Iterable[Source],
        settings: Decision,
        *,
        alignment: bool = False,
        dictionary: Mapping[str, str] | None = None,
        tag: Tag = None,
        first: int = 0,
        prefixes: Iterable[str] | None = None,
        required: Iterable[Sequence[str]] | None = None,
        forbidden: Sequence[str] = (),
    ) -> Iterator[Translation]:
        """The same for any number of texts in bounded memory: sorted by length within a window, given back in order.

        `first` is the number of the first text, where others were translated before: samples are drawn by it.
        """
        self._needs_a_writer()
        unknown = None
        if dictionary is not None:
            unknown = UnknownWords(self.source_tokenizer, self.target_tokenizer, dictionary)
            if forbidden:
                raise UserError(
                    "unknown words are replaced after the search, which could not keep phrases away: do without"
                )
        texts, place = iter(texts), 0
        beginnings = None if prefixes is None else iter(prefixes)
        phrases = None if required is None else iter(required)
        never = None
        if forbidden:
            never = Forbidden(self.target_tokenizer, forbidden, self.symbols, self.model.vocabulary)
        while window := list(islice(texts, WINDOW)):
            named = tag if tag is None or isinstance(tag, str) else tag[place : place + len(window)]
            begun = None if beginnings is None else list(islice(beginnings, len(window)))
            wanted = None if phrases is None else list(islice(phrases, len(window)))
            wishes = Wishes(begun, wanted, never)
            plain = alignment and unknown is None
            translated = self._translate_window(window, settings, plain, first + place, named, wishes)
            yield from self._known_words(window, translated, unknown, named) if unknown else translated
            place += len(window)

    def _known_words(
        self, texts: list[Source], translated: list[Translation], unknown: UnknownWords, tag: Tag
    ) -> Iterator[Translation]:
        """The translations with unknown words replaced through the alignment, their alternatives too."""
        for text, translation, before in zip(texts, translated, self._tags(len(texts), tag)):
            if not isinstance(text, str):
                raise UserError("unknown words are replaced through the source's words, but vectors have none")
            if not text.strip():
                yield translation
                continue
            framed = self._framed_source([*before, *self._source_ids([text], "")[0]])
            source, lengths = self.pad([framed], self.framing.pad)
            found = []
            for one in (translation, *translation.alternatives):
                ids = self.target_tokenizer.numbers(one.tokens)
                cross = self._cross(source, lengths, [ids])
                if cross is None:
                    raise UserError(f"{self.folder} has no attention, by which unknown words are replaced")
                written, links = unknown.write(text, ids, cross[0][:, len(before) :])
                found.append(replace(one, text=written, alignment=links, alternatives=[]))
            yield replace(found[0], alternatives=found[1:])

    def _needs_a_writer(self) -> None:
        if not self.model.writes:
            raise UserError(f"{self.folder} holds an encoder alone, which writes no text: use 'tag' or 'fill'")

    def _search(self, beam: int | None, settings: Decision | None) -> Decision:
        if settings is not None:
            return settings
        room = self.model.vocabulary - len(self.symbols.banned) - 1
        own = self.config.search
        size = min(own.beam, room) if beam is None else beam  # a toy vocabulary has no room for a beam
        return Beam(
            size,
            own.length_penalty,
            own.stop,
            length=self.length,
            normalisation=own.normalisation,
            coverage=own.coverage,
            unfinished=own.unfinished,
        )

    @property
    def length(self) -> Length:
        """How long targets may get, as the run's configuration says."""
        search = self.config.search
        return Length(search.length_ratio, search.length_extra, search.longest_target)

    def _translate_window(
        self,
        texts: list[Source],
        settings: Decision,
        alignment: bool,
        first: int,
        tag: Tag = None,
        wishes: Wishes = NO_WISHES,
    ) -> list[Translation]:
        full = self._source_ids(texts, tag)
        alignment = alignment and self.model.source_features is None  # vectors are no words
        sources = [self._framed_source(ids) for ids in full]
        results = [Translation("", 0.0, alignment=[] if alignment else None)] * len(texts)
        written = np.array([i for i, text in enumerate(texts) if not _empty(text)], dtype=np.int64)
        lengths = np.array([len(sources[i]) for i in written])
        budget = max(1, self.config.search.tokens // settings.rows)
        for batch in sorted_batches(lengths, WAITING * budget) if len(written) else []:
            rows = written[batch]
            source, source_lengths = self.pad([sources[i] for i in rows], self.framing.pad)
            keys = torch.from_numpy(rows + first)
            most = max(1, budget // source.shape[1])
            found = self._run_search(source, source_lengths, settings, keys, wishes=wishes.of(rows.tolist()), most=most)
            targets = [hypotheses[0].tokens for hypotheses in found]
            links = self._align(source, source_lengths, targets) if alignment else None
            for n, (i, hypotheses) in enumerate(zip(rows, found)):
                whole = len(full[i]) <= self._room_for_sources
                results[i] = self._translation(hypotheses, links[n] if links else None, whole)
        return results

    def encode_sources(self, texts: Sequence[Source], tag: Tag = None) -> list[Any]:
        """Token ids with the symbols around them, or vectors, cut at the longest source that the run reads."""
        return [self._framed_source(ids) for ids in self._source_ids(texts, tag)]

    def _tags(self, count: int, tag: Tag) -> list[list[int]]:
        """What stands before each of some texts: the symbol of a tag, or nothing for ''."""
        if tag is None:
            tag = next(iter(self.config.data.tags), "")
        names, known = [tag] * count if isinstance(tag, str) else tag, self.source_tokenizer.tags
        if wrong := [name for name in names if name and name not in known]:
            raise unknown("tag", wrong[0], known) if known else UserError(f"{self.folder} was trained without tags")
        return [[known[name]] if name else [] for name in names]

    def tag_of(self, source: NDArray[Any]) -> str:
        """The tag that a row of the token store begins with, or ''."""
        names = {number: name for name, number in self.source_tokenizer.tags.items()}
        return names.get(int(source[0]), "") if names else ""

    def _source_ids(self, sources: Sequence[Source], tag: Tag = None) -> list[Any]:
        features = self.model.source_features
        if features is not None:
            return [checked(source, features) for source in sources]
        texts = [source for source in sources if isinstance(source, str)]
        if len(texts) < len(sources):
            raise UserError(f"{self.folder} reads text, but was given arrays: use a run of a system that reads them")
        if self.config.objective.name != "dialogue":
            tags = self._tags(len(texts), tag)
            return [[*before, *ids] for before, ids in zip(tags, self.source_tokenizer.encode_batch(list(texts)))]
        if any(text.count("\t") % 2 for text in texts):
            raise UserError("a dialogue is gone on with after the other's turn: an odd number of turns is expected")
        turns = (self.source_tokenizer.encode_batch(text.split("\t")) for text in texts)  # a dialogue so far
        return [[*dialogue(some, self.framing)[0][len(self.framing.before) :]] for some in turns]

    @property
    def _room_for_sources(self) -> int:
        return max(1, self.longest_source - len(self.framing.before) - len(self.framing.after))

    def _framed_source(self, ids: Any) -> Any:
        if self.model.source_features is not None:
            return ids[: self._room_for_sources]
        return labels.framed(ids[: self._room_for_sources], self.framing)

    def _run_search(
        self,
        source: Tensor,
        lengths: Tensor,
        settings: Decision,
        keys: Tensor,
        first: Tensor | None = None,
        wishes: Wishes = NO_WISHES,
        most: int | None = None,
    ) -> list[list[Hypothesis]]:
        """`first` (B) are the tokens that targets are begun after. Up to `most` sources are searched at a time."""
        if isinstance(settings, MinimumRisk):
            some, judges = (
                None if one is None else self._run_search(source, lengths, one, keys, first, wishes, most)
                for one in (settings.candidates, settings.references)
            )
            assert some is not None
            if judges is None:
                return [self._least_risk(settings, one) for one in some]
            return [self._least_risk(settings, *both) for both in zip(some, judges)]
        symbols = self.symbols if first is None else replace(self.symbols, start=first)
        limits = settings.length.limits(lengths, self.model.room(lengths))
        for room in (model.room(lengths) for model in self.others):
            limits = limits if room is None else torch.minimum(limits, room.clamp(min=1))
        searching = engine(self.models, symbols, settings, wishes.rules, wishes.required is not None)
        tree = wishes.tree(self.target_tokenizer, limits, len(symbols.forced))
        return searching.search(source, lengths, limits, keys, tree, most)

    def _least_risk(
        self, settings: MinimumRisk, candidates: list[Hypothesis], references: list[Hypothesis] | None = None
    ) -> list[Hypothesis]:
        """The candidates of a source that are chosen."""
        both = [
            None if some is None else ([self.target_tokenizer.decode(h.tokens) for h in some], [h.score for h in some])
            for some in (candidates, references)
        ]
        texts, scores = both[0] or ([], [])
        chosen = settings.choose(texts, scores, *(both[1] or (None, None)))
        return [candidates[number] for number, _ in chosen]

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
        cross = self._cross(source, source_lengths, targets)
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

    def _cross(self, source: Tensor, source_lengths: Tensor, targets: list[list[int]]) -> Tensor | None:
        """B T S: what was looked at to write each token of some targets, ids without START and END."""
        target, target_lengths = self.pad([[self.framing.start, *ids] for ids in targets], self.framing.pad)
        return cross_attention(
            self.model, attention_weights(self.model, source, source_lengths, target, target_lengths)
        )

    # ---- continuation, tags, masks

    def generate(self, prompts: Sequence[str], search: Decision | None = None, tokens: int = 50) -> list[Translation]:
        """Each prompt, which may be empty, with what the model goes on to say; drawn by chance unless told.

        A text is the prompt and its continuation, a score log p(continuation | prompt).
        """
        if not isinstance(self.model, DecoderOnlyModel):
            raise UserError(
                f"{self.folder} cannot continue a text: it has no decoder that stands alone; try 'translate'"
            )
        settings = search or Sample(top_p=0.95, length=Length(0, tokens, tokens))
        begin, encoded = self.framing.before, self.target_tokenizer.encode_batch(list(prompts))
        encoded = [[*begin, *ids] or [self.framing.start] for ids in encoded]
        longest = max(map(len, encoded), default=0)
        room = self.model.room(torch.tensor([longest]))
        if room is not None and int(room) < 1:
            raise UserError(
                f"a prompt has {longest:,} tokens, and {1 - int(room):,} too many for the model: shorten it"
            )
        results = [Translation("", 0.0)] * len(prompts)
        budget = max(1, self.config.search.tokens // settings.rows)
        for batch in sorted_batches([len(ids) for ids in encoded], budget) if len(prompts) else []:
            source, lengths = self.pad([encoded[i][:-1] for i in batch], self.framing.pad)
            first = torch.tensor([encoded[i][-1] for i in batch], device=self.device)
            keys = torch.from_numpy(batch)
            for i, found in zip(batch, self._run_search(source, lengths, settings, keys, first)):
                begun = encoded[i][len(begin) :]
                continued = [Hypothesis([*begun, *h.tokens], h.score, h.normalized, h.finished) for h in found]
                results[i] = self._translation(continued, None, True)
        return results

    @property
    def _begin(self) -> tuple[int, ...]:
        """What a text that is not a translation begins with."""
        return self.framing.before or (self.framing.start,)

    def tag(self, texts: Sequence[str]) -> list[Tagged]:
        """The tag of every word; words are what is parted by spaces."""
        return labels.tag(self, texts)

    def fill(self, texts: Sequence[str], best: int = 5) -> list[Filled]:
        """The texts with every <mask> filled in, and the `best` likeliest pieces for each."""
        return labels.fill(self, texts, best)

    # ---- scores and looks

    def score(self, sources: Sequence[Source] | None, targets: Sequence[str]) -> list[Scored]:
        """log p(y|x) of given translations, or log p(y) of texts where a decoder alone is given no sources."""
        self._needs_a_writer()
        results = [Scored(0.0, [], [])] * len(targets)
        for rows, source_ids, target_ids in self._pairs(sources, targets):
            source, source_lengths = self.pad(source_ids, self.framing.pad)
            framed = [self._framed_target(ids, alone=sources is None) for ids in target_ids]
            target, target_lengths = self.pad(framed, self.framing.pad)
            scores = token_scores(self.model, source, source_lengths, target, target_lengths).tolist()
            for i, ids, row in zip(rows, framed, scores):
                pieces = self.target_tokenizer.pieces(ids[1:])
                results[i] = Scored(sum(row), pieces, row[: len(pieces)])
        return results

    def align(self, sources: Sequence[Source], targets: Sequence[str]) -> list[Links] | None:
        """Word alignments of given translations: (source word, target word); None for systems without attention."""
        if self.model.source_features is not None:
            raise UserError(f"{self.folder} reads vectors, which are no words that could be aligned")
        results: list[Links] = [[] for _ in sources]
        for rows, source_ids, target_ids in self._pairs(sources, targets):
            source, source_lengths = self.pad(source_ids, self.framing.pad)
            links = self._align(source, source_lengths, target_ids)
            if links is None:
                return None
            for i, found in zip(rows, links):
                results[i] = found
        return results

    def _pairs(
        self, sources: Sequence[Source] | None, targets: Sequence[str]
    ) -> Iterator[tuple[list[int], list[Any], list[list[int]]]]:
        """Pairs in batches of like length: their numbers, framed source ids (or vectors), bare target ids."""
        if sources is None and not isinstance(self.model, DecoderOnlyModel):
            raise UserError(f"{self.folder} scores translations, so it must be given their sources")
        if sources is not None and len(sources) != len(targets):
            raise UserError(f"{len(sources):,} sources cannot go with {len(targets):,} targets: one each is needed")
        if not targets:
            return
        source_ids = self.encode_sources(sources) if sources is not None else [[] for _ in targets]
        target_ids = self.target_tokenizer.encode_batch(list(targets))
        lengths = np.array([max(len(s), len(t) + 2) for s, t in zip(source_ids, target_ids)])
        for rows in sorted_batches(lengths, self.config.search.tokens):
            yield rows.tolist(), [source_ids[i] for i in rows], [target_ids[i] for i in rows]

    def attention(self, source: Source, target: str | None = None) -> Attention:
        """Everything that was looked at, for a given translation or for the one that the run finds.

        Of vectors the places that the encoder makes of them are numbered from 1, and nothing is aligned.
        """
        ids = self.encode_sources([source])[0]
        if target is None:
            target = self.translate([source], alignment=False)[0].text
        target_ids = self._framed_target(self.target_tokenizer.encode(target))
        sides = (*self.pad([ids], 0), *self.pad([target_ids[:-1]], 0))
        weights = attention_weights(self.model, *sides)
        cross = cross_attention(self.model, weights)
        target_words = self.target_tokenizer.word_of_piece(target_ids[1:])
        if self.model.source_features is None:
            pieces, source_words = self.source_tokenizer.pieces(ids), self.source_tokenizer.word_of_piece(ids)
        else:
            places = 0 if cross is None else cross.shape[-1]
            pieces, source_words = [str(place) for place in range(1, places + 1)], []
        return Attention(
            pieces,
            self.target_tokenizer.pieces(target_ids[1:]),
            {path: w[0].cpu() for path, w in weights.items()},
            None if cross is None else cross[0].cpu(),
            [] if cross is None else word_alignment(cross[0], source_words, target_words),
        )

    @torch.inference_mode()
    def logits(self, source_ids: Tensor | None, target_ids: Tensor | None) -> Tensor:
        """Logits at every target position, B T V, from padded ids, B S and B T; the pad id may stand left or right.

        A decoder alone may be given no source; an encoder alone is given no target and answers at every source token.
        """
        if self.model.source_features is not None:
            raise UserError("logits are asked for with token ids, but this run reads vectors: call its model itself")
        pad = self.framing.pad
        if target_ids is None:
            if source_ids is None or self.model.writes:
                raise UserError("logits want target ids, and source ids too unless a decoder stands alone")
            source_ids = source_ids.to(self.device)
            source, lengths, order = _to_the_left(source_ids, source_ids != pad)
            return _back(self.model(source, lengths), order)
        target_ids = target_ids.to(self.device)
        if source_ids is None:
            source, source_lengths = target_ids[:, :0], torch.zeros_like(target_ids[:, 0])
        else:
            source_ids = source_ids.to(self.device)
            source, source_lengths, _ = _to_the_left(source_ids, source_ids != pad)
        real = _starts(target_ids, pad) if self.framing.start == pad else target_ids != pad
        if pad == self.framing.end:  # no symbol pads: what looks like it ends a sentence
            real = torch.ones_like(real)
        target, target_lengths, order = _to_the_left(target_ids, real)
        return _back(self.model(source, source_lengths, target, target_lengths), order)

    def pad(self, rows: Sequence[Any], pad: int) -> tuple[Tensor, Tensor]:
        """B T ids, or B S F vectors with zeros after them, and B lengths on the model's device."""
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.full((len(rows), int(lengths.max())), pad)
        if isinstance(rows[0], np.ndarray):
            ids = torch.zeros(*ids.shape, rows[0].shape[1])
        for row, values in zip(ids, rows):
            row[: len(values)] = torch.tensor(values)
        return ids.to(self.device), lengths.to(self.device)

    def _framed_target(self, ids: list[int], alone: bool = False) -> list[int]:
        return [*(self._begin if alone else (self.framing.start,)), *ids, self.framing.end]

    # ---- what the folder holds

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: what was measured, step by step."""
        return read_metrics(self.folder)

    def checkpoints(self) -> list[str]:
        return checkpoint_names(self.folder)


def _empty(source: Source) -> bool:
    return not source.strip() if isinstance(source, str) else not len(source)


def _to_the_left(ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows with their real tokens first, the lengths, and the order that did it (B T)."""
    order = (~real).long().argsort(dim=1, stable=True)
    return ids.gather(1, order), real.sum(1), order


def _back(logits: Tensor, order: Tensor) -> Tensor:
    return logits.gather(1, order.argsort(1)[..., None].expand_as(logits))


def _starts(ids: Tensor, pad: int) -> Tensor:
    """B T: which tokens are real where a target starts with the token that pads: the last pad before the others too."""
    others = ids != pad
    return others | (
        ~others
        & (others.roll(-1, 1) | (torch.arange(ids.shape[1], device=ids.device) == 0))
        & (others.long().cumsum(1) == 0)
    )


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
    framing = read_framing(folder)
    return Run(folder, settings, model, source_tokenizer, target_tokenizer, framing, place.resolve().name)
