"""A test set, sentence by sentence: translations, scores, probabilities and errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from sacrebleu.metrics.bleu import BLEU

from dragoman import evaluation
from dragoman.evaluation import MetricScore
from dragoman.lens.diagnosis.hallucination import words_of_both_languages
from dragoman.lens.sentence_errors import SentenceError, TranslatedPair, find_errors, rare_words, training_word_counts
from dragoman.run import Run
from dragoman.run.sources import normalize_text
from dragoman.text import split_words

SENTENCES_PER_CHUNK = 16  # that are translated together


@dataclass(frozen=True)
class AnalyzedSentence:
    """A sentence of a test set and its translation.

    Attributes:
        index: number of the sentence in the test set, from 0.
        score: log p of the translation.
        num_tokens: number of its tokens, EOS included.
        reference_score: log p of the reference; None if the model cannot score it.
        bleu, chrf: sentence-level scores of sacreBLEU; BLEU with exponential smoothing and effective order.
        source_words: number of words of the source.
        rare_words: words of the source that occur at most once in the training text.
    """

    index: int
    source: str
    reference: str
    translation: str
    score: float
    num_tokens: int
    reference_score: float | None
    bleu: float
    chrf: float
    source_words: int
    errors: tuple[SentenceError, ...] = ()
    rare_words: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the translation equals the reference, apart from white space at the ends."""
        return self.translation.strip() == self.reference.strip()

    @property
    def score_per_token(self) -> float:
        """Mean log-probability of the tokens of the translation (`score` is their sum)."""
        return self.score / max(1, self.num_tokens)


@dataclass
class TestSetAnalysis:
    """The analysis of a run on a test set; sentences are added while it runs, short ones first."""

    __test__ = False  # keeps pytest from collecting the class, whose name begins with Test

    total: int  # number of sentences of the test set
    sentences: dict[int, AnalyzedSentence] = field(default_factory=dict)  # by index
    scores: dict[str, MetricScore] = field(default_factory=dict)  # of the whole set, when it is complete

    def error_counts(self) -> dict[str, int]:
        """Return the number of sentences with each kind of error, such as "omission"; other kinds have no entry."""
        sentences = list(self.sentences.values())  # a copy: another thread may add sentences meanwhile
        return dict(Counter(error.kind for sentence in sentences for error in sentence.errors))


class TestSetAnalyzer:
    """Analyzes a run on a test set, a few sentences at a time, so that the first results can be shown early."""

    __test__ = False  # keeps pytest from collecting the class, whose name begins with Test

    def __init__(self, run: Run, sources: Sequence[str], references: Sequence[str]) -> None:
        """Prepare the analysis; each source has one reference. `analysis` is the result, which `analyze` fills."""
        self.run, self.sources = run, list(sources)
        # normalized (Unicode form, case) as the text on which the run was trained
        self.references = [normalize_text(run, text) for text in references]
        # name of the sacreBLEU tokenizer that suits the script of the references, such as "13a" or "zh"
        self.tokenizer = evaluation.choose_bleu_tokenizer(self.references).tokenizer
        # effective order: a sentence of fewer than four words has no 4-grams
        self.sentence_bleu = BLEU(effective_order=True, tokenize=self.tokenizer)
        self.analysis = TestSetAnalysis(len(self.sources))

    def analyze(self) -> TestSetAnalysis:
        """Translate and score all sentences, short ones first, then score the whole test set.

        `self.analysis`, which is returned, gets the sentences after every SENTENCES_PER_CHUNK, so that another thread
        can show them early.
        """
        training_counts = training_word_counts(self.run)  # which words of a source are rare
        # words of both languages, such as names: to copy them from the source is no error
        shared_words = words_of_both_languages(self.run, self.sources, self.references)
        order = sorted(range(len(self.sources)), key=lambda n: len(self.sources[n]))
        for start in range(0, len(order), SENTENCES_PER_CHUNK):
            chunk = order[start : start + SENTENCES_PER_CHUNK]
            for index, translated in zip(chunk, self._translate(chunk), strict=True):
                self.analysis.sentences[index] = self._judge(index, translated, shared_words, training_counts)
        hypotheses = [self.analysis.sentences[n].translation for n in range(len(self.sources))]
        names = [f"bleu={self.tokenizer}", "chrf", "exact-match"]
        self.analysis.scores = evaluation.evaluate(names, hypotheses, [[text] for text in self.references])
        return self.analysis

    def _translate(self, chunk: Sequence[int]) -> list[TranslatedPair]:
        """Translate the sentences with the indices `chunk`, and score and align their references where possible.

        Score and alignment of a reference are None for ensembles, for empty sources and references, and for pairs
        beyond the model's maximum length; alignments also for models without cross-attention.
        """
        run, sources = self.run, [self.sources[n] for n in chunk]
        references = [self.references[n] for n in chunk]
        translations = run.translate(sources)
        scorable = [
            n
            for n, fits in enumerate(run.within_max_length(sources, references))
            if fits and sources[n].strip() and references[n].strip()
        ]
        if run.ensemble_members:  # only single models compute probabilities of given texts
            scorable = []
        pairs = [sources[n] for n in scorable], [references[n] for n in scorable]  # sources and their references
        scores = {n: scored.score for n, scored in zip(scorable, run.score(*pairs))} if scorable else {}
        alignments = (run.align(*pairs) if scorable else None) or []
        links = dict(zip(scorable, alignments))
        return [
            TranslatedPair(
                sources[n],
                references[n],
                translation,
                reference_alignment=links.get(n),
                reference_score=scores.get(n),
            )
            for n, translation in enumerate(translations)
        ]

    def _judge(
        self, index: int, translated: TranslatedPair, shared_words: Collection[str], training_counts: Counter[str]
    ) -> AnalyzedSentence:
        """Return the scores and errors of one translated sentence.

        Args:
            index: index of the sentence in the test set.
            translated: the source, its reference and its translation, with the scores of both.
            shared_words: words of both languages; to copy one of them from the source is no error.
            training_counts: number of occurrences of each word in the training sources, which shows rare words.
        """
        translation, reference = translated.translation, translated.reference
        text = translation.text
        return AnalyzedSentence(
            index,
            source=translated.source,
            reference=reference,
            translation=text,
            score=translation.score,
            num_tokens=len(translation.tokens) + int(translation.finished),  # a finished one ends with EOS
            reference_score=translated.reference_score,
            bleu=self.sentence_bleu.sentence_score(text, [reference]).score,
            chrf=evaluation.text_metric("chrf")([text], [[reference]]).value,
            source_words=len(split_words(translated.source)),
            errors=tuple(find_errors(translated, shared_words)),
            rare_words=tuple(rare_words(translated.source, training_counts)),
        )
