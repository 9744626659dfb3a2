"""Inspection of a sentence: run a model on it and collect attention, token probabilities and the search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.lens.beam_recorder import recorded_search
from dragoman.lens.inspection_types import (
    AttentionKind,
    AttentionMap,
    BeamTree,
    ExpertMap,
    Inspection,
    LayerPrediction,
    TokenAlternative,
    TokenizedText,
    TokenPrediction,
)
from dragoman.lens.layer_names import key_labels, layer_name, stack_of
from dragoman.lens.word_attention import word_labels
from dragoman.models import Model
from dragoman.parts.experts import record_gates
from dragoman.parts.mixer import Context, CopyDistribution, SequenceLayout
from dragoman.parts.precision import at_least_float32
from dragoman.parts.stack import StackMixer
from dragoman.run import Run, Source
from dragoman.run.pair_scoring import encode_targets
from dragoman.run.sources import is_empty, load_features
from dragoman.search import Constraints, Hypothesis, SearchConfig, TokenSearch
from dragoman.search.constraints import TargetPrefix
from dragoman.search.forced_decoding import TokenWordMap, cross_attention, word_alignment
from dragoman.text import Tokenizer

TokenName = Callable[[int], str]  # token id → its name
AttentionLabels = dict[AttentionKind, tuple[Sequence[str], Sequence[str]]]  # labels of rows and columns of the maps


def inspect_sentence(
    run: Run,
    source: Source,
    target: str | None = None,
    *,
    search: SearchConfig | None = None,
    prefix: TargetPrefix | None = None,
    alternatives: int = 5,
    recorded: tuple[Hypothesis, BeamTree] | None = None,
) -> Inspection:
    """Run a model on one sentence and return what it computes: attention, token probabilities, logit lens, beam.

    Without target, search and prefix, a language model scores `source` itself. An encoder-only model labels it, and
    accepts none of the three. A target excludes search and prefix. An empty source is a UserError.

    Args:
        target: the translation to inspect; None: the best one that the search finds.
        search: search configuration; None: that of the run.
        prefix: text or token ids that the translation begins with; if the last id is EOS, it is the whole translation.
            None: no prefix.
        alternatives: number of most probable tokens to list at each position.
        recorded: result of `recorded_search` (best hypothesis and beam tree), if the search has been done already.
    """
    source = load_features(run, source)
    if is_empty(source):
        raise UserError("there is nothing to inspect, because the source sentence is empty: give another sentence")
    if alternatives < 1:
        raise UserError(
            "alternatives, the number of most probable tokens listed at each position, must be at least 1, but is "
            f"{alternatives}: raise it"
        )
    search_requested = search is not None or prefix is not None
    if target is not None and search_requested:
        raise UserError(
            "a target translation is given, so that none is searched for: leave out the arguments search and prefix, "
            "or target"
        )
    inspector = SentenceInspector(run, alternatives)
    if not run.model.can_generate:
        if target is not None or search_requested:
            raise UserError(
                f"{run.folder} is an encoder-only model, which labels its source and generates no translation: leave "
                "out the target, search and prefix"
            )
        return inspector.inspect_labels(source)
    # a language model of unknown objective, an imported one, continues its source instead
    scores_text = run.objective is not None and run.is_language_model and target is None and not search_requested
    if isinstance(source, str) and scores_text:
        return inspector.inspect_text(source)
    source_ids = run.encode_sources([source])[0]
    if target is not None:
        target_ids = encode_targets(run, [target])[0]
        return inspector.inspect_translation(source, source_ids, target_ids, finished=True)
    if prefix is not None and not isinstance(prefix, str):
        prefix = without_forced_bos(run, prefix)
        if prefix and prefix[-1] == run.framing.eos:  # the prefix is the whole translation
            target_ids = [*run.framing.forced_bos, *prefix[:-1]]
            return inspector.inspect_translation(source, source_ids, target_ids, finished=True)
    search, tree = search or run.default_search, None
    if isinstance(search, TokenSearch):  # beam search or sampling, whose steps can be recorded as a tree
        constraints = Constraints(prefixes=None if prefix is None else [prefix])
        if recorded is None:
            source_batch, source_lengths = run.pad_batch([source_ids])
            recorded = recorded_search(run, source_batch, source_lengths, search, constraints)
        best, tree = recorded
        target_ids, finished = best.tokens, best.finished
    elif prefix is not None and not isinstance(prefix, str):
        raise UserError(
            "a target prefix of token ids needs beam search or sampling, but another kind of search is given: give "
            "the prefix as text"
        )
    else:
        prefixes = None if prefix is None else [prefix]
        translation = run.translate([source], search=search, prefixes=prefixes, alignment=False)[0]
        target_ids, finished = run.target_tokenizer.tokens_to_ids(translation.tokens), translation.finished
    inspection = inspector.inspect_translation(source, source_ids, target_ids, finished)
    return replace(inspection, from_search=True, beam=tree)


def without_forced_bos(run: Run, prefix: Sequence[int]) -> list[int]:
    """Return the token ids of a target prefix without `forced_bos`, the tokens that every translation begins with.

    A token that the model never generates, and EOS before the last position, are a UserError. `framing` has the ids of
    the special tokens around a text; `suppressed` are tokens that no search generates, such as padding.
    """
    framing, forced_bos = run.framing, tuple(run.framing.forced_bos)
    starts_with_forced = tuple(prefix[: len(forced_bos)]) == forced_bos
    ids = list(prefix[len(forced_bos) :] if starts_with_forced else prefix)
    for position, token_id in enumerate(ids):
        is_final_eos = token_id == framing.eos and position == len(ids) - 1
        is_forbidden = token_id in (*run.special_tokens.suppressed, framing.eos) and not is_final_eos
        if not 0 <= token_id < run.target_tokenizer.vocab_size or is_forbidden:
            raise UserError(
                f"the target prefix contains the token id {token_id}, which the model never generates: remove it "
                "from the prefix"
            )
    return ids


@dataclass(frozen=True)
class SentenceInspector:
    """Inspects sentences of one run."""

    run: Run
    max_alternatives: int  # most probable tokens that are listed at each position

    def inspect_translation(
        self, source: Source, source_ids: Sequence[int], target_ids: list[int], finished: bool
    ) -> Inspection:
        """Inspect a sentence pair by teacher forcing: attention, predictions, word alignment.

        In decoder self-attention, a query is labeled with the token that is predicted there, a key with the token that
        is fed.

        Args:
            source_ids: token ids of `source` with special tokens.
            target_ids: token ids of the translation without BOS and EOS, but with `forced_bos`, the tokens that every
                translation begins with.
            finished: whether EOS follows; False for a translation that was truncated at the length limit. Without EOS,
                an empty translation is a UserError.
        """
        run, framing, tokenizer = self.run, self.run.framing, self.run.target_tokenizer  # framing: special token ids
        label_ids = [*target_ids, framing.eos] if finished else target_ids  # the tokens that are predicted
        if not label_ids:
            raise UserError(
                "there is nothing to inspect, because the translation of the sentence is empty: give another sentence"
            )
        input_ids = [framing.bos, *label_ids[:-1]]
        source_batch, target_batch = (run.pad_batch([ids]) for ids in (source_ids, input_ids))
        forward = record_forward(run.full_precision_model, *source_batch, *target_batch)
        weights = {path: weights[None] for path, weights in forward.attention_weights.items()}  # 1 H T S
        cross = cross_attention(run.model, weights, forward.copying)  # 1 T S: mean over heads and layers
        source_text = self._source_text(source, source_ids, cross)
        target_text = _tokenized_text(tokenizer, label_ids, tokenizer.decode(target_ids))
        inputs = tokenizer.tokens(input_ids)
        labels: AttentionLabels = {  # of rows (queries) and columns (keys)
            "encoder": (source_text.tokens, source_text.tokens),
            "decoder": (target_text.tokens, inputs),
            "cross": (target_text.tokens, source_text.tokens),
        }
        if run.model.is_decoder_only:  # source and target are one sequence
            read_tokens = (*source_text.tokens, *inputs)
            labels = {"decoder": (self._query_labels(read_tokens, last_prediction=target_text.tokens[-1]), read_tokens)}
        inspection = self._inspection(forward, label_ids, labels)
        num_forced = len(framing.forced_bos)  # first tokens, which are not scored: their probability in a search is 1
        inspection = replace(inspection, score=sum(step.log_probability for step in inspection.steps[num_forced:]))
        if cross is not None:
            maps = (TokenWordMap.from_tokens(list(side.word_ids), side.tokens) for side in (source_text, target_text))
            inspection = replace(inspection, alignment=word_alignment(cross[0], *maps), cross_attention=cross[0])
        return replace(inspection, source=source_text, target=target_text, finished=finished)

    def inspect_text(self, text: str) -> Inspection:
        """Inspect how a language model scores a text, which is the target of the inspection; there is no source."""
        framing, tokenizer = self.run.framing, self.run.target_tokenizer
        # a language model stores the special tokens before its text as `source_prefix`; without any, it begins with BOS
        first_ids = framing.source_prefix or (framing.bos,)
        ids = [*first_ids, *tokenizer.encode(text), framing.eos]
        no_source, inputs = self.run.pad_batch([[]]), self.run.pad_batch([ids[:-1]])
        forward = record_forward(self.run.full_precision_model, *no_source, *inputs)
        target = _tokenized_text(tokenizer, ids[1:], text)
        read_tokens = tokenizer.tokens(ids[:-1])
        # a query is labeled with the token that is predicted there, at the last one EOS; keys with the tokens read
        labels: AttentionLabels = {
            "decoder": (self._query_labels(read_tokens, last_prediction=target.tokens[-1]), read_tokens)
        }
        inspection = self._inspection(forward, ids[1:], labels)
        # the first predictions are special tokens, which every text begins with, and are not scored
        score = sum(step.log_probability for step in inspection.steps[len(first_ids) - 1 :])
        return replace(inspection, target=target, score=score)

    def _query_labels(self, read_tokens: Sequence[str], last_prediction: str) -> Sequence[str]:
        """Return the labels of the queries of a decoder-only model, one at each token that it reads.

        Each has the label of the next token, which is predicted there, or if that is predicted at a mask, its own.
        """
        return read_tokens if self.run.model.predicts_masks else (*read_tokens[1:], last_prediction)

    def inspect_labels(self, source: Source) -> Inspection:
        """Inspect the predictions of an encoder-only model.

        Its labels are tokens (masked language model), tags, one label for the text, or for each token whether it is the
        original one (discriminator). The most probable label is scored at each position; a masked language model
        scores the tokens of the source that are not masked.
        """
        run = self.run
        ids = run.encode_sources([source])[0]
        padded, lengths = run.pad_batch([ids])
        no_target, no_target_lengths = padded[:, :0], torch.zeros_like(lengths)
        forward = record_forward(run.full_precision_model, padded, lengths, no_target, no_target_lengths)
        text = self._source_text(source, ids, cross=None)
        axes: AttentionLabels = {"encoder": (text.tokens, text.tokens)}
        if not forward.logits.shape[-1]:  # the outputs are hidden states: there are no positions with predictions
            forward = replace(forward, logits=forward.logits.new_zeros(0, 1), layer_logits={})
        if run.model.one_label_per_sequence:  # only the label at the first token counts
            layers = {name: logits[:1] for name, logits in forward.layer_logits.items()}
            forward = replace(forward, logits=forward.logits[:1], layer_logits=layers)
        label_ids = forward.logits.argmax(-1).tolist()
        # a masked language model, whose labels are source tokens: score the tokens that are not masked
        if run.model.mask_predictor is run.model:
            mask = run.source_tokenizer.mask
            label_ids = [best if token_id == mask else token_id for best, token_id in zip(label_ids, ids)]
        return replace(self._inspection(forward, label_ids, axes), source=text)

    def _inspection(self, forward: RecordedForward, label_ids: Sequence[int], labels: AttentionLabels) -> Inspection:
        """Return an inspection with the predictions and attention maps of a recorded forward pass.

        Args:
            label_ids: the token (or label) at each output position whose probability is returned.
            labels: row labels (queries) and column labels (keys) of the attention maps, by kind of attention: "encoder"
                and "decoder" (self-attention of that stack of layers) or "cross".
        """
        name_of_id = prediction_name(self.run)  # function: token id or label id → its text
        steps = token_predictions(forward.logits, label_ids, name_of_id, self.max_alternatives)
        layers = (
            LayerPrediction(name, token_predictions(logits, label_ids, name_of_id, self.max_alternatives))
            for name, logits in forward.layer_logits.items()
        )
        return Inspection(
            system=self.run.config.system.name or "",
            checkpoint=self.run.checkpoint,
            attention=self._attention_maps(forward.attention_weights, labels),
            score=sum(step.log_probability for step in steps),
            steps=steps,
            layers=tuple(layers),
            experts=tuple(
                ExpertMap(path, layer_name(self.run.model, path), tuple(tokens), gates)
                for path, gates in forward.expert_gates.items()
                for _, tokens in [labels[stack_of(path)]]  # the column labels: the tokens that the layer read
            ),
            generation_probs=forward.generation_probs,  # to generate the token, not to copy it (pointer–generator)
        )

    def _attention_maps(self, recorded: dict[str, Tensor], labels: AttentionLabels) -> tuple[AttentionMap, ...]:
        """Return an attention map for each recorded layer; `recorded` has weights (H T S) by module path.

        `labels` are the row labels (queries) and column labels (keys), by kind of attention. `model.memory_paths` are
        the cross-attention modules, which attend to the encoder's output.
        """
        model, maps = self.run.model, list[AttentionMap]()
        for path, weights in recorded.items():
            kind: AttentionKind = "cross" if path in model.memory_paths else stack_of(path)
            queries, tokens = labels[kind]
            layer = 1 + sum(attention.kind == kind for attention in maps)  # number among the layers of its kind
            entropy = torch.special.entr(weights).sum(-1).mean(-1) / math.log(2)  # H, in bits
            maps.append(
                AttentionMap(
                    path,
                    kind,
                    layer,
                    queries=tuple(queries),
                    keys=key_labels(model, path, tokens),
                    weights=weights,
                    entropy=tuple(entropy.tolist()),
                )
            )
        return tuple(maps)

    def _source_text(self, source: Source, ids: Sequence[int], cross: Tensor | None) -> TokenizedText:
        """Return a source with its tokens and words.

        `ids` are the token ids of a text, or feature vectors (speech, images), which have the numbers from 1 as tokens.
        `cross` (1 T S) is the cross-attention, if there is any: its last axis tells how many positions the encoder has.
        """
        if isinstance(source, str):
            return _tokenized_text(self.run.source_tokenizer, ids, source)
        count = len(ids) if cross is None else cross.shape[-1]  # the encoder may subsample feature vectors
        numbers = tuple(str(n) for n in range(1, count + 1))
        return TokenizedText(text="", tokens=numbers, words=(), word_ids=(-1,) * count)


def _tokenized_text(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> TokenizedText:
    """Return a text with its tokens, given by their `ids`, its words, and the index of the word of each token.

    Words without tokens are merged with the word before, so that the others are numbered without gaps.
    """
    word_ids = tokenizer.word_ids(ids)  # −1 for tokens of no word
    new_word_ids = {word_id: n for n, word_id in enumerate(sorted(set(word_ids) - {-1}))} | {-1: -1}
    has_words = len(new_word_ids) > 1  # besides −1
    words = word_labels(tokenizer.decode(ids), word_ids) if has_words else []
    return TokenizedText(
        text,
        tokens=tuple(tokenizer.tokens(ids)),
        words=tuple(words),
        word_ids=tuple(new_word_ids[word_id] for word_id in word_ids),
    )


def prediction_name(run: Run) -> TokenName:
    """Return a function from the id of a predicted token, or the number of another label, to its text.

    Output layers may have more ids than the tokenizer; such an id is shown as “#50300”.
    """
    if run.model.label_names:
        return run.model.label_names.__getitem__
    tokenizer = run.target_tokenizer
    return lambda token_id: tokenizer.tokens([token_id])[0] if token_id < tokenizer.vocab_size else f"#{token_id}"


def token_predictions(
    logits: Tensor, token_ids: Sequence[int], token_name: TokenName, max_alternatives: int
) -> tuple[TokenPrediction, ...]:
    """Return for each position the probability and rank of its token, the entropy in bits, and the best tokens.

    Args:
        logits: (T, V).
        token_ids: the token at each of the T positions.
        token_name: function from a token id to its text.
        max_alternatives: number of most probable tokens at each position, most probable first.
    """
    log_p = logits.log_softmax(-1)
    token_log_p = log_p.gather(1, torch.tensor(token_ids, dtype=torch.long, device=logits.device)[:, None])  # T 1
    ranks = 1 + (log_p > token_log_p).sum(-1)  # 1 + number of tokens that are more probable
    entropy = torch.special.entr(log_p.exp()).sum(-1) / math.log(2)
    top = log_p.topk(min(max_alternatives, log_p.shape[-1]), dim=-1)
    columns = (column.tolist() for column in (token_log_p[:, 0], ranks, entropy, top.indices, top.values.exp()))
    predictions = []
    for token_id, log_probability, rank, bits, top_ids, top_probabilities in zip(token_ids, *columns):
        alternatives = (TokenAlternative(token_name(n), n, p) for n, p in zip(top_ids, top_probabilities))
        predictions.append(
            TokenPrediction(
                token_name(token_id),
                token_id,
                probability=math.exp(log_probability),
                log_probability=log_probability,
                rank=rank,
                entropy=bits,
                alternatives=tuple(alternatives),
            )
        )
    return tuple(predictions)


# ---- a teacher-forced forward pass that records attention weights and the states between layers


@dataclass(frozen=True)
class RecordedForward:
    """Results of a recorded pass over one sentence pair."""

    logits: Tensor  # T V, of the labels that are predicted
    attention_weights: dict[str, Tensor]  # path of the attention module → H T S
    layer_logits: dict[str, Tensor]  # name of the layer → T V, the output layer applied to its states
    expert_gates: dict[str, Tensor] = field(default_factory=dict)  # path of a mixture of experts → T experts
    copying: CopyDistribution | None = None  # 1 T …: probabilities of copying source tokens, if the model can

    @property
    def generation_probs(self) -> tuple[float, ...]:
        """p_gen at each target position: the probability that the next token is generated, not copied from the source.

        Empty for models that cannot copy.
        """
        return () if self.copying is None else tuple(self.copying.generation_prob.flatten().tolist())


@torch.inference_mode()
def record_forward(
    model: Model, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
) -> RecordedForward:
    """Run the model on one sentence pair, and record logits, attention weights and the logits after each layer.

    Shape: source (1, S) and target (1, T), without padding, with lengths (1); target is (1, 0) for encoder-only models,
    whose outputs have length S.
    """
    attention: dict[str, list[Tensor]] = {}  # module path → weights 1 H T S, in chunks along T
    source_layout = SequenceLayout.padded(source.shape[1], source_lengths)
    target_layout = SequenceLayout.padded(target.shape[1], target_lengths)
    # the states between the layers of the stack below the output layer, and the gates of mixtures of experts
    with record_layers(model.output_stack) as layers, record_gates(model) as gates:
        features = model.forward_features(source, source_layout, target, target_layout, attention)
    num_outputs = features.output.shape[1]  # T

    def logits_after(states: Tensor) -> Tensor:
        """Return the logits (T V) if the output layer is applied to the states after a layer, (1, T, D).

        The states of a decoder-only model begin with those of the source, which predict nothing and are left out.
        """
        outputs = model.layer_features(states[:, -num_outputs:], source, source_layout, target, target_layout)
        # the other results of the pass, such as attention weights for copying, are those of the last layer
        return at_least_float32(model.label_logits(features.with_output(outputs))[0])

    return RecordedForward(
        logits=at_least_float32(model.label_logits(features)[0]),
        attention_weights={
            path: at_least_float32(torch.cat(chunks, dim=2)[0]).cpu() for path, chunks in attention.items()
        },
        layer_logits={name: logits_after(states) for name, states in layers.items()},
        expert_gates={path: at_least_float32(weights[0]).cpu() for path, weights in gates.items()},
        copying=None if features.copying is None else features.copying.map(Tensor.cpu),
    )


@contextmanager
def record_layers(stack: StackMixer) -> Iterator[dict[str, Tensor]]:
    """Within the block, record the states between the layers of a stack (encoder or decoder) by forward hooks.

    Yields a dict that a forward pass within the block fills: "input", "layer 1", "layer 2", … → states (B, T, D), to
    which the final norm of the stack is applied. If a stack has a single layer, its sublayers are recorded as layers.
    """
    recorded: dict[str, Tensor] = {}
    sublayers: list[nn.Module] = [sublayer for _, sublayer in stack.named_layers()]  # such as attention, feed-forward
    sublayers_per_layer = len(sublayers) // len(stack.layers) if len(stack.layers) > 1 else 1

    def record(name: str, states: Tensor, context: Context) -> None:
        """Record states (B T D) under the name of their layer; `context.layout` has the lengths of the sequences."""
        recorded[name] = stack.norm(states, context.layout)

    def record_output(name: str) -> Any:
        """Return a forward hook that records the states a layer returns first; it is called as layer(x, context)."""
        return lambda module, inputs, outputs: record(name, states=outputs[0], context=inputs[1])

    with ExitStack() as hooks:
        hooks.enter_context(sublayers[0].register_forward_pre_hook(lambda module, inputs: record("input", *inputs[:2])))
        last_sublayers = sublayers[sublayers_per_layer - 1 :: sublayers_per_layer]  # of each layer
        for number, sublayer in enumerate(last_sublayers, 1):
            hooks.enter_context(sublayer.register_forward_hook(record_output(f"layer {number}")))
        yield recorded
