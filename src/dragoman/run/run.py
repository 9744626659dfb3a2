"""The run: a trained model with its tokenizers, ready for inference."""

from __future__ import annotations

import multiprocessing
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
from dragoman.data.data_formats import DATA_FORMATS
from dragoman.errors import UserError
from dragoman.models import Model, ModelSpec, Usage, unallocated_model
from dragoman.objectives import Objective, objective_class
from dragoman.parts.inference import InferencePrecision
from dragoman.parts.spec import Spec
from dragoman.run import classifying, filling, pair_scoring, run_folder
from dragoman.run.document_translation import translate_document
from dragoman.run.inference_weights import InferenceWeights
from dragoman.run.language_pair import target_language_code
from dragoman.run.occlusion_alignment import align_by_occlusion
from dragoman.run.results import (
    Alignment,
    Classification,
    FillResult,
    ScoredText,
    SentenceAttention,
    StreamedTokens,
    TaggedSentence,
    Translation,
)
from dragoman.run.run_weights import weight_source
from dragoman.run.sources import Source, Tag, detect_languages, encode_without_framing, frame_source
from dragoman.run.token_stream import NumberedTokens, stream_batch
from dragoman.run.translator import Translator, continue_prompts
from dragoman.run_files import (
    CHECKPOINT_DIR,
    CONFIG_FILE,
    check_run_folder,
    checkpoint_names,
    ensemble_members,
    is_ensemble_folder,
    read_metrics,
)
from dragoman.search import Beam, LengthLimit, OtherRun, Sample, SearchConfig, SpecialTokens, search_from_dict
from dragoman.search.constraints import TargetPrefix
from dragoman.search.engine import SearchEngine
from dragoman.search.search_config import DEFAULT_LENGTH_LIMIT
from dragoman.search.shortlist import Shortlist
from dragoman.storage import resolve_link
from dragoman.text import Framing, Tokenizer
from dragoman.text.documents.preserved_text import Preserve
from dragoman.text.feature_symbols import join_features

if TYPE_CHECKING:
    from dragoman.api.evaluate_run import EvaluationResult
    from dragoman.interop.exporting import ExportResult
    from dragoman.lens import Inspection
    from dragoman.run.translation_warnings import TranslationChecker


class Run:
    """A trained model with its tokenizers, opened by `dragoman.load`.

    Examples:
        >>> run = dragoman.load("runs/en-de")
        >>> run.translate(["The dog sleeps."])[0].text
        'Der Hund schläft.'

    Attributes:
        folder: the run folder, or the folder of an ensemble
        checkpoint_folders: the checkpoints of the model and of the ensemble members
        config: the resolved configuration
        model, source_tokenizer, target_tokenizer: what the folder holds; a model that is decoded in bfloat16 stays on
            the CPU until `full_precision_model` is used
        model_framing: special tokens around source and target; of a multilingual model without language codes
        framing: special tokens for the language pair of the run (`language_pair`)
        checkpoint: name of the checkpoint that was loaded
        ensemble_members: other models whose probabilities are averaged with the model's
        shortlist: restricts the vocabulary of searches; None: the whole vocabulary
        num_workers: number of processes that translate
        engine_cache: search engines that are reused, with their CUDA graphs; None: a new engine for each search
        compile_steps: compile decoding steps with `torch.compile` (GPU)
        special_tokens: token ids that a search needs
        max_source_length: maximum number of source tokens, framing included; longer sources are truncated
    """

    def __init__(
        self,
        folder: Path,
        settings: Config,
        model: Model,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        framing: Framing,
        checkpoint_name: str,
        inference_weights: InferenceWeights | None = None,
    ) -> None:
        """Combine what `dragoman.load` has read from a run folder.

        Args:
            settings: the configuration of the run
            framing: the special tokens around source and target
            checkpoint_name: name of the checkpoint with the model's weights
            inference_weights: converts models for decoding, such as to int8; by default they are not converted
        """
        self.folder, self.config, self.model = folder, settings, model
        self.checkpoint_folders = [folder / CHECKPOINT_DIR / checkpoint_name]
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        model.match_vocabularies(source_tokenizer, target_tokenizer)  # which tokens are equal: needed to copy them
        self.checkpoint = checkpoint_name
        self.inference_weights = inference_weights or InferenceWeights()
        self.ensemble_members: list[Model] = []
        self.shortlist: Shortlist | None = None  # probable translations of each source token; None: all tokens
        self.num_workers = 1  # processes that translate
        # engines that are reused, with their CUDA graphs; None: a new one per search, as in training
        on_gpu = self.inference_weights.device is not None and self.inference_weights.device.type == "cuda"
        self.engine_cache: dict[Any, SearchEngine] | None = {} if on_gpu else None
        self.compile_steps = False  # whether decoding steps are compiled with torch.compile
        self._set_framing(framing)
        max_length = settings.search.max_source_length
        self.max_source_length = min(max_length, model.max_source_length or max_length)  # None: the model has no limit
        self._opened: dict[str, Run] = {}  # runs opened by `open_run`, by folder
        self.reported_features: set[str] = set()  # unknown features of sources that were reported
        self.translation_checkers: list[TranslationChecker] = []  # at most one, shared with copies of the run

    def _set_framing(self, framing: Framing) -> None:
        """Set the special tokens around source and target, and the token ids for searches.

        `framing` of a multilingual model has language codes; those of its default language pair are filled in. In
        searches, `suppressed` are never generated, and `suppressed_first` not right after the forced tokens
        `forced_bos`, of which `prompt_length` do not count in the length of a target.
        """
        self.model_framing = framing
        self.framing = framing = framing.for_default_languages()
        self.special_tokens = SpecialTokens(
            bos=framing.bos,
            eos=framing.eos,
            suppressed=framing.suppressed,
            forced_bos=framing.forced_bos,
            force_eos_at_limit=framing.force_eos_at_limit,
            suppressed_first=framing.suppressed_first,
            prompt_length=framing.prompt_length,
        )

    @property
    def device(self) -> torch.device:
        """The device of all computations."""
        return self.inference_weights.device or next(self.model.parameters()).device

    @property
    def spec(self) -> ModelSpec:
        """The spec (hyper-parameters) that the model was built from."""
        return self.model.spec

    # ---- what the run was trained for

    @property
    def objective(self) -> type[Objective] | None:
        """The training objective; None for an imported checkpoint, whose objective is not known."""
        return objective_class(self.config.objective.name) if self.config.objective.name else None

    @property
    def usage(self) -> Usage | None:
        """The command that uses this run, such as `translate`, by its objective or else by its model; None: unknown."""
        return self.model.usage if self.objective is None else self.objective.usage

    @property
    def is_language_model(self) -> bool:
        """Whether the run is a language model p(y): decoder-only, and trained on texts without sources.

        The objective of an imported checkpoint is not known: it is a language model if it is decoder-only.
        """
        if self.objective is None:
            return self.model.is_decoder_only
        data_format = DATA_FORMATS[self.objective.data_format]
        return self.model.is_decoder_only and not data_format.has_target and not data_format.is_dialogue

    @property
    def is_dialogue(self) -> bool:
        """Whether the run was trained on dialogues: sources then consist of turns separated by tabs."""
        return self.objective is not None and DATA_FORMATS[self.objective.data_format].is_dialogue

    def usage_error(self, command: str) -> UserError:
        """Return the UserError for a command, such as `translate`, that cannot use this run; it names one that can."""
        origin = f"was trained with the objective {self.config.objective.name}" if self.objective else "is imported"
        advice = "train another model from it ('dragoman train --start-from')"
        if self.usage and self.usage.command != command:  # there is another command that can use it
            advice = f"use 'dragoman {self.usage.command} {self.folder}'"
        return UserError(
            f"the command '{command}' cannot use the run {self.folder}, which {origin} and has a model of the type "
            f"{type(self.spec).__name__}: {advice}"
        )

    def check_usage(self, command: str) -> None:
        """Raise a UserError if the run's training objective does not support a command, such as `translate`.

        The objective of an imported checkpoint is not known (None), so that no command is refused.
        """
        if self.objective is not None and not self.objective.supports_command(command):
            raise self.usage_error(command)

    def check_translates(self) -> None:
        """Raise a UserError if the run cannot translate, by its training objective or by its model."""
        self.check_usage("translate")
        if not self.model.can_generate:
            raise self.usage_error("translate")

    # ---- languages

    @property
    def languages(self) -> list[str]:
        """The codes of the languages of a multilingual model, such as eng_Latn; empty if it has no codes.

        They belong to its framing, the special tokens around source and target.
        """
        return [] if self.model_framing.languages is None else list(self.model_framing.languages.ids)

    @property
    def language_pair(self) -> tuple[str | None, str | None]:
        """The codes of source and target language of a multilingual run; None for one that is not chosen.

        (None, None) if the model has no language codes, which are among the special tokens of its framing.
        """
        codes = self.model_framing.languages
        return (None, None) if codes is None else (codes.source, codes.target)

    def with_languages(self, source: str | None = None, target: str | None = None) -> Run:
        """Return a copy of a multilingual run that translates from `source` into `target`; the weights are shared.

        A language is a code of the model, such as eng_Latn, another code of ISO 639, or an English name; None keeps the
        language of this run. A language for a run without language codes is a UserError.

        Examples:
            >>> run = dragoman.load("nllb-200-distilled-600M").with_languages("eng_Latn", "kin_Latn")
        """
        if source is None and target is None:
            return self
        if self.model_framing.languages is None:
            raise UserError(
                f"the run {self.folder} has no language codes, because it translates one language pair: leave out the "
                "source and target language (--from, --to)"
            )
        chosen = copy(self)
        chosen._set_framing(self.model_framing.with_default_languages(source, target))
        return chosen

    def detect_languages(self, sources: Sequence[Source]) -> list[str]:
        """Return the code of the spoken language of each recording, for a model such as Whisper.

        Sources are paths of sound files, or feature arrays.

        Examples:
            >>> run.detect_languages([Path("hello.wav")])
            ['en']
        """
        return detect_languages(self, self.encode_sources(sources))

    # ---- variants of the run, and other runs

    def ensemble(self, *other_runs: Run) -> Run:
        """Return an ensemble, a copy of this run that averages its probabilities of each token with those of others.

        The models may be of different types; different vocabularies are a UserError. Only translation uses the
        ensemble.
        """
        for other in other_runs:
            self.check_same_vocabulary(other, reason="an ensemble needs one vocabulary")
        ensemble = copy(self)
        ensemble.ensemble_members = [*self.ensemble_members, *(model for other in other_runs for model in other.models)]
        ensemble.checkpoint_folders = [path for run in (self, *other_runs) for path in run.checkpoint_folders]
        return ensemble

    @property
    def member_folders(self) -> list[Path]:
        """The run folders of the model and of the other models of an ensemble; the first has tokenizers and data."""
        return [folder.parent.parent for folder in self.checkpoint_folders]  # of RUN/checkpoints/NAME

    @property
    def models(self) -> list[Model]:
        """The model and the other models of the ensemble, if there are any."""
        return [self.model, *self.ensemble_members]

    @property
    def full_precision_model(self) -> Model:
        """The model on the device of the run, for exact computations such as scores and gradients."""
        return self.full_precision_models[0]

    @property
    def full_precision_models(self) -> list[Model]:
        """All models of the run (several in an ensemble) on its device, for exact computations."""
        for model in self.models:
            self.inference_weights.move(model)
        return self.models

    @property
    def inference_models(self) -> list[Model]:
        """The models converted for decoding: with packed or int8 weights on a CPU, or bfloat16 weights on a GPU."""
        return [self.inference_weights(model) for model in self.models]

    def with_shortlist(self, shortlist: Shortlist | None = None) -> Run:
        """Return a copy of the run whose searches generate only probable translations of the source tokens.

        These are listed in a `shortlist`, by default that in the run folder, which `dragoman shortlist` learns; a
        folder without one is a UserError.
        """
        restricted = copy(self)
        restricted.shortlist = shortlist or Shortlist.load(self.folder, self.model.vocab_size)
        return restricted

    def with_workers(self, num_workers: int) -> Run:
        """Return a copy of the run that translates with `num_workers` processes on a CPU, which share its weights.

        1 means this process only; more than 1 on a GPU, or on a system that cannot fork processes, is a UserError.
        """
        if num_workers < 1:
            raise UserError(
                f"the number of worker processes (--num-workers) must be at least 1, but is {num_workers}: raise it"
            )
        if num_workers > 1 and self.device.type != "cpu":
            raise UserError(
                f"several worker processes need a CPU, but the run is on {self.device}: use one worker "
                "(--num-workers 1)"
            )
        if num_workers > 1 and "fork" not in multiprocessing.get_all_start_methods():
            raise UserError(
                "several worker processes need an operating system that can fork processes, such as Linux: use one "
                "worker (--num-workers 1)"
            )
        parallel = copy(self)
        parallel.num_workers = num_workers
        return parallel

    def open_run(self, other: str | OtherRun, reverse: bool = False) -> Run:
        """Return another run that a search configuration needs, such as a draft model, on this run's device.

        `other` is an open run, or a folder, which is opened only once. A multilingual run gets the languages of this
        run; with `reverse` it translates in the other direction.
        """
        from dragoman import load as load_any  # opens Hugging Face checkpoints too, and imports this module

        if not isinstance(other, Run):
            folder = str(other)
            if folder not in self._opened:
                self._opened[folder] = load_any(folder, device=str(self.device))
            other = self._opened[folder]
        source, target = reversed(self.language_pair) if reverse else self.language_pair
        codes = other.model_framing.languages  # model_framing: the special tokens around its sources and targets
        if codes is None:  # not multilingual
            return other
        # some multilingual models are told the target language only
        return other.with_languages(source if codes.reads_source_code else None, target)

    def check_same_vocabulary(self, other: Run, reason: str) -> None:
        """Raise a UserError if another run differs in tokenizers, special tokens, type of sources or device.

        `reason` says in the message why they must be equal, such as "an ensemble needs one vocabulary".
        """
        own_tokenizers, other_tokenizers = (
            (run.source_tokenizer.to_json(), run.target_tokenizer.to_json()) for run in (self, other)
        )
        # framing: the special tokens around source and target
        own_framing, other_framing = (run.model_framing.without_default_languages() for run in (self, other))
        if own_tokenizers != other_tokenizers or own_framing != other_framing:
            raise UserError(
                f"{other.folder} has another vocabulary than {self.folder}, but {reason}: use runs with the same "
                "tokenizer and special tokens, such as runs trained on the same text with other seeds or systems"
            )
        if self.model.source_features != other.model.source_features:
            raise UserError(
                f"{other.folder} and {self.folder} read different sources (text, or feature vectors of different "
                f"sizes), but {reason}: use runs that read the same kind of sources"
            )
        if self.model.source_features is not None and self.config.features != other.config.features:
            raise UserError(
                f"{other.folder} and {self.folder} have different settings 'features' for images and sound, but "
                f"{reason}: use runs that were trained with the same settings"
            )
        if self.device != other.device:
            raise UserError(
                f"{other.folder} is on the device {other.device}, but {self.folder} is on {self.device}: load both "
                "runs on the same device"
            )

    # ---- translation and generation

    def translate(
        self,
        texts: Sequence[Source],
        beam_size: int | None = None,
        *,
        search: SearchConfig | None = None,
        alignment: bool = True,
        dictionary: Mapping[str, str] | None = None,
        tag: Tag | None = None,
        prefixes: Sequence[str] | None = None,
        include: Sequence[Sequence[str]] | None = None,
        exclude: Sequence[str] = (),
        token_scores: bool = False,
        split_sentences: bool = False,
        features: Sequence[str] | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> list[Translation]:
        """Translate texts.

        Examples:
            >>> run.translate(["The dog sleeps."], beam_size=5, prefixes=["Der"])[0].text
            'Der Hund schläft.'

        Args:
            texts: texts; for a system that reads images or speech, paths of files, or feature arrays (length ×
                features); the translation of an empty text is empty
            beam_size: beam size of the run's beam search; 1 is greedy search
            search: a search configuration, such as `Sample(seed=1)`; by default the run's `default_search`
            alignment: compute word alignments, if the model has attention
            dictionary: for word-level vocabularies, replace unknown words by the translation of the source word that
                they are aligned to, or copy it if the dictionary does not have it
            tag: corpus tag (`data.corpus_tags`) of all texts, or one for each; by default the first tag
            prefixes: how each translation begins, '' for any; their tokens count in the score
            include: phrases that each translation must contain
            exclude: phrases that no translation may contain as whole words
            token_scores: return log p of every token
            split_sentences: translate the sentences of a text separately, and join them with its white space
            features: features of each text, such as 'V;PST', for a run that was trained with features; they may also
                follow a text after a tab
            source_language: language of the texts for a multilingual model, such as 'eng_Latn'; by default the run's
            target_language: language to translate into, such as 'kin_Latn'; by default the run's
        """
        texts = self.with_features(texts, features)
        for argument, values in (("prefixes", prefixes), ("include", include)):
            if values is not None and len(values) != len(texts):
                raise UserError(
                    f"the argument {argument} must have one entry for each of {len(texts)} texts, but has "
                    f"{len(values)} entries: give as many entries as texts"
                )
        stream = self.with_languages(source_language, target_language).translate_stream(
            texts,
            search or self.search_config(beam_size),
            alignment=alignment,
            dictionary=dictionary,
            tag=tag,
            prefixes=prefixes,
            include=include,
            exclude=exclude,
            token_scores=token_scores,
            split_sentences=split_sentences,
        )
        return list(stream)

    def translate_stream(
        self,
        texts: Iterable[Source],
        search: SearchConfig,
        *,
        alignment: bool = False,
        dictionary: Mapping[str, str] | None = None,
        tag: Tag | None = None,
        first_index: int = 0,
        prefixes: Iterable[str] | None = None,
        include: Iterable[Sequence[str]] | None = None,
        exclude: Sequence[str] = (),
        token_scores: bool = False,
        split_sentences: bool = False,
    ) -> Iterator[Translation]:
        """Translate any number of texts in bounded memory, and yield their translations in order.

        Examples:
            >>> for translation in run.translate_stream(open("input.en"), run.default_search):
            ...     print(translation.text)

        Args:
            texts: texts; for a system that reads images or speech, paths of files, or feature arrays
            search: a search configuration
            alignment: compute word alignments, if the model has attention
            dictionary: translations of source words, with which unknown target words are replaced
            tag: corpus tag (`data.corpus_tags`) of all texts, or one for each; None: the first tag
            first_index: index of the first text, if others were translated before; it seeds sampling
            prefixes: how each translation begins, '' for any
            include: phrases that each translation must contain
            exclude: phrases that no translation may contain as whole words
            token_scores: return log p of every token
            split_sentences: translate the sentences of a text separately, and join them with its white space
        """
        self.check_translates()
        translator = Translator(
            self,
            search,
            alignment=alignment,
            dictionary=dictionary,
            tag=tag,
            exclude=exclude,
            token_scores=token_scores,
        )
        return translator.stream(texts, first_index, prefixes, include, split_sentences=split_sentences)

    def translate_document(
        self,
        content: bytes,
        name: str,
        *,
        search: SearchConfig | None = None,
        preserve: str = "placeholders",
        translate_attributes: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> bytes:
        """Translate a document and keep its structure: tags are placed around the aligned words.

        Examples:
            >>> run.translate_document(b"<p>The <b>dog</b> sleeps.</p>", "page.html")
            b'<p>Der <b>Hund</b> schl\xc3\xa4ft.</p>'

        Args:
            content: the file
            name: its name, whose ending is the format: .txt, .html, .md, .srt, .vtt, .docx, .pptx, .odt or .odp
            search: a search configuration; by default the run's `default_search`
            preserve: what the translation must contain unchanged: "placeholders" (and URLs and e-mail addresses),
                "numbers" as well, or "none"
            translate_attributes: translate the attributes alt, title, placeholder and aria-label of HTML
            source_language: language of the document for a multilingual model; by default the run's
            target_language: language to translate into; by default the run's
        """
        run = self.with_languages(source_language, target_language)
        return translate_document(
            run,
            content,
            name,
            search or self.default_search,
            preserve=Preserve(preserve),
            translate_attributes=translate_attributes,
            language=target_language_code(run),
        )

    def stream(
        self,
        text: Source,
        beam_size: int | None = None,
        *,
        search: SearchConfig | None = None,
        alignment: bool = True,
        tag: Tag | None = None,
        prefix: str = "",
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        features: str | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> Generator[StreamedTokens]:
        """Translate one text and yield its tokens as soon as they are certain.

        Tokens are certain if later steps cannot change them: in greedy search and sampling every token, in beam search
        the common prefix of all hypotheses. The last value contains the complete translation. Closing the generator
        stops the search.

        Examples:
            >>> for part in run.stream("The dog sleeps.", beam_size=1):
            ...     print(part.text, end="")

        Args:
            text: a text; for a system that reads images or speech, the path of a file, or a feature array
            beam_size: beam size of the run's beam search; 1 is greedy search
            search: a search configuration; by default the run's `default_search`
            alignment: compute the word alignment, if the model has attention
            tag: corpus tag (`data.corpus_tags`) of the text; None: the first tag
            prefix: how the translation begins, '' for any
            include: phrases that the translation must contain
            exclude: phrases that it must not contain as whole words
            features: features of the text, such as 'V;PST', for a run that was trained with features
            source_language: language of the text for a multilingual model; by default the run's
            target_language: language to translate into; by default the run's
        """
        self.check_translates()
        run, search = self.with_languages(source_language, target_language), search or self.search_config(beam_size)
        translator = Translator(run, search, alignment=alignment, tag=tag, exclude=exclude)
        (text,) = self.with_features([text], None if features is None else [features])
        parts = stream_batch(translator, [text], prefixes=[prefix], include=[include])
        return (tokens for _, tokens in parts)  # without the index of the text

    def stream_batch(
        self,
        texts: Sequence[Source],
        search: SearchConfig,
        *,
        alignment: bool = False,
        prefixes: Sequence[str] | None = None,
        first_index: int = 0,
        interval: float = 0.0,
    ) -> Generator[NumberedTokens]:
        """Translate texts in one batch, and yield their tokens as soon as later steps of the search cannot change them.

        Yields pairs of the index of a text and its new tokens; the last pair of a text contains its complete
        translation.

        Args:
            texts: texts; for a system that reads images or speech, paths of files, or feature arrays
            search: a search configuration; one that compares complete translations yields only the last pairs
            alignment: compute word alignments, if the model has attention
            prefixes: how each translation begins, '' for any; None: all may begin in any way
            first_index: index of the first text, if others were translated before; it seeds sampling
            interval: seconds between two yields; 0: after each step of the search
        """
        self.check_translates()
        translator = Translator(self, search, alignment=alignment)
        prefixes = prefixes or [""] * len(texts)
        return stream_batch(translator, texts, prefixes, first_index=first_index, interval=interval)

    def generate(
        self,
        prompts: Sequence[str],
        search: SearchConfig | None = None,
        max_new_tokens: int = 50,
        *,
        first_index: int = 0,
    ) -> list[Translation]:
        """Continue prompts with a language model.

        The text of a result is the prompt with its continuation, its score is log p(continuation | prompt). A run
        trained on dialogues replies instead: a prompt is a dialogue with turns separated by tabs, the text is the
        reply.

        Examples:
            >>> run.generate(["Once upon a time"], max_new_tokens=20)[0].text
            'Once upon a time there was a king …'

        Args:
            prompts: the texts to continue; they may be empty
            search: a search configuration; by default sampling with top-p 0.95
            max_new_tokens: largest number of generated tokens; unused if `search` is given
            first_index: index of the first prompt, if others were continued before; it seeds sampling
        """
        self.check_usage("generate")
        if search is None:
            limit = LengthLimit(ratio=0, offset=max_new_tokens, max=max_new_tokens)  # whatever the prompt's length
            search = Sample(top_p=0.95, length_limit=limit)
        if self.is_dialogue:
            return list(self.translate_stream(prompts, search, first_index=first_index))
        return continue_prompts(self, prompts, search, first_index)

    @property
    def default_search(self) -> SearchConfig:
        """The search in the run's configuration: `search.strategy`, or beam search with the settings of `search`."""
        strategy = self.config.search.strategy
        if not strategy:
            return self.beam_config()
        return search_from_dict(strategy, f"search.strategy of {self.folder / CONFIG_FILE}")

    def search_config(self, beam_size: int | None = None) -> SearchConfig:
        """Return the run's default search, or with a `beam_size` its beam search with this size."""
        return self.default_search if beam_size is None else self.beam_config(beam_size)

    def beam_config(self, size: int | None = None) -> Beam:
        """Return the beam search with the run's settings; `size` is the beam size, by default the configured one."""
        settings = self.config.search
        # `strategy` is a whole search configuration, which replaces the other settings if it is a beam search
        if settings.strategy and isinstance(beam := self.default_search, Beam):
            return beam if size is None else replace(beam, size=size)
        default_size = Beam.size if settings.beam_size is None else settings.beam_size  # None: not set
        return Beam(
            size=min(default_size, self.max_beam_size) if size is None else size,
            length_penalty=Beam.length_penalty if settings.length_penalty is None else settings.length_penalty,
            early_stopping=settings.early_stopping,
            num_finished=settings.num_finished,
            length_limit=self.length_limit,
            length_normalization=settings.length_normalization,
            coverage_penalty=settings.coverage_penalty,
            rank_unfinished=settings.rank_unfinished,
            no_repeat_ngram_size=settings.no_repeat_ngram_size,
        )

    @property
    def max_beam_size(self) -> int:
        """The largest possible beam size, at least 1: the number of tokens that can continue a hypothesis."""
        return max(1, self.model.vocab_size - len(self.special_tokens.suppressed) - 1)  # neither suppressed nor EOS

    @property
    def length_limit(self) -> LengthLimit:
        """The limit on the length of targets in the run's configuration; unset values have their defaults."""
        settings = self.config.search
        limit = LengthLimit(
            ratio=settings.length_ratio,
            offset=settings.length_offset,
            max=settings.max_target_length,
            min=settings.min_length,
        )
        return limit.or_else(DEFAULT_LENGTH_LIMIT)

    # ---- tagging, infilling, scoring, inspection

    def tag(self, texts: Sequence[str]) -> list[TaggedSentence]:
        """Tag the words of each text, which are separated by spaces, such as with parts of speech.

        Examples:
            >>> run.tag(["The dog sleeps ."])[0].tags
            ['DET', 'NOUN', 'VERB', 'PUNCT']
        """
        return filling.tag(self, texts)

    def classify(self, texts: Sequence[str]) -> list[Classification]:
        """Predict the label of whole texts, such as their sentiment.

        Examples:
            >>> run.classify(["What a beautiful day!"])[0].label
            'positive'
        """
        return classifying.classify(self, texts)

    def predict_labels(self, texts: Sequence[str]) -> list[str]:
        """Return the predicted labels of each text as a line of a corpus: one label, or the tags of its words.

        Tags are separated by spaces. A classifier predicts one label, a tagger the tags.
        """
        if self.model.one_label_per_sequence:
            return [result.label for result in self.classify(texts)]
        return [" ".join(sentence.tags) for sentence in self.tag(texts)]

    def fill(self, texts: Sequence[str], top_k: int = 5) -> list[FillResult]:
        """Fill every `<mask>` of texts, and return the `top_k` most probable choices for each mask.

        An encoder fills a mask with one token. An encoder–decoder pretrained by span corruption (T5) fills it with
        several tokens; one pretrained by denoising (BART) generates the whole text.

        Examples:
            >>> run.fill(["The <mask> sleeps."])[0].text
            'The dog sleeps.'
        """
        return filling.fill(self, texts, top_k)

    def score(
        self,
        sources: Sequence[Source] | None,
        targets: Sequence[str],
        *,
        features: Sequence[str] | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> list[ScoredText]:
        """Compute log p(y|x) of given translations, in total and by token.

        Examples:
            >>> run.score(["The dog sleeps."], ["Der Hund schläft."])[0].score
            -0.41

        Args:
            sources: the source texts; None: a decoder-only model computes log p(y)
            targets: their translations
            features: features of each source, such as 'V;PST', for a run that was trained with features
            source_language: language of the sources for a multilingual model; by default the run's
            target_language: language of the targets for a multilingual model; by default the run's
        """
        if not self.model.can_generate:
            raise self.usage_error("score")
        run = self.with_languages(source_language, target_language)
        if sources:
            sources = self.with_features(sources, features)
        return pair_scoring.score(run, sources, targets)

    def evaluate(
        self,
        sources: Sequence[Source],
        references: Sequence[str] | Sequence[Sequence[str]] | None = None,
        metrics: Sequence[str] = (),
        *,
        search: SearchConfig | None = None,
        features: Sequence[str] | None = None,
    ) -> EvaluationResult:
        """Translate or tag a test set and score the result, as `dragoman.evaluate` does.

        Args:
            sources: the sources of the test set; for a language model its texts
            references: a reference for each source, or a list of references for each; None for text alone
            metrics: names of metrics, such as bleu; empty: those that suit the run and the references
            search: a search configuration; by default the run's
            features: features of each source, such as 'V;PST', for a run that was trained with features
        """
        from dragoman.api.evaluate_run import evaluate

        return evaluate(self, sources, references, metrics, search=search, features=features)

    def export(
        self,
        out: str | Path,
        to: str = "huggingface",
        *,
        dtype: str = "float32",
        sentences: Sequence[str] | None = None,
        license: str = "",
    ) -> ExportResult:
        """Write the run in the format of another library and verify it, as `dragoman.export` does.

        Args:
            out: the folder to create
            to: the format: huggingface, ctranslate2 or onnx
            dtype: number format of the weights, such as float32 or float16
            sentences: sample sentences of the verification; by default those of the run's validation set
            license: licence of the model for its model card, such as mit or cc-by-4.0
        """
        from dragoman.api.export_run import export

        return export(self, out, to, dtype=dtype, sentences=sentences, license=license)

    def within_max_length(self, sources: Sequence[Source] | None, targets: Sequence[str]) -> list[bool]:
        """Return for each target whether the model has enough positions for it; `score` and `align` reject others.

        `sources` are the source texts; None: a decoder-only model reads the targets alone.
        """
        return pair_scoring.within_max_length(self, sources, targets)

    def score_masked(self, texts: Sequence[str]) -> list[ScoredText]:
        """Compute log p of every token of texts given all others, with one mask at a time (Salazar et al. 2020)."""
        return filling.score_masked(self, texts)

    def align(
        self, sources: Sequence[Source], targets: Sequence[str], *, occlusion: bool = False
    ) -> list[Alignment] | None:
        """Align the words of given translations; None if the model has no attention, and `occlusion` is False.

        Returns for each translation a list of pairs (index of the source word, index of the target word).

        Examples:
            >>> run.align(["The dog sleeps."], ["Der Hund schläft."])[0]
            [(0, 0), (1, 1), (2, 2)]

        Args:
            sources: the source texts
            targets: their translations
            occlusion: remove each source word to see which target words depend on it. This is more accurate than
                attention alone and needs none, but takes one forward pass for each source word.
        """
        if occlusion:
            return align_by_occlusion(self, [str(source) for source in sources], targets)
        return pair_scoring.align(self, sources, targets)

    def attention(self, source: Source, target: str | None = None) -> SentenceAttention:
        """Return all attention weights for a source and a given translation, or (None) for the run's translation."""
        return pair_scoring.attention(self, source, target)

    def lens(
        self,
        source: Source,
        target: str | None = None,
        *,
        search: SearchConfig | None = None,
        prefix: TargetPrefix | None = None,
        alternatives: int = 5,
        features: str | None = None,
    ) -> Inspection:
        """Inspect what the model computes for a sentence: attention, token probabilities, logit lens, beam.

        Args:
            source: the sentence
            target: the translation to inspect; None: the best one that the search finds
            search: a search configuration; by default the run's
            prefix: how the translation begins, a text or token ids
            alternatives: number of most probable tokens to list at each position
            features: features of the sentence, such as 'V;PST', for a run that was trained with features
        """
        from dragoman.lens import inspect_sentence  # the lens is built on runs, so it is imported only when it is used

        (source,) = self.with_features([source], None if features is None else [features])
        return inspect_sentence(self, source, target, search=search, prefix=prefix, alternatives=alternatives)

    def logits(self, source_ids: Tensor | None, target_ids: Tensor | None) -> Tensor:
        """Compute logits at every target position.

        A decoder-only model may get no source; an encoder-only model gets no target and predicts at every source token.

        Shape: source_ids (B, S), target_ids (B, T), padded left or right with `framing.pad`, the padding token; returns
        (B, T, V), of an encoder-only model (B, S, V)
        """
        return pair_scoring.logits(self, source_ids, target_ids)

    # ---- model inputs

    def with_features(self, texts: Sequence[Source], features: Sequence[str] | None) -> Sequence[Source]:
        """Append its features, such as 'V;PST', to each text after a tab, as a run trained with features reads them.

        Without features (None), the texts are returned unchanged. A run trained without features is a UserError.
        """
        if features is None:
            return texts
        if not self.source_tokenizer.features:
            raise UserError(
                f"the run {self.folder} was trained without source features (labels such as 'V;PST' for each source): "
                "leave out the argument features"
            )
        return join_features([str(text) for text in texts], features)

    def encode_sources(self, texts: Sequence[Source], tag: Tag | None = None) -> list[Any]:
        """Return each source as the model reads it: token ids with special tokens, or for images and speech an array.

        Both are truncated to the maximum source length. `tag` is the corpus tag of all texts, or one for each; by
        default the run's first tag.
        """
        return [frame_source(self, ids) for ids in encode_without_framing(self, texts, tag)]

    def decode_source(self, source: NDArray[Any]) -> str:
        """Return the text of a source from its token ids, with its features (such as 'V;PST') after a tab, if any."""
        features = self.source_tokenizer.features.decode(source.tolist())
        text = self.source_tokenizer.decode(source.tolist())
        return f"{text}\t{features}" if features else text

    def tag_of_row(self, source: NDArray[Any]) -> str:
        """Return the corpus tag of a source: the name of the tag token with which its token ids begin, or ''."""
        tag_names = {token_id: name for name, token_id in self.source_tokenizer.tags.items()}  # empty: no tags
        return tag_names.get(int(source[0]), "") if tag_names else ""

    def pad_batch(self, rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Pad sequences to a batch on the model's device; return the batch and its lengths (B).

        `rows` are lists of token ids, which become B T, or feature arrays, which become B S F.
        """
        batch, lengths = pad_rows(rows, self.framing.pad)
        return batch.to(self.device), lengths.to(self.device)

    # ---- what the folder holds

    def metrics(self) -> list[dict[str, Any]]:
        """Return the records of training and validation in `metrics.jsonl`, in order of steps.

        Of an ensemble, they are those of its first run.
        """
        return read_metrics(self.member_folders[0])

    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints in the run folder; of an ensemble, those of its first run."""
        return checkpoint_names(self.member_folders[0])


def load(
    folder: str | Path,
    checkpoint_name: str = "best",
    device: str | None = None,
    custom_parts: Sequence[type[Spec]] = (),
    weights: InferencePrecision = "float32",
) -> Run:
    """Open a run folder (the folder that a training writes) for inference.

    Args:
        folder: the run folder
        checkpoint_name: `best`, `last`, `averaged` or a step
        device: `cpu`, `cuda`, `mps`, or `auto` (None): the GPU if there is one, else the CPU
        custom_parts: classes of parts, such as layers, that the user has defined and the model contains
        weights: precision of the weights in decoding: `float32`, `int8` (CPU) or `bfloat16` (GPU)

    Returns:
        The run; for a folder of runs with different seeds, their ensemble.
    """
    folder = resolve_link(Path(folder))
    if is_ensemble_folder(folder):
        check_run_folder(folder, checkpoint_name)
        first, *others = (
            load(member, checkpoint_name, device, custom_parts, weights) for member in ensemble_members(folder)
        )
        first.check_translates()
        ensemble = first.ensemble(*others)
        ensemble.folder, ensemble.config = folder, config.from_yaml(folder / CONFIG_FILE)
        return ensemble
    torch_device = run_folder.select_device(device or "auto")
    inference_weights = InferenceWeights(weights, torch_device)
    model = unallocated_model(run_folder.read_spec(folder, custom_parts))  # without weights, which are assigned below
    settings = config.from_yaml(folder / CONFIG_FILE)
    source_tokenizer, target_tokenizer = run_folder.read_tokenizers(folder)
    path = folder / CHECKPOINT_DIR / checkpoint_name
    check_run_folder(folder, checkpoint_name)
    stored_weights = weight_source(folder, checkpoint_name, model, settings)
    checkpoint.assign_weights(model.eval(), stored_weights, path, inference_weights.loading_device)
    framing, name = run_folder.read_framing(folder), resolve_link(path).resolve().name  # `best` is a link to a name
    return Run(folder, settings, model, source_tokenizer, target_tokenizer, framing, name, inference_weights)
