"""Translation of any number of texts in windows and batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.data.batching import batch_by_length
from dragoman.errors import UserError
from dragoman.processes import fork_map
from dragoman.run.pair_scoring import align_batch, batch_cross_attention, hypothesis_token_scores
from dragoman.run.results import Alignment, Translation
from dragoman.run.sources import (
    Source,
    Tag,
    detect_languages,
    encode_features,
    encode_without_framing,
    frame_source,
    is_copied,
    is_empty,
    max_source_tokens,
    normalize_phrases,
    normalize_source,
    normalize_text,
    split_into_sentences,
    tag_ids,
)
from dragoman.search import Constraints, Hypothesis, SearchConfig, SearchRequest
from dragoman.search.constraints import TargetPrefix
from dragoman.search.forbidden_phrases import ForbiddenPhrases
from dragoman.search.unknown_words import UnknownWordReplacer
from dragoman.text import alignment_words
from dragoman.text.sentences import SplitText

if TYPE_CHECKING:
    from dragoman.run.run import Run

TextIndices = NDArray[np.int64]  # indices of texts in a window, or among all texts of a batch

SORT_WINDOW_TEXTS = 4096  # texts that are sorted by length and translated together
SORT_WINDOW_FEATURES = 512  # sources of feature vectors, which take more memory
QUEUED_BATCHES = 4  # batches of sources that are passed to one search: waiting sources replace finished ones


class Translator:
    """Translates any number of texts with the same options, which `Run.translate` documents."""

    def __init__(
        self,
        run: Run,
        search: SearchConfig,
        *,
        alignment: bool,
        dictionary: Mapping[str, str] | None = None,
        tag: Tag | None = None,
        exclude: Sequence[str] = (),
        token_scores: bool = False,
    ) -> None:
        """Check the options, and prepare the replacement of unknown words and the forbidden phrases.

        Args:
            alignment: compute word alignments, if the model has attention
            dictionary: translations of source words with which unknown target words are replaced, or the source word
                itself if it is not listed; None: not replaced, except tokens that stand for copied words
            tag: corpus tag of all texts, or one for each; None: the run's default
            exclude: phrases that no translation may contain as whole words; with a dictionary they are a UserError
            token_scores: compute log p of every token
        """
        self.run, self.search, self.tag, self.token_scores = run, search, tag, token_scores
        self.replacer = None
        # a model with tokens for unknown words copies these: they are replaced by the words of the source, unless
        # phrases are excluded, which a replacement after the search could contain
        if dictionary is None and run.target_tokenizer.unknown_word_tokens and not exclude:
            dictionary = {}
        if dictionary is not None:
            self.replacer = UnknownWordReplacer(run.source_tokenizer, run.target_tokenizer, dictionary)
            if exclude:
                raise UserError(
                    "phrases to exclude cannot be combined with a dictionary for unknown words, because the "
                    "dictionary is applied after the search and could insert an excluded phrase: use only one of the "
                    "two"
                )
        # feature vectors (images, speech) have no words; a replacer of unknown words computes the alignment itself
        self.align = alignment and self.replacer is None and run.model.source_features is None
        self.exclude = tuple(normalize_phrases(run, exclude))
        self.forbidden_phrases = None
        if exclude:
            vocab_size = run.model.vocab_size
            self.forbidden_phrases = ForbiddenPhrases(
                run.target_tokenizer, self.exclude, run.special_tokens, vocab_size
            )

    def stream(
        self,
        texts: Iterable[Source],
        first_index: int = 0,
        prefixes: Iterable[str] | None = None,
        include: Iterable[Sequence[str]] | None = None,
        split_sentences: bool = False,
    ) -> Iterator[Translation]:
        """Translate texts in bounded memory, and yield their translations in order.

        Args:
            texts: the sources
            first_index: index of the first text, if others were translated before; it seeds sampling
            prefixes: how each translation begins, '' for any; None: all may begin in any way
            include: phrases that each translation must contain; None: none
            split_sentences: translate the sentences of a text separately, and join the translations; with `prefixes`
                or `include` it is a UserError
        """
        if not split_sentences:
            return self._stream(texts, first_index, self.tag, prefixes, include)
        if prefixes is not None or include is not None:
            raise UserError(
                "target prefixes and phrases to include apply to whole texts, but the texts are split into sentences: "
                "leave them out, or --split-sentences"
            )
        return self._stream_split(texts, first_index)

    def _stream(
        self,
        texts: Iterable[Source],
        first_index: int,
        tag: Tag | None,
        prefixes: Iterable[str] | None = None,
        include: Iterable[Sequence[str]] | None = None,
    ) -> Iterator[Translation]:
        """Translate texts in windows, the texts of each of which are sorted by length; yield translations in order.

        Args:
            first_index: index of the first text, which seeds sampling
            tag: corpus tag of all texts, or one for each; None: the run's default
            prefixes: how each translation begins, '' for any
            include: phrases that each translation must contain
        """
        run, texts, index = self.run, iter(texts), 0  # index: of the first text of a window
        window_size = SORT_WINDOW_TEXTS if run.model.source_features is None else SORT_WINDOW_FEATURES
        prefixes = None if prefixes is None else iter(prefixes)
        include = None if include is None else iter(include)
        while window := [normalize_source(run, text) for text in islice(texts, window_size)]:
            size = len(window)
            window_tag = tag if tag is None or isinstance(tag, str) else tag[index : index + size]
            constraints = Constraints(
                prefixes=None if prefixes is None else [normalize_text(run, text) for text in islice(prefixes, size)],
                include=None if include is None else [normalize_phrases(run, line) for line in islice(include, size)],
                exclude=self.forbidden_phrases,
            )
            translations = self._translate_window(window, first_index + index, window_tag, constraints)
            yield from self._replace_unknown_words(window, translations, window_tag) if self.replacer else translations
            index += size

    def _translate_window(
        self, texts: list[Source], first_index: int, tag: Tag | None, constraints: Constraints
    ) -> list[Translation]:
        """Translate the texts of a window in batches of similar length, and return the translations in order.

        Empty texts have empty translations, and texts without letters are copied, if the run's settings say so.
        `first_index` is the index of the first text among all, which seeds sampling; `tag` the corpus tag of all texts,
        or one for each (None: the run's default); `constraints` has one entry for each text.
        """
        run = self.run
        token_ids = encode_without_framing(run, texts, tag)
        sources = [frame_source(run, ids) for ids in token_ids]  # truncated, with special tokens
        empty = Translation(
            text="", score=0.0, alignment=[] if self.align else None, token_scores=[] if self.token_scores else None
        )
        results = [empty] * len(texts)  # those of texts that are not empty are replaced below
        for i, text in enumerate(texts):
            prefix, required_phrases = constraints.at(i)
            if self.copies(text, prefix, required_phrases):
                results[i] = self.copy(str(text))
        searched = np.array([i for i, text in enumerate(texts) if not is_empty(text) and not results[i].copied])
        if not len(searched):
            return results
        # source tokens of a batch: the setting counts them once for each row, and a beam takes several rows per source
        batch_tokens = max(1, run.config.search.batch_tokens // self.search.rows_per_source)
        # one search gets several batches, so that waiting sources replace those that are done; with several workers it
        # gets one, so that all workers are busy
        queued_batches = QUEUED_BATCHES if run.num_workers == 1 else 1
        batches = [
            (language_run, indices[batch])
            for language_run, indices in self.group_by_language(sources, searched)
            for batch in batch_by_length([len(sources[i]) for i in indices], queued_batches * batch_tokens)
        ]

        def translate_batch(batch: tuple[Run, TextIndices]) -> list[Translation]:
            """Translate the texts of these indices with the run of their language."""
            run, indices = batch
            source, lengths = run.pad_batch([sources[i] for i in indices])
            request = SearchRequest(
                source,
                lengths,
                keys=torch.from_numpy(indices + first_index),  # seeds of sampling
                texts=[texts[i] for i in indices],
                constraints=constraints.select(indices.tolist()),
                max_batch_size=max(1, batch_tokens // source.shape[1]),  # sources of this padded length
            )
            hypotheses = self.search.decode(run, request)
            best = [ranked[0].tokens for ranked in hypotheses]
            alignments = align_batch(run, source, lengths, best) if self.align else None
            scores = hypothesis_token_scores(run, source, lengths, hypotheses) if self.token_scores else None
            truncated = [len(token_ids[i]) > max_source_tokens(run) for i in indices]
            return [
                to_translation(
                    run,
                    ranked,
                    alignment=alignments[n] if alignments else None,
                    truncated_source=truncated[n],
                    token_scores=scores[n] if scores else None,
                )
                for n, ranked in enumerate(hypotheses)
            ]

        for (_, indices), translations in zip(batches, self._map_batches(translate_batch, batches)):
            for i, translation in zip(indices, translations):
                results[i] = translation
        return results

    def group_by_language(self, sources: list[Any], indices: TextIndices) -> list[tuple[Run, TextIndices]]:
        """Group sources by language, if the model is to recognize it; return pairs (run for the language, indices).

        `indices` are those of the sources to group. If the language pair is given, there is one group with all of them.
        """
        run = self.run
        # framing.languages: codes by which the special tokens around a text are still to be completed; None if the
        # languages are given, or there are no codes. `detected`: the model recognizes the language of a recording
        if run.framing.languages is None or not run.framing.languages.detected:
            return [(run, indices)]
        languages = np.array(detect_languages(run, [sources[i] for i in indices]))
        # speech is transcribed in its own language, which is then the target language
        return [(run.with_languages(target=name), indices[languages == name]) for name in sorted({*languages.tolist()})]

    def _map_batches(
        self,
        translate: Callable[[tuple[Run, TextIndices]], list[Translation]],
        batches: Sequence[tuple[Run, TextIndices]],
    ) -> Iterator[list[Translation]]:
        """Return `map(translate, batches)`, computed by several processes if the run has several workers.

        A batch is (run for the language of its texts, indices of the texts).
        """
        if self.run.num_workers == 1:
            return map(translate, batches)
        _ = self.run.inference_models  # converts the weights before the process forks, so that workers share them
        # each process gets an equal share of the CPUs as its number of threads
        return fork_map(translate, batches, workers=self.run.num_workers, initialize=torch.set_num_threads)

    def _stream_split(self, texts: Iterable[Source], first_index: int) -> Iterator[Translation]:
        """Split each text into sentences, translate these separately, and yield their translations joined by text.

        A sentence has the corpus tag of its text. `first_index` is the index of the first text, which seeds sampling.
        """
        texts, index = iter(texts), 0  # index: of the first text of a window
        while window := list(islice(texts, SORT_WINDOW_TEXTS)):
            if self.run.model.source_features is not None:
                raise UserError(
                    f"the run {self.run.folder} reads feature vectors, which cannot be split into sentences: leave "
                    "--split-sentences out"
                )
            split_texts = [split_into_sentences(self.run, str(text)) for text in window]
            sentences = [sentence for text in split_texts for sentence in text.sentences]
            sentence_tags = self.tag
            if sentence_tags is not None and not isinstance(sentence_tags, str):  # one for each text
                text_tags = sentence_tags[index : index + len(window)]
                sentence_tags = [tag for tag, text in zip(text_tags, split_texts) for _ in text.sentences]
            translations = self._stream(sentences, first_index + index, sentence_tags)
            for text in split_texts:
                yield join_sentences(text, [next(translations) for _ in text.sentences])
            index += len(window)

    def copies(self, text: Source, prefix: TargetPrefix, include: Sequence[str]) -> bool:
        """Whether a text is copied instead of translated: it has no letters, and the copy violates no constraint.

        Constraints are the `prefix` and the phrases `include` that its translation must contain ("" and () for none),
        and the phrases that no translation may contain.
        """
        if not is_copied(self.run, text) or prefix or include:
            return False
        return not any(phrase in str(text) for phrase in self.exclude)

    def copy(self, text: str) -> Translation:
        """Return the translation that is a copy of the text, aligned word by word and with a log p of 0."""
        tokens = self.run.target_tokenizer.tokens(self.run.target_tokenizer.encode(text))
        alignment = [(n, n) for n in range(len(alignment_words(text)))] if self.align else None
        token_scores = [0.0] * (len(tokens) + 1) if self.token_scores else None  # with EOS
        return Translation(text, score=0.0, tokens=tokens, alignment=alignment, copied=True, token_scores=token_scores)

    def _replace_unknown_words(
        self, texts: list[Source], translations: list[Translation], tag: Tag | None
    ) -> Iterator[Translation]:
        """Yield the translations of texts, with the unknown words in them and in their alternatives replaced.

        The source word with which an unknown target word is aligned by attention is looked up in the dictionary, or
        copied. `tag` is the corpus tag of all texts, or one for each; None: the run's default. Sources of feature
        vectors, and a model without attention, are UserErrors.
        """
        run, replacer = self.run, self.replacer
        assert replacer is not None
        # `tag_id`: the id of a text's corpus tag in a list, which is empty if it has none
        for text, translation, tag_id in zip(texts, translations, tag_ids(run, len(texts), tag)):
            if not isinstance(text, str):
                raise UserError(
                    "unknown words cannot be replaced by source words, because this run reads feature vectors (images "
                    "or speech): leave out --dictionary and --copy-unknown"
                )
            if not text.strip() or translation.copied:  # the model has generated nothing
                yield translation
                continue
            # before the text, the model reads the tokens of its corpus tag and of its features (such as V;PST), which
            # follow a tab in `text` and are split off here; each is a list of ids, empty if there are none
            (feature_ids,), (text,) = encode_features(run, [text])
            ids = [*tag_id, *feature_ids, *run.source_tokenizer.encode(text)]
            source, lengths = run.pad_batch([frame_source(run, ids)])
            replaced = []
            for candidate in (translation, *translation.alternatives):
                target_ids = run.target_tokenizer.tokens_to_ids(candidate.tokens)
                attention = batch_cross_attention(run, source, lengths, [target_ids])
                if attention is None:
                    raise UserError(
                        f"unknown words cannot be replaced by source words, because the model in {run.folder} has no "
                        "attention, by which they are aligned with the source: leave out --dictionary and "
                        "--copy-unknown"
                    )
                attention_to_text = attention[0][:, len(tag_id) + len(feature_ids) :]  # T S, without tag and features
                new_text, alignment = replacer.replace(text, target_ids, attention_to_text)
                replaced.append(replace(candidate, text=new_text, alignment=alignment, alternatives=[]))
            yield replace(replaced[0], alternatives=replaced[1:])


def join_sentences(text: SplitText, translations: Sequence[Translation]) -> Translation:
    """Join the translations of the sentences of a text to a translation of the text.

    Scores are added; word indices in the alignment are those of the whole text. The k-th alternative of the text
    consists of the k-th alternative of every sentence, or its last one.
    """
    ranked = [(translation, *translation.alternatives) for translation in translations]
    best, *alternatives = (
        _join_one_translation_each(text, [candidates[min(rank, len(candidates) - 1)] for candidates in ranked])
        for rank in range(max(map(len, ranked), default=1))  # a text without sentences has an empty translation
    )
    return replace(best, alternatives=alternatives)


def _join_one_translation_each(text: SplitText, translations: Sequence[Translation]) -> Translation:
    """Join one translation of each sentence of a text, without their alternatives.

    Scores are added. In the word alignment, words are counted from the beginning of the text.
    """
    has_alignment = all(translation.alignment is not None for translation in translations)
    alignment: Alignment | None = [] if has_alignment else None
    source_offset = target_offset = 0  # numbers of words in the sentences before
    for sentence, translation in zip(text.sentences, translations):
        if alignment is not None:
            links = translation.alignment or ()  # pairs of word indices in this sentence
            alignment += [(source_offset + source, target_offset + target) for source, target in links]
        source_offset += len(alignment_words(sentence))
        target_offset += len(alignment_words(translation.text))
    token_scores = [score for translation in translations for score in translation.token_scores or ()]
    has_token_scores = any(translation.token_scores is not None for translation in translations)
    proven_optimal = [translation.proven_optimal for translation in translations]
    proven = [is_proven for is_proven in proven_optimal if is_proven is not None]  # None: not an exact search
    return Translation(
        text=text.join([translation.text for translation in translations]),
        score=sum(translation.score for translation in translations),
        tokens=[token for translation in translations for token in translation.tokens],
        alignment=alignment,
        finished=all(translation.finished for translation in translations),
        truncated_source=any(translation.truncated_source for translation in translations),
        proven_optimal=all(proven) if proven else None,
        copied=bool(translations) and all(translation.copied for translation in translations),
        token_scores=token_scores if has_token_scores else None,
    )


def continue_prompts(run: Run, prompts: Sequence[str], search: SearchConfig, first_index: int = 0) -> list[Translation]:
    """Continue prompts, which may be empty, with a decoder-only model; return texts with prompt and continuation.

    The search gets all but the last token of a prompt as the source, and the last one in place of BOS. `first_index` is
    the index of the first prompt, which seeds sampling. Another model, or a prompt that is too long, is a UserError.
    """
    if not run.model.is_decoder_only:
        raise run.usage_error("generate")
    prefix = run.framing.source_prefix  # special tokens before a source, of which a prompt takes the place
    token_ids = run.target_tokenizer.encode_batch([normalize_text(run, prompt) for prompt in prompts])
    token_ids = [[*prefix, *ids] or [run.framing.bos] for ids in token_ids]  # an empty prompt is BOS
    longest = max(map(len, token_ids), default=0)
    max_new_tokens = run.model.max_target_length(torch.tensor([longest]))  # after the longest prompt; None: no limit
    if max_new_tokens is not None and int(max_new_tokens) < 1:
        max_tokens = longest + int(max_new_tokens) - 1  # so that one new token is possible
        raise UserError(
            f"a prompt has {longest:,} tokens, but the model can only continue prompts of at most {max_tokens:,} "
            "tokens: shorten the prompt"
        )
    results = [Translation(text="", score=0.0)] * len(prompts)  # replaced below
    batch_tokens = max(1, run.config.search.batch_tokens // search.rows_per_source)  # a beam takes several rows
    for batch in batch_by_length([len(ids) for ids in token_ids], batch_tokens) if len(prompts) else []:
        source, lengths = run.pad_batch([token_ids[i][:-1] for i in batch])
        last_token = torch.tensor([token_ids[i][-1] for i in batch], device=run.device)
        request = SearchRequest(source, lengths, keys=torch.from_numpy(batch + first_index), first_token=last_token)
        for i, hypotheses in zip(batch, search.decode(run, request)):
            prompt = token_ids[i][len(prefix) :]  # without the special tokens before it
            with_prompt = [hypothesis._replace(tokens=[*prompt, *hypothesis.tokens]) for hypothesis in hypotheses]
            results[i] = to_translation(run, with_prompt)
    return results


def to_translation(
    run: Run,
    hypotheses: Sequence[Hypothesis],
    alignment: Alignment | None = None,
    truncated_source: bool = False,
    token_scores: Sequence[list[float]] | None = None,
) -> Translation:
    """Return the translation of a source from the hypotheses of its search, best first; the others are alternatives.

    Args:
        alignment: word alignment of the best hypothesis
        truncated_source: whether the source was too long, so that only its beginning was translated
        token_scores: log p of the tokens of each hypothesis
    """
    tokenizer = run.target_tokenizer
    best, *alternatives = (
        Translation(
            text=tokenizer.decode(hypothesis.tokens),
            score=hypothesis.score,
            tokens=tokenizer.tokens(hypothesis.tokens),
            finished=hypothesis.finished,
            proven_optimal=hypothesis.proven_optimal,
            token_scores=None if token_scores is None else token_scores[rank],
        )
        for rank, hypothesis in enumerate(hypotheses)
    )
    return replace(best, alignment=alignment, alternatives=alternatives, truncated_source=truncated_source)
