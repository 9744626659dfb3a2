"""A walk through a model: the numbers that one prediction is computed from, layer by layer, with explanations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.lens.layer_names import key_labels, layer_name, stack_of
from dragoman.lens.sentence_inspector import prediction_name
from dragoman.models import Model
from dragoman.parts.attention_quantities import MASK, TERMS, term_quantity
from dragoman.parts.mixer import STACK_OUTPUT, SequenceLayout
from dragoman.parts.precision import at_least_float32
from dragoman.parts.tracing import Quantity, Trace, TracedValue
from dragoman.run import Run, Source
from dragoman.run.sources import is_empty, load_features

MAX_KEYS = 32  # rows that are kept of a matrix of keys or values: those with the largest attention weights
MAX_LOGITS = 65_536  # the largest logits of a step; of a larger vocabulary the others are left out
NUM_CANDIDATES = 50  # most probable tokens that are named


@dataclass(frozen=True)
class WalkStep:
    """An intermediate result at the selected position: a vector, a number for each key, or a vector for each key."""

    path: str  # of the layer in the model
    place: str  # its name for readers, such as “decoder layer 2: cross-attention”
    name: str
    formula: str
    explanation: str
    values: Tensor  # E, S or S E
    keys: tuple[int, ...] = ()  # positions of the keys, the axis S
    key_labels: tuple[str, ...] = ()
    of_head: bool = False  # whether the numbers belong to the selected head only


@dataclass(frozen=True)
class TokenCandidate:
    """A token that could come next."""

    token: str
    token_id: int
    logit: float
    probability: float


@dataclass(frozen=True)
class Walk:
    """The way from the tokens to one prediction."""

    system: str
    source: tuple[str, ...]  # tokens
    inputs: tuple[str, ...]  # target tokens that were read; the last one predicts
    position: int  # index of the source token whose way through the encoder is shown
    head: int  # number of the attention head, from 1
    num_heads: int
    steps: tuple[WalkStep, ...]
    logits: Tensor  # of the next token, largest first
    suppressed: tuple[int, ...]  # ranks, from 0, of tokens that no search generates
    candidates: tuple[TokenCandidate, ...]  # the most probable tokens


def walk_through(
    run: Run, source: Source | None, tokens: Sequence[int] = (), *, position: int = 0, head: int = 1
) -> Walk:
    """Run a model on one sentence; return the intermediate results from which it computes one prediction.

    Args:
        source: None for a language model, which continues `tokens`.
        tokens: ids of the target tokens so far; the next one is predicted. An encoder-only model predicts the label at
            `position` instead.
        position: index of the source token, from 0, whose encoder states are returned; for the decoder it is always the
            last token.
        head: number of the attention head, from 1, whose queries, keys, scores and weights are returned.

    A missing or empty source, an id outside of the vocabulary, and a position or head that does not exist are a
    UserError.
    """
    if source is None and not run.is_language_model:
        raise UserError(
            f"the model in {run.folder} predicts target tokens from a source, but no source is given: give one (only a "
            "language model needs none)"
        )
    source = None if source is None else load_features(run, source)
    if source is not None and is_empty(source):
        raise UserError(
            "no prediction can be followed through the model, because the source sentence is empty: give another "
            "sentence"
        )
    tokenizer = run.target_tokenizer
    for token_id in tokens:
        if not 0 <= token_id < tokenizer.vocab_size:
            raise UserError(
                f"the target tokens contain the id {token_id}, but the ids of this vocabulary are from 0 to "
                f"{tokenizer.vocab_size - 1}: remove it"
            )
    source_ids: Sequence[int] = [] if source is None else run.encode_sources([source])[0]
    # special tokens before the target: BOS, or those that a language model reads before its text (`source_prefix`)
    first_ids = run.framing.source_prefix if source is None and run.framing.source_prefix else (run.framing.bos,)
    input_ids = [*first_ids, *tokens] if run.model.can_generate else []
    source_labels = _source_labels(run, source, source_ids)
    trace, logits = _traced_forward(run, source_ids, input_ids, position)
    inputs = tuple(tokenizer.tokens(input_ids))
    masks: tuple[str, ...] = ()
    if run.model.predicts_masks and tokenizer.mask is not None:  # after the inputs, in the places of the next tokens
        masks = tuple(tokenizer.tokens([tokenizer.mask])) * len(inputs)
    with_heads = [traced.value for traced in trace.results.values() if "H" in traced.quantity.axes]  # 1 H …
    num_heads = max((value.shape[1] for value in with_heads), default=1)
    ranges = {"position": (position, 0, max(0, len(source_labels) - 1)), "head": (head, 1, num_heads)}
    for name, (number, lowest, highest) in ranges.items():  # checked here, as the trace tells the number of heads
        if not lowest <= number <= highest:
            raise UserError(
                f"the argument {name} must be from {lowest} to {highest}, but is {number}: choose a number in this "
                "range (position is the index of a source token, head the number of an attention head)"
            )
    walker = _Walker(run.model, trace, source=source_labels, inputs=inputs + masks, position=position, head=head - 1)
    ranking = logits.sort(descending=True, stable=True)
    ranked_ids = ranking.indices[:MAX_LOGITS].tolist()
    # tokens that no search generates, such as padding
    suppressed = set() if run.model.label_names else set(run.special_tokens.suppressed)
    return Walk(
        system=run.config.system.name or "",
        source=source_labels,
        inputs=inputs,
        position=position,
        head=head,
        num_heads=num_heads,
        steps=tuple(walker.steps()),
        logits=ranking.values[:MAX_LOGITS].cpu(),
        suppressed=tuple(rank for rank, token_id in enumerate(ranked_ids) if token_id in suppressed),
        candidates=tuple(_candidates(run, logits, ranked_ids[:NUM_CANDIDATES])),
    )


def _source_labels(run: Run, source: Source | None, source_ids: Sequence[int]) -> tuple[str, ...]:
    """Return a label for each source position: its token, or the number of its feature vector (speech, images), from 1.

    `source_ids` are the token ids of a text or the feature vectors; a source of None has no positions.
    """
    if source is None or isinstance(source, str):
        return tuple(run.source_tokenizer.tokens(source_ids))
    return tuple(str(n) for n in range(1, len(source_ids) + 1))


def _candidates(run: Run, logits: Tensor, token_ids: Sequence[int]) -> list[TokenCandidate]:
    """Return the tokens (or other labels) of these ids with their logits and probabilities. Shape: logits (V)."""
    name_of_id, log_p = prediction_name(run), logits.log_softmax(-1)  # name_of_id: function from an id to its text
    return [
        TokenCandidate(
            token=name_of_id(token_id),
            token_id=token_id,
            logit=float(logits[token_id]),
            probability=float(log_p[token_id].exp()),
        )
        for token_id in token_ids
    ]


@torch.inference_mode()
def _traced_forward(
    run: Run, source_ids: Sequence[int], input_ids: Sequence[int], position: int
) -> tuple[Trace, Tensor]:
    """Run the model on one sentence; return a trace of its intermediate results and the logits (V) of one prediction.

    `input_ids` are the tokens that the decoder reads, and the prediction is the token after them. An encoder-only model
    has none: it predicts the label of the source token at index `position`, or the one label of the whole sequence.
    """
    source, source_lengths = run.pad_batch([source_ids])
    target, target_lengths = run.pad_batch([input_ids])
    # no target: an empty tensor (1 0) of the type of the token ids (a source of feature vectors has three axes)
    if not input_ids and source.dim() == 2:
        target = source[:, :0]
    source_layout = SequenceLayout.padded(source.shape[1], source_lengths)
    target_layout = SequenceLayout.padded(target.shape[1], target_lengths)
    trace = Trace()
    model = run.full_precision_model
    features = model.forward_features(source, source_layout, target, target_layout, trace)
    logits = at_least_float32(model.label_logits(features)[0])  # T V
    if input_ids:
        return trace, logits[-1]
    # one label of the whole sequence is predicted at its first token
    return trace, logits[0 if run.model.one_label_per_sequence else min(position, len(logits) - 1)]


@dataclass(frozen=True)
class _Walker:
    """Selects the numbers of one position and head from a trace: the intermediate results of all layers.

    The axes of a traced quantity are named by letters: H heads, T query positions, S key positions, E vector elements.
    """

    model: Model
    trace: Trace
    source: tuple[str, ...]  # labels of the source positions
    inputs: tuple[str, ...]  # tokens that the decoder read, with masks in whose places it predicts tokens
    position: int  # index of a source token
    head: int  # from 0

    def steps(self) -> list[WalkStep]:
        """Return the traced values (intermediate results) in the order of the computation, each as a step.

        A value equal to the one before, and a mask that hides nothing, are omitted. Attention scores are preceded by a
        step with their terms, the products of query and key elements that they sum up.
        """
        steps: list[WalkStep] = []
        previous: Tensor | None = None
        for traced in self.trace.results.values():
            if previous is not None and previous.shape == traced.value.shape and torch.equal(previous, traced.value):
                continue
            previous = traced.value
            if traced.quantity is MASK and bool(self._select(traced).all()):  # all keys are visible
                continue
            if traced.quantity.name == "scores" and (terms := self._score_terms(traced)) is not None:
                steps.append(terms)
            steps.append(self._step_of(traced))
        return steps

    def _step_of(self, traced: TracedValue) -> WalkStep:
        """Return a traced value at the selected position and head as a step.

        A quantity with the axis S has a number (S) or a vector (S E) for each key position of attention. Of vectors,
        only those of the MAX_KEYS keys with the largest attention weights remain.
        """
        quantity, numbers = traced.quantity, self._select(traced)
        keys: tuple[int, ...] = ()  # positions on the axis S
        if "S" in quantity.axes:
            keys = tuple(range(numbers.shape[0]))
            if numbers.dim() == 2:
                keys = self._strongest_keys(traced.path, len(keys))
                numbers = numbers[list(keys)]
        return self._make_step(traced.path, quantity, numbers, keys)

    def _make_step(self, path: str, quantity: Quantity, numbers: Tensor, keys: tuple[int, ...]) -> WalkStep:
        """Return the step that shows `numbers` of a quantity, such as "query", in the layer at the module path `path`.

        `keys` are the positions of the keys that the first axis of `numbers` has, empty if it has none. Their labels
        are tokens, or for keys beyond the tokens their positions, from 1.
        """
        labels = self._key_labels(path) if keys else ()
        # numbers belong to one head if their quantity has an axis H (heads); TERMS, the products q ⊙ k that add up to a
        # score, have none, because they are computed for the selected head only
        of_head = "H" in quantity.axes or quantity.name == TERMS.name
        return WalkStep(
            path=path,
            place=f"{stack_of(path)} output" if quantity is STACK_OUTPUT else layer_name(self.model, path),
            name=quantity.name,
            formula=quantity.formula,
            explanation=quantity.explanation,
            values=numbers.float().cpu() if numbers.dtype == torch.bool else at_least_float32(numbers).cpu(),
            keys=keys,
            key_labels=tuple(labels[key] if key < len(labels) else str(key + 1) for key in keys),
            of_head=of_head,
        )

    def _select(self, traced: TracedValue) -> Tensor:
        """Return a traced value (a batch of one, such as 1 H T E) at the selected head and query position: E, S or S E.

        H are heads, T query positions, S key positions, and E vector elements. The query position is `self.position` in
        the encoder and the last one in the decoder.
        """
        numbers, axes = traced.value[0], traced.quantity.axes
        if "H" in axes:
            numbers = numbers[min(self.head, numbers.shape[0] - 1)]  # a layer may have fewer heads
        if "T" in axes:
            row = self.position if stack_of(traced.path) == "encoder" else -1
            numbers = numbers[min(row, numbers.shape[0] - 1)]  # a layer may read a shorter sequence
        return numbers

    def _quantity_at(self, path: str, name: str) -> Tensor | None:
        """Return the quantity `name`, such as "query", of the layer at the module path `path`; None if it has none.

        The numbers are those of the selected position and head: E, S or S E.
        """
        traced = self.trace.results.get((path, name))
        return None if traced is None else self._select(traced)

    def _strongest_keys(self, path: str, count: int) -> tuple[int, ...]:
        """Return the positions of the MAX_KEYS keys with the largest attention weights, in ascending order.

        The layer at the module path `path` has `count` keys. If it has no weights, the first keys are returned.
        """
        weights = self._quantity_at(path, "attention weights")
        if count <= MAX_KEYS or weights is None:
            return tuple(range(min(count, MAX_KEYS)))
        return tuple(sorted(weights.topk(MAX_KEYS).indices.tolist()))

    def _score_terms(self, scores: TracedValue) -> WalkStep | None:
        """Return a step with the terms (S E) that each attention score is the sum of, such as q_e · k_e for element e.

        Only the keys with the largest weights have terms. None if the layer has no query and keys.
        """
        path = scores.path
        query, keys = self._quantity_at(path, "query"), self._quantity_at(path, "keys")
        if query is None or keys is None:
            return None
        strongest = self._strongest_keys(path, len(keys))
        with torch.inference_mode():
            layer = self.model.get_submodule(path)
            terms: Tensor = layer.score_terms(query, keys[list(strongest)])  # type: ignore[operator]
        return self._make_step(path, term_quantity(scores.quantity), terms, strongest)

    def _key_labels(self, path: str) -> Sequence[str]:
        """Return the labels of the keys of the attention layer at a module path: the tokens that they belong to.

        Cross-attention (`memory_paths`) and the encoder attend to the source, a decoder to its inputs, and a
        decoder-only model to source and inputs as one sequence.
        """
        if path in self.model.memory_paths or stack_of(path) == "encoder":
            tokens = self.source
        else:
            tokens = (*self.source, *self.inputs) if self.model.is_decoder_only else self.inputs
        return key_labels(self.model, path, tokens)
