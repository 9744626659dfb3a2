"""Verification of an export: the other library must give our logits and our beam outputs on sample sentences."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.data import TokenStore
from dragoman.errors import UserError
from dragoman.run import Run, Source
from dragoman.run.sources import Tag, normalize_text
from dragoman.search import Beam, Hypothesis, LengthLimit, SearchRequest
from dragoman.search.forced_decoding import token_scores
from dragoman.training.validation_corpora import stored_sentences

NUM_SAMPLES = 8
MAX_SAMPLE_TOKENS = 64  # of a sample's source or target; longer ones are truncated
MAX_BEAM_TOKENS = 32  # of the beam outputs that are compared
LOGIT_TOLERANCE = 1e-4  # largest relative error of an export in float32; random rounding stays below 1e-5
TIE_TOLERANCE = 1e-4  # outputs whose normalized scores differ by less are equally good
#: samples of a run without validation data, besides texts made of its own tokens
GENERIC_SENTENCES = ("The dog sleeps.", "Where is the station?", "3 + 4 = 7", "An old man reads a book in the garden.")


@dataclass(frozen=True)
class ExportSamples:
    """Sample pairs for a verification.

    Attributes:
        sources: the texts; empty for a language model.
        source_ids: token ids of each source with its framing; no ids for a language model.
        target_ids: what the decoder reads: BOS and the target without EOS; no ids for an encoder.
    """

    sources: Sequence[Source]
    source_ids: Sequence[list[int]]
    target_ids: Sequence[list[int]]

    def __len__(self) -> int:
        """Return the number of sample pairs."""
        return len(self.target_ids)


@dataclass(frozen=True)
class ExportCheck:
    """The result of a verification.

    Attributes:
        library: name and version of the other library.
        sentences: number of sample sentences.
        max_relative_error: largest difference of teacher-forced `quantity`, divided by its largest absolute value.
        tolerance: the largest error that is accepted.
        equal_outputs: number of sentences with the same beam output, or one that is equally good; None if the model
            generates nothing.
        quantity: what was compared: logits, or the log probabilities of target tokens.
        search: the kind of search whose outputs were compared: beam or greedy.
        outputs_must_agree: whether different beam outputs are an error; not if weights were rounded.
        speed: sentences per second of our library and of the other one, if they were measured.
    """

    library: str
    sentences: int
    max_relative_error: float
    tolerance: float = LOGIT_TOLERANCE
    equal_outputs: int | None = None
    quantity: str = "logits"
    search: str = "beam"
    outputs_must_agree: bool = True
    speed: tuple[float, float] | None = None

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance and, where they must agree, all beam outputs are equal."""
        outputs_differ = self.equal_outputs is not None and self.equal_outputs < self.sentences
        return self.max_relative_error <= self.tolerance and not (self.outputs_must_agree and outputs_differ)

    def __str__(self) -> str:
        """Return the result in words."""
        text = (
            f"largest relative error of {self.quantity} {self.max_relative_error:.1e} (tolerance {self.tolerance:.0e}) "
            f"on {self.sentences} sentences"
        )
        if self.equal_outputs is not None:
            text += f", {self.equal_outputs} of {self.sentences} {self.search} outputs equal"
        return text


def with_sample_languages(run: Run) -> Run:
    """Return a run that can translate sample sentences: a multilingual one without default languages gets two.

    They are the first two of its languages; any other run is returned as it is.
    """
    if run.framing.languages is None:  # not multilingual, or the languages are chosen
        return run
    source_language, target_language = run.languages[:2]
    return run.with_languages(source_language, target_language)


def sample_pairs(run: Run, sentences: Sequence[str] | None) -> ExportSamples:
    """Return the samples for a verification.

    They are `sentences`, or, if that is None, pairs of the run's validation set, or else generic sentences and texts
    made of the run's own tokens. A sentence without a reference gets the run's own translation as target. A language
    model has targets only, an encoder sources only. All are cut to MAX_SAMPLE_TOKENS tokens.
    """
    sources, tags, references = sample_texts(run, sentences)
    if run.is_language_model:
        # special tokens before the text: a model without sources has them as `source_prefix`, or begins with BOS
        prefix = run.framing.source_prefix or (run.framing.bos,)
        texts = references or [str(source) for source in sources]
        target_ids = [[*prefix, *run.target_tokenizer.encode(text)][:MAX_SAMPLE_TOKENS] for text in texts]
        return ExportSamples(sources=(), source_ids=[[] for _ in target_ids], target_ids=target_ids)
    source_ids = [ids[:MAX_SAMPLE_TOKENS] for ids in run.encode_sources(sources, tags)]
    if not run.model.can_generate:
        return ExportSamples(sources, source_ids, target_ids=[[] for _ in source_ids])
    if references is None:
        targets = [hypothesis.tokens for hypothesis in beam_outputs(run, source_ids)]
    else:
        targets = run.target_tokenizer.encode_batch([normalize_text(run, text) for text in references])
    target_ids = [[run.framing.bos, *run.framing.forced_bos, *ids][:MAX_SAMPLE_TOKENS] for ids in targets]
    return ExportSamples(sources, source_ids, target_ids)


def sample_texts(run: Run, sentences: Sequence[str] | None) -> tuple[list[Source], Tag | None, list[str] | None]:
    """Return sample sources, their corpus tags (None: none) and their references (None if there are none).

    They are the first NUM_SAMPLES of `sentences` that are not empty; a UserError if all are. If `sentences` is None,
    they are pairs of the run's validation set, or else generic sentences and texts made of the run's own tokens.
    """
    if sentences is not None:
        texts = [text for text in sentences if text.strip()][:NUM_SAMPLES]
        if not texts:
            raise UserError(
                "the sample sentences that verify the export are all empty lines: give at least one sentence "
                "(--sentences)"
            )
        return [*texts], None, None
    store_folder = run.member_folders[0] / "data" / "valid"  # of the run itself, or of an ensemble's first run
    if store_folder.exists() and len(store := TokenStore(store_folder)):
        return stored_sentences(run, store, NUM_SAMPLES)
    return [*GENERIC_SENTENCES, *_texts_of_own_tokens(run, NUM_SAMPLES - len(GENERIC_SENTENCES))], None, None


def _texts_of_own_tokens(run: Run, count: int) -> list[str]:
    """Return up to `count` texts of nine tokens each, which are taken from all parts of the source vocabulary."""
    tokenizer, length = run.source_tokenizer, 9  # length: tokens per text
    stride = max(1, tokenizer.vocab_size // (count * length))
    ids = [stride * number % tokenizer.vocab_size for number in range(count * length)]
    # every text gets every `count`-th of the ids; \ufffd: bytes of a byte-level token that are no character
    texts = [tokenizer.decode(ids[start::count]).replace("\ufffd", "") for start in range(count)]
    return [text for text in texts if text.strip()]


def verification_search(run: Run) -> Beam:
    """Return the run's beam search without what other libraries define differently.

    All sources have the same length limit, since others have no limit that depends on the source. It is at most the
    number of positions of the model.
    """
    beam = run.beam_config()
    limit = min(MAX_BEAM_TOKENS, run.length_limit.max or MAX_BEAM_TOKENS)
    longest_source = torch.tensor([min(MAX_SAMPLE_TOKENS, run.max_source_length)])
    positions = run.model.max_target_length(longest_source)  # None: any number
    if positions is not None:
        limit = max(1, min(limit, int(positions)))
    return Beam(
        size=beam.size,
        length_penalty=beam.length_penalty,
        # "steps" searches on to the length limit, which others do not offer; "never" has the same result
        early_stopping="never" if beam.early_stopping == "steps" else beam.early_stopping,
        length_limit=LengthLimit(ratio=0, offset=limit, max=limit, min=0),  # ratio 0: whatever the source length
        rank_unfinished="by_score",  # as others rank hypotheses that reach the length limit without EOS
    )


def beam_outputs(run: Run, source_ids: Sequence[list[int]], search: Beam | None = None) -> list[Hypothesis]:
    """Return the best hypothesis for each source by beam search.

    `source_ids` are the token ids of each source, special tokens included. `search` is by default that of
    `verification_search`, which other libraries can reproduce.
    """
    source, lengths = run.pad_batch(source_ids)
    # `keys` seed the random numbers of each source, of which a beam search draws none
    request = SearchRequest(source, lengths, keys=torch.arange(len(source_ids)))
    beam = search or verification_search(run)
    return [hypotheses[0] for hypotheses in beam.decode(run, request)]


def count_equal_outputs(
    run: Run, samples: ExportSamples, outputs: Sequence[list[int]], search: Beam | None = None
) -> int:
    """Return for how many samples the other library found the output of our search, or an equally good one.

    `outputs` are the target token ids it found, without BOS and with EOS if generated. Rounding may change the order of
    hypotheses with almost the same score, so one whose normalized score is as high as ours counts as equal. `search`
    is that of the other library, by default `verification_search`.
    """
    search = search or verification_search(run)
    hypotheses = beam_outputs(run, samples.source_ids, search)
    equal = 0
    for source, hypothesis, output in zip(samples.source_ids, hypotheses, outputs, strict=True):
        our_output = [*hypothesis.tokens, run.framing.eos] if hypothesis.finished else list(hypothesis.tokens)
        equal += our_output == output or _is_tie(run, search, source, our_output, output)
    return equal


def _is_tie(run: Run, search: Beam, source: list[int], our_output: list[int], their_output: list[int]) -> bool:
    """Whether two targets of a source (all as token ids) have the same score in a beam search, up to rounding."""
    if not their_output:
        return False  # it has no score, which is divided by the length

    def normalized_score(target: list[int]) -> float:
        """Return log p of the target, divided by its length to the power of the length penalty."""
        source_batch, target_batch = run.pad_batch([source]), run.pad_batch([[run.framing.bos, *target]])
        log_probs = token_scores(run.model, *source_batch, *target_batch)[0]
        chosen_log_probs = log_probs[len(run.framing.forced_bos) :]  # forced tokens have probability 1 in a search
        return float(chosen_log_probs.sum()) / len(target) ** search.length_penalty

    return abs(normalized_score(our_output) - normalized_score(their_output)) < TIE_TOLERANCE


@torch.inference_mode()
def teacher_forced_logits(run: Run, samples: ExportSamples) -> list[Tensor]:
    """Return our logits for each sample, T V: at every target position, or at every source position of an encoder."""
    logits = []
    for source_ids, target_ids in zip(samples.source_ids, samples.target_ids, strict=True):
        source, source_lengths = run.pad_batch([source_ids])
        if target_ids:
            # token ids must be integers; an empty source was padded to a tensor of floats
            source = source.long() if run.model.source_features is None else source
            target, target_lengths = run.pad_batch([target_ids])
            logits.append(run.model(source, source_lengths, target, target_lengths)[0])
        else:
            logits.append(run.model(source, source_lengths)[0])
    return logits


def relative_error(ours: Sequence[Tensor], theirs: Sequence[Any]) -> float:
    """Return the largest relative error of another library's results (arrays of numbers), over all samples.

    For a sample it is the largest difference divided by the largest absolute value of ours; NaN counts as infinity.
    """
    errors = []
    for our_values, other in zip(ours, theirs, strict=True):
        their_values = torch.as_tensor(other).to(our_values.device, our_values.dtype)
        if their_values.shape != our_values.shape:
            raise UserError(
                f"the library that runs the exported model returns numbers of shape {list(their_values.shape)}, but "
                f"the original run returns shape {list(our_values.shape)}: the export is wrong, please report this"
            )
        error = (our_values - their_values).abs().max() / our_values.abs().max().clamp(min=1e-12)
        errors.append(float(error.nan_to_num(nan=float("inf"))))
    return max(errors, default=0.0)


def with_rounded_weights(run: Run, dtype: torch.dtype) -> Run:
    """Return a copy of the run whose weights are rounded to another number format, as an export stores them.

    The rounded weights are kept in float32. For float32, the run itself is returned.
    """
    if dtype == torch.float32:
        return run
    rounded = copy(run)
    rounded.model = deepcopy(run.model)
    with torch.no_grad():
        for weight in rounded.model.parameters():
            weight.copy_(weight.to(dtype))
    return rounded
