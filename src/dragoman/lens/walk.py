"""A walk through a model: the numbers that one prediction is computed from, layer by layer, with explanations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.lens.layer_names import layer_name, stack_of
from dragoman.models import Model
from dragoman.parts.attention_quantities import MASK, TERMS, term_quantity
from dragoman.parts.mixer import STACK_OUTPUT, Layout
from dragoman.parts.precision import at_least_float32
from dragoman.parts.tracing import Quantity, Trace, TracedValue
from dragoman.run import Run, Source
from dragoman.run.sources import is_empty, load_features

MAX_KEYS = 32  # rows of a matrix of keys or values: those with the largest weights
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
    position: int  # of the source token whose way through the encoder is shown
    head: int  # from 1
    num_heads: int
    steps: tuple[WalkStep, ...]
    logits: Tensor  # of the next token, largest first
    suppressed: tuple[int, ...]  # ranks, from 0, of tokens that no search generates
    candidates: tuple[TokenCandidate, ...]  # the most probable tokens


def walk_through(
    run: Run, source: Source | None, tokens: Sequence[int] = (), *, position: int = 0, head: int = 1
) -> Walk:
    """Return the intermediate results of a model that predicts the token after `tokens`, ids of target tokens.

    The encoder is shown at the source token `position` (from 0), attention in one `head` (from 1). With the source
    None, a language model continues `tokens`; an encoder-only model predicts the label at `position`.
    """
    if source is None and not run.is_language_model:
        raise UserError(
            f"there is nothing to walk through: {run.folder} predicts tokens from a source, but got none; only a "
            "language model needs none"
        )
    source = None if source is None else load_features(run, source)
    if source is not None and is_empty(source):
        raise UserError("there is nothing to walk through: the source sentence is empty; give its text")
    tokenizer = run.target_tokenizer
    for token_id in tokens:
        if not 0 <= token_id < tokenizer.vocab_size:
            raise UserError(
                f"the target tokens contain the id {token_id}, but ids are from 0 to {tokenizer.vocab_size - 1}: "
                "remove it"
            )
    source_ids: Sequence[int] = [] if source is None else run.encode_sources([source])[0]
    begin = (source is None and run.framing.source_prefix) or (run.framing.bos,)
    input_ids = [*begin, *tokens] if run.model.can_generate else []
    source_labels = _source_labels(run, source, source_ids)
    trace, logits = _traced_forward(run, source_ids, input_ids, position)
    inputs = tuple(tokenizer.tokens(input_ids))
    num_heads = max((value.value.shape[1] for value in trace.results.values() if "H" in value.quantity.axes), default=1)
    ranges = {"position": (position, 0, max(0, len(source_labels) - 1)), "head": (head, 1, num_heads)}
    for name, (number, lowest, highest) in ranges.items():
        if not lowest <= number <= highest:
            raise UserError(f"{name} must be from {lowest} to {highest}, but is {number}")
    walker = _Walker(run.model, trace, source=source_labels, inputs=inputs, position=position, head=head - 1)
    order = logits.sort(descending=True, stable=True)
    kept = order.indices[:MAX_LOGITS].tolist()
    suppressed = set(run.special_tokens.suppressed)
    return Walk(
        system=run.config.system.name or "",
        source=source_labels,
        inputs=inputs,
        position=position,
        head=head,
        num_heads=num_heads,
        steps=tuple(walker.steps()),
        logits=order.values[:MAX_LOGITS].cpu(),
        suppressed=tuple(rank for rank, token_id in enumerate(kept) if token_id in suppressed),
        candidates=tuple(_candidates(run, logits, kept[:NUM_CANDIDATES])),
    )


def _source_labels(run: Run, source: Source | None, source_ids: Sequence[int]) -> tuple[str, ...]:
    """Return the tokens of a source; feature vectors are numbered from 1."""
    if source is None or isinstance(source, str):
        return tuple(run.source_tokenizer.tokens(source_ids))
    return tuple(str(n) for n in range(1, len(source_ids) + 1))


def _candidates(run: Run, logits: Tensor, token_ids: Sequence[int]) -> list[TokenCandidate]:
    """Return tokens with their logits and probabilities; ids beyond the tokenizer's vocabulary are numbers."""
    tokenizer, log_p = run.target_tokenizer, logits.log_softmax(-1)
    return [
        TokenCandidate(
            token=tokenizer.tokens([token_id])[0] if token_id < tokenizer.vocab_size else f"#{token_id}",
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
    """Run the model on one sentence; return its intermediate results and the logits of the prediction, V.

    `input_ids` are the tokens that the decoder reads; without a decoder they are empty, and the prediction is that at
    the source token `position`.
    """
    source, source_lengths = run.pad_batch([source_ids])
    target, target_lengths = run.pad_batch([input_ids])
    if not input_ids:
        target = source[:, :0] if source.dim() == 2 else target
    source_layout = Layout.padded(source.shape[1], source_lengths)
    target_layout = Layout.padded(target.shape[1], target_lengths)
    trace = Trace()
    features = run.model.forward_features(source, source_layout, target, target_layout, trace)
    row = -1 if input_ids else 0 if run.model.labels_sequence else min(position, features.output.shape[1] - 1)
    return trace, at_least_float32(run.model.logits(features)[0, row])


@dataclass(frozen=True)
class _Walker:
    """Selects the numbers of one position and head from a trace."""

    model: Model
    trace: Trace
    source: tuple[str, ...]
    inputs: tuple[str, ...]
    position: int
    head: int

    def steps(self) -> list[WalkStep]:
        """Return the steps in the order of the computation, without repetitions of the same numbers."""
        steps: list[WalkStep] = []
        previous: Tensor | None = None
        for value in self.trace.results.values():
            if previous is not None and previous.shape == value.value.shape and torch.equal(previous, value.value):
                continue
            previous = value.value
            if value.quantity is MASK and bool(self._select(value).all()):
                continue  # nothing is hidden
            if value.quantity.name == "scores" and (terms := self._terms(value)) is not None:
                steps.append(terms)
            steps.append(self._step_of(value))
        return steps

    def _step_of(self, value: TracedValue) -> WalkStep:
        """Return a traced value at the selected position and head, with the labels of its keys (the axis S).

        Of a vector for each key, only those of the keys with the largest attention weights are kept.
        """
        quantity, numbers = value.quantity, self._select(value)
        keys: tuple[int, ...] = ()
        if "S" in quantity.axes:
            keys = tuple(range(numbers.shape[0]))
            if numbers.dim() == 2:
                keys = self._strongest_keys(value.path, len(keys))
                numbers = numbers[list(keys)]
        return self._make_step(value.path, quantity, numbers, keys)

    def _make_step(self, path: str, quantity: Quantity, numbers: Tensor, keys: tuple[int, ...]) -> WalkStep:
        """Return a step of the layer `path`: numbers of a quantity, explained, with the labels of its `keys`."""
        labels = self._key_labels(path)
        return WalkStep(
            path=path,
            place=f"{stack_of(path)} output" if quantity is STACK_OUTPUT else layer_name(self.model, path),
            name=quantity.name,
            formula=quantity.formula,
            explanation=quantity.explanation,
            values=numbers.float().cpu() if numbers.dtype == torch.bool else at_least_float32(numbers).cpu(),
            keys=keys,
            key_labels=tuple(labels[key] if key < len(labels) else str(key + 1) for key in keys),
            of_head="H" in quantity.axes or quantity.name == TERMS.name,
        )

    def _select(self, value: TracedValue) -> Tensor:
        """Return the numbers of the selected position and head: E, S or S E."""
        numbers, axes = value.value[0], value.quantity.axes
        if "H" in axes:
            numbers = numbers[min(self.head, numbers.shape[0] - 1)]
        if "T" in axes:
            row = self.position if stack_of(value.path) == "encoder" else -1
            numbers = numbers[min(row, numbers.shape[0] - 1)]
        return numbers

    def _value(self, path: str, name: str) -> Tensor | None:
        """Return a quantity of the layer `path` at the selected position and head; None if it was not traced."""
        value = self.trace.results.get((path, name))
        return None if value is None else self._select(value)

    def _strongest_keys(self, path: str, count: int) -> tuple[int, ...]:
        """Return the positions of at most `MAX_KEYS` of the keys, those with the largest weights, in order."""
        weights = self._value(path, "attention weights")
        if count <= MAX_KEYS or weights is None:
            return tuple(range(min(count, MAX_KEYS)))
        return tuple(sorted(weights.topk(MAX_KEYS).indices.tolist()))

    def _terms(self, scores: TracedValue) -> WalkStep | None:
        """Return the terms whose sums are the scores of an attention layer; None if it has no query and keys."""
        path = scores.path
        query, keys = self._value(path, "query"), self._value(path, "keys")
        if query is None or keys is None:
            return None
        strongest = self._strongest_keys(path, len(keys))
        with torch.inference_mode():
            layer = self.model.get_submodule(path)
            terms: Tensor = layer.score_terms(query, keys[list(strongest)])  # type: ignore[operator]
        return self._make_step(path, term_quantity(scores.quantity), terms, strongest)

    def _key_labels(self, path: str) -> Sequence[str]:
        """Return the tokens that are the keys of a layer: of the source, of the target, or of both in one sequence."""
        if path in self.model.memory_paths or stack_of(path) == "encoder":
            return self.source
        return (*self.source, *self.inputs) if self.model.is_decoder_only else self.inputs
