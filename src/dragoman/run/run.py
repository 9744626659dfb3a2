"""The run: a trained model with its tokenizers, ready to use."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman import checkpoint, config
from dragoman.config import Config
from dragoman.data.batch_arrays import pad_rows
from dragoman.errors import UserError
from dragoman.models import Model, ModelSpec, Usage
from dragoman.objectives import Objective, objective_class
from dragoman.parts.inference import InferencePrecision
from dragoman.parts.spec import Spec
from dragoman.run import decoding as finding
from dragoman.run import filling
from dragoman.run import labeling as labels
from dragoman.run import pair_scoring as looking
from dragoman.run import token_stream as live
from dragoman.run import translator as translating
from dragoman.run.inference_weights import InferenceWeights
from dragoman.run.results import Alignment, FillResult, ScoredText, SentenceAttention, TaggedSentence, Translation
from dragoman.run.run_folder import (
    CHECKPOINT_DIR,
    CONFIG_FILE,
    checkpoint_names,
    read_framing,
    read_metrics,
    read_spec,
    read_tokenizers,
    select_device,
)
from dragoman.run.sources import Source, Tag, encode_without_framing, frame_source, is_empty
from dragoman.run.token_stream import StreamedTokens
from dragoman.run.translation_constraints import TargetPrefix
from dragoman.run.workers import check_workers
from dragoman.search import Beam, LengthLimit, Sample, SearchConfig, SpecialTokens, Speculative, search_from_dict
from dragoman.search.configs import OtherRun
from dragoman.search.engine import SearchEngine
from dragoman.search.shortlist import Shortlist
from dragoman.search.speculative import AcceptanceStats
from dragoman.text import Framing, Tokenizer

if TYPE_CHECKING:
    from dragoman.lens import Inspection


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
        packing: InferenceWeights | None = None,
    ) -> None:
        self.folder, self.config, self.model = folder, settings, model
        self.ensemble_members: list[Model] = []  # that write together with it
        self.inference_weights = packing or InferenceWeights()
        self.num_workers = 1  # copies of the process that translate at a time
        self.engine_cache: dict[Any, SearchEngine] | None = (
            None  # kept from one search to the next, which takes memory on a GPU
        )
        self.compile_steps = False  # are kernels made for the steps of its searches, on a GPU?
        self.shortlist: Shortlist | None = None  # of the pieces that searches look at; None: at all
        self._opened: dict[str, Run] = {}  # other runs that searches have named, by their folder
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.framing, self.checkpoint = framing, checkpoint_name
        self.special_tokens = SpecialTokens(
            framing.bos, framing.eos, framing.suppressed, framing.forced_bos, framing.force_eos_at_limit
        )
        #: how many tokens of a source are read, the symbols around it counted in
        longest = settings.search.max_source_length
        self.max_source_length = min(longest, model.max_source_length or longest)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def spec(self) -> ModelSpec:
        return self.model.spec  # type: ignore[return-value]

    # ---- what it was trained for

    @property
    def objective(self) -> type[Objective] | None:
        """What it was trained with; None for an imported checkpoint, of which this is not known."""
        return objective_class(self.config.objective.name) if self.config.objective.name else None

    @property
    def usage(self) -> Usage | None:
        """The command that uses it, by how it was trained or else by the kind of its model."""
        return self.model.usage if self.objective is None else self.objective.usage

    def usage_error(self, command: str) -> UserError:
        """The error for a command that cannot use this run: names the command that can."""
        trained = f"was trained with the objective {self.config.objective.name}" if self.objective else "is imported"
        kind = type(self.model).__name__.removesuffix("Model")
        advice = f"use 'dragoman {self.usage.command} {self.folder}'" if self.usage else "start a training from it"
        return UserError(
            f"'{command}' cannot use {self.folder}, which {trained} and holds a model of kind {kind}: {advice}"
        )

    def check_usage(self, command: str) -> None:
        """Refuse a command that a run trained like this cannot be used with."""
        if self.objective is not None and not self.objective.supports_command(command):
            raise self.usage_error(command)

    # ---- other runs beside it

    def ensemble(self, *other_runs: Run) -> Run:
        """This run and others as an ensemble, which writes each word by the mean of their probabilities.

        The systems may be different ones, the words may not. What is not about translating is this run's own.
        """
        for other in other_runs:
            self.check_same_vocabulary(other, "an ensemble has one vocabulary")
        joined = copy(self)
        joined.ensemble_members = [*self.ensemble_members, *(model for other in other_runs for model in other.models)]
        return joined

    @property
    def models(self) -> list[Model]:
        return [self.model, *self.ensemble_members]

    @property
    def inference_models(self) -> list[Model]:
        """The models as searches use them: see `Packing`."""
        return [self.inference_weights(model) for model in self.models]

    def with_shortlist(self, shortlist: Shortlist | None = None) -> Run:
        """The same run, whose searches look only at likely words: unless told, at those in its folder, which
        `dragoman shortlist` has learned."""
        made = copy(self)
        made.shortlist = shortlist or Shortlist.load(self.folder, self.model.vocab_size)
        return made

    def with_workers(self, num_workers: int) -> Run:
        """The same run, which many texts are translated with by so many processes that share its weights."""
        check_workers(num_workers, self.device)
        made = copy(self)
        made.num_workers = num_workers
        return made

    def open_run(self, other: str | OtherRun) -> Run:
        """A run that a search names, on the device of this one; a folder is opened once, as `dragoman.load` does."""
        from dragoman import load as load_any  # which knows checkpoints of other libraries too, and imports this module

        if isinstance(other, Run):
            return other
        folder = str(other)
        if folder not in self._opened:
            self._opened[folder] = load_any(folder, device=str(self.device))
        return self._opened[folder]

    @property
    def is_language_model(self) -> bool:
        """Is it a language model, which says how likely a text is that is no translation?"""
        return self.model.is_decoder_only and (self.objective is None or self.objective.data_format == "text")

    def check_same_vocabulary(self, other: Run, reason: str) -> None:
        """Refuse a run that cuts text into other tokens, or that is on another device."""
        own, its = ((run.source_tokenizer.to_json(), run.target_tokenizer.to_json()) for run in (self, other))
        if own != its or self.framing != other.framing:
            raise UserError(
                f"{other.folder} cuts text into other tokens than {self.folder}, but {reason}: "
                "take runs that were trained on the same text, with other seeds or systems"
            )
        if self.model.source_features != other.model.source_features:
            raise UserError(f"{other.folder} reads something else than {self.folder}: both must read one source")
        if self.device != other.device:
            raise UserError(f"{other.folder} is on {other.device} and {self.folder} on {self.device}: load both on one")

    # ---- translation and continuation

    def translate(
        self,
        texts: Sequence[Source],
        beam_size: int | None = None,
        *,
        search: SearchConfig | None = None,
        alignment: bool = True,
        dictionary: Mapping[str, str] | None = None,
        tag: Tag = None,
        prefixes: Sequence[str] | None = None,
        include: Sequence[Sequence[str]] | None = None,
        exclude: Sequence[str] = (),
        token_scores: bool = False,
        split_sentences: bool = False,
    ) -> list[Translation]:
        """The translations of some texts, in order; an empty text stays empty.

        A run that reads images or speech is given arrays of length × features instead.
        `tag` names the corpus (of data.corpus_tags) from which the texts shall be taken to be: the first, unless told.
        `prefixes` say how each translation begins ('' for any); what they cost is counted in the scores. `required` are
        phrases that each must contain, `forbidden` ones that none may, as whole words.
        With a dictionary, which may be empty, unknown words of a closed vocabulary are looked up in it or copied.
        `token_scores`: with log p of every token.
        `split_sentences`: translate the sentences of each text one by one and join them with the original white space.
        """
        for name, given in (("prefixes", prefixes), ("lists of required phrases", include)):
            if given is not None and len(given) != len(texts):
                raise UserError(f"{len(given)} {name} came with {len(texts)} texts: give one for each, '' for any")
        return list(
            self.translate_stream(
                texts,
                search or (self.default_search if beam_size is None else self.beam_config(beam_size)),
                alignment=alignment,
                dictionary=dictionary,
                tag=tag,
                prefixes=prefixes,
                include=include,
                exclude=exclude,
                token_scores=token_scores,
                split_sentences=split_sentences,
            )
        )

    def translate_stream(
        self,
        texts: Iterable[Source],
        search: SearchConfig,
        *,
        alignment: bool = False,
        dictionary: Mapping[str, str] | None = None,
        tag: Tag = None,
        first_index: int = 0,
        prefixes: Iterable[str] | None = None,
        include: Iterable[Sequence[str]] | None = None,
        exclude: Sequence[str] = (),
        token_scores: bool = False,
        split_sentences: bool = False,
    ) -> Iterator[Translation]:
        """The same for any number of texts in bounded memory: sorted by length within a window, given back in order.

        `first` is the number of the first text, where others were translated before: samples are drawn by it.
        """
        self._check_translates()
        stream = translating.Translator(
            self,
            search,
            alignment=alignment,
            dictionary=dictionary,
            tag=tag,
            forbidden=exclude,
            token_scores=token_scores,
        )
        if not split_sentences:
            yield from stream.stream(texts, first_index, prefixes, include)
        elif prefixes is None and include is None:
            yield from stream.stream_split(texts, first_index)
        else:
            raise UserError("prefixes and required phrases belong to one sentence: do not split texts into sentences")

    def stream(
        self,
        text: Source,
        beam_size: int | None = None,
        *,
        search: SearchConfig | None = None,
        alignment: bool = True,
        tag: Tag = None,
        prefix: str = "",
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> Generator[StreamedTokens]:
        """The translation of one text as it is written; the last piece holds what `translate` would have given.

        Greedy search and sampling give token by token, a beam what all its hypotheses have in common by then. Whoever
        has heard enough closes the iterator, and the search ends there.
        """
        self._check_translates()
        settings = search or (self.default_search if beam_size is None else self.beam_config(beam_size))
        yield from live.stream(
            self, text, settings, alignment=alignment, tag=tag, prefix=prefix, required=include, forbidden=exclude
        )

    def draft_acceptance(self, texts: Sequence[Source], search: Speculative) -> AcceptanceStats:
        """How many of the words that a draft proposes for some texts this run would have written itself."""
        self._check_translates()
        return finding.acceptance(self, [text for text in texts if not is_empty(text)], search)

    def _check_translates(self) -> None:
        """Refuse what is not translated by this run."""
        self.check_usage("translate")
        if not self.model.can_generate:
            raise self.usage_error("translate")

    @property
    def default_search(self) -> SearchConfig:
        """How it translates unless told otherwise, as the run's configuration says."""
        own = self.config.search.strategy
        return search_from_dict(own, f"search.strategy of {self.folder / CONFIG_FILE}") if own else self.beam_config()

    def beam_config(self, size: int | None = None) -> Beam:
        """The run's own beam search, as wide as told."""
        if self.config.search.strategy and isinstance(described := self.default_search, Beam):
            return described if size is None else replace(described, size=size)
        room = self.model.vocab_size - len(self.special_tokens.suppressed) - 1
        own = self.config.search
        return Beam(
            max(1, min(own.beam_size, room)) if size is None else size,  # a toy vocabulary has no room for a wide beam
            own.length_penalty,
            own.early_stopping,
            length_limit=self.length_limit,
            length_normalization=own.length_normalization,
            coverage_penalty=own.coverage_penalty,
            unfinished="behind" if own.rank_unfinished == "last" else "beside",
            no_repeat_ngram_size=own.no_repeat_ngram_size,
        )

    @property
    def length_limit(self) -> LengthLimit:
        """How long targets may get, as the run's configuration says."""
        search = self.config.search
        ratio, extra = search.length_ratio, search.length_offset
        return LengthLimit(
            LengthLimit.ratio if ratio is None else ratio,
            LengthLimit.offset if extra is None else extra,
            search.max_target_length,
            search.min_length,
        )

    def generate(
        self, prompts: Sequence[str], search: SearchConfig | None = None, max_new_tokens: int = 50
    ) -> list[Translation]:
        """Each prompt, which may be empty, with what the model goes on to say; drawn by chance unless told.

        A text is the prompt and its continuation, a score log p(continuation | prompt). A run trained on dialogues
        replies instead: a prompt is a dialogue so far, its turns separated by tabs, and the text is the reply.
        """
        self.check_usage("generate")
        settings = search or Sample(top_p=0.95, length_limit=LengthLimit(0, max_new_tokens, max_new_tokens))
        if self.is_dialogue:
            return self.translate(prompts, search=settings, alignment=False)
        return translating.continue_prompts(self, prompts, settings)

    @property
    def is_dialogue(self) -> bool:
        """Whether its sources are dialogues, to which it replies."""
        return self.objective is not None and self.objective.data_format == "turns"

    # ---- tags, masks, scores and looks

    def tag(self, texts: Sequence[str]) -> list[TaggedSentence]:
        """The tag of every word; words are what is parted by spaces."""
        return labels.tag(self, texts)

    def fill(self, texts: Sequence[str], top_k: int = 5) -> list[FillResult]:
        """The texts with every <mask> filled in, and the `best` likeliest choices.

        An encoder fills a mask with one piece. An encoder–decoder pretrained by span corruption fills it with several
        pieces; one pretrained by denoising writes the whole text anew.
        """
        return filling.fill(self, texts, top_k)

    def score(self, sources: Sequence[Source] | None, targets: Sequence[str]) -> list[ScoredText]:
        """log p(y|x) of given translations, or log p(y) of texts where a decoder alone is given no sources."""
        if not self.model.can_generate:
            raise self.usage_error("score")
        return looking.score(self, sources, targets)

    def within_max_length(self, sources: Sequence[Source] | None, targets: Sequence[str]) -> list[bool]:
        """Whether the model has positions for each target; `score` and `align` reject those for which it has none."""
        return looking.within_max_length(self, sources, targets)

    def score_masked(self, texts: Sequence[str]) -> list[ScoredText]:
        """log p of every token given all others, each masked in turn: Salazar et al. (2020)."""
        return filling.score_masked(self, texts)

    def align(self, sources: Sequence[Source], targets: Sequence[str]) -> list[Alignment] | None:
        """Word alignments of given translations: (source word, target word); None for systems without attention."""
        return looking.align(self, sources, targets)

    def attention(self, source: Source, target: str | None = None) -> SentenceAttention:
        """Everything that was looked at, for a given translation or for the one that the run finds.

        Of vectors the places that the encoder makes of them are numbered from 1, and nothing is aligned.
        """
        return looking.attention(self, source, target)

    def lens(
        self,
        source: Source,
        target: str | None = None,
        *,
        search: SearchConfig | None = None,
        prefix: TargetPrefix | None = None,
        alternatives: int = 5,
    ) -> Inspection:
        """All that can be seen of a sentence, for a given translation or for the one that is found: see `lens.look`."""
        from dragoman.lens import inspect_sentence  # which stands above a run, and is there when somebody looks

        return inspect_sentence(self, source, target, search=search, prefix=prefix, alternatives=alternatives)

    def logits(self, source_ids: Tensor | None, target_ids: Tensor | None) -> Tensor:
        """Logits at every target position, B T V, from padded ids, B S and B T; the pad id may stand left or right.

        A decoder alone may be given no source; an encoder alone is given no target and answers at every source token.
        """
        return looking.logits(self, source_ids, target_ids)

    # ---- what goes into the model

    def encode_sources(self, texts: Sequence[Source], tag: Tag = None) -> list[Any]:
        """Token ids with the symbols around them, or vectors, cut at the longest source that the run reads."""
        return [frame_source(self, ids) for ids in encode_without_framing(self, texts, tag)]

    def tag_of_row(self, source: NDArray[Any]) -> str:
        """The tag that a row of the token store begins with, or ''."""
        names = {number: name for name, number in self.source_tokenizer.tags.items()}
        return names.get(int(source[0]), "") if names else ""

    def pad_batch(self, rows: Sequence[Any], pad: int) -> tuple[Tensor, Tensor]:
        """B T ids, or B S F vectors with zeros after them, and B lengths on the model's device."""
        ids, lengths = pad_rows(rows, pad)
        return ids.to(self.device), lengths.to(self.device)

    # ---- what the folder holds

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: what was measured, step by step."""
        return read_metrics(self.folder)

    def checkpoints(self) -> list[str]:
        return checkpoint_names(self.folder)


def load(
    folder: str | Path,
    checkpoint_name: str = "best",
    device: str | None = None,
    custom_parts: Sequence[type[Spec]] = (),
    weights: InferencePrecision = "float32",
) -> Run:
    """Open a run folder for use; `parts` are a user's own parts, if its model has any.

    On a CPU searches multiply by packed weights, the same within rounding, or by bytes: `weights` “int8”.
    """
    folder = Path(folder)
    packing = InferenceWeights(weights, select_device(device or "auto"))
    spec = read_spec(folder, custom_parts)
    settings = config.from_yaml(folder / CONFIG_FILE)
    source_tokenizer, target_tokenizer = read_tokenizers(folder)
    model = spec.build()
    place = folder / CHECKPOINT_DIR / checkpoint_name
    if not place.exists():
        known = ", ".join(checkpoint_names(folder)) or "none: nothing has been trained yet"
        raise UserError(f"{folder} has no checkpoint {checkpoint_name!r}; it has {known}")
    checkpoint.load_weights(model, place)
    model.eval().to(select_device(device or "auto"))
    framing = read_framing(folder)
    name = place.resolve().name
    run = Run(folder, settings, model, source_tokenizer, target_tokenizer, framing, name, packing)
    run.engine_cache = {} if run.device.type == "cuda" else None
    return run
