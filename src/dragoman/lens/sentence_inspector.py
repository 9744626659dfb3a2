"""Inspection of a sentence: run a model on it and collect attention, token probabilities and the search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

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
from dragoman.lens.layer_names import layer_name, stack_of
from dragoman.lens.word_attention import word_labels
from dragoman.models import Model
from dragoman.parts.experts import record_gates
from dragoman.parts.mixer import Context, CopyDistribution, Layout
from dragoman.parts.precision import at_least_float32
from dragoman.parts.stack import StackMixer
from dragoman.run import Run, Source
from dragoman.run.sources import is_empty, load_features
from dragoman.search import Constraints, Hypothesis, SearchConfig, TokenSearch
from dragoman.search.constraints import TargetPrefix
from dragoman.search.forced_decoding import TokenWordMap, cross_attention, word_alignment
from dragoman.text import Tokenizer

DISCRIMINATOR_LABELS = ("replaced", "original")

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
    """Inspect how a run processes a sentence: attention, token probabilities, predictions by layer, and the beam.

    Without `target`, the translation is searched for; `prefix` is the text or the token ids it begins with, and the
    last id may be EOS. A language model scores `source` itself unless a search or a prefix is given. An encoder-only
    model labels the source. `alternatives` is the number of most probable tokens listed at each position.
    `recorded` is the best hypothesis and the tree of the search, if it was done before.
    """
    source = load_features(run, source)
    if is_empty(source):
        raise UserError("there is nothing to inspect: the source sentence is empty; give its text")
    if alternatives < 1:
        raise UserError(
            f"alternatives, the number of tokens listed at each position, must be at least 1, but is {alternatives}"
        )
    search_requested = search is not None or prefix is not None
    if target is not None and search_requested:
        raise UserError("a target translation is given, so none is searched: leave out the arguments search and prefix")
    inspector = SentenceInspector(run, alternatives)
    if not run.model.can_generate:
        if target is not None or search_requested:
            raise UserError(f"{run.folder} is an encoder-only model: it labels its source and generates no translation")
        return inspector.inspect_labels(source)
    scores_text = run.objective is not None and run.is_language_model and target is None and not search_requested
    if isinstance(source, str) and scores_text:
        return inspector.inspect_text(source)
    source_ids = run.encode_sources([source])[0]
    if target is not None:
        target_ids = [*run.framing.forced_bos, *run.target_tokenizer.encode(target)]
        return inspector.inspect_translation(source, source_ids, target_ids, finished=True)
    if prefix is not None and not isinstance(prefix, str):
        prefix = without_forced_bos(run, prefix)
        if prefix and prefix[-1] == run.framing.eos:  # the prefix is the whole translation
            target_ids = [*run.framing.forced_bos, *prefix[:-1]]
            return inspector.inspect_translation(source, source_ids, target_ids, finished=True)
    search, tree = search or run.default_search, None
    if isinstance(search, TokenSearch):  # beam search or sampling, whose steps can be recorded as a tree
        constraints = Constraints(prefixes=None if prefix is None else [prefix])
        best, tree = recorded or recorded_search(run, *run.pad_batch([source_ids]), search, constraints)
        target_ids, finished = best.tokens, best.finished
    elif prefix is not None and not isinstance(prefix, str):
        raise UserError("a target prefix of token ids needs beam search or sampling: give the prefix as text instead")
    else:
        prefixes = None if prefix is None else [prefix]
        translation = run.translate([source], search=search, prefixes=prefixes, alignment=False)[0]
        target_ids, finished = run.target_tokenizer.tokens_to_ids(translation.tokens), translation.finished
    inspection = inspector.inspect_translation(source, source_ids, target_ids, finished)
    return replace(inspection, from_search=True, beam=tree)


def without_forced_bos(run: Run, prefix: Sequence[int]) -> list[int]:
    """Return the token ids of a prefix without the tokens that every translation begins with (`forced_bos`).

    A token that the model never generates is a UserError; EOS may be the last one.
    """
    framing, forced = run.framing, tuple(run.framing.forced_bos)
    ids = list(prefix[len(forced) :] if tuple(prefix[: len(forced)]) == forced else prefix)
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
    max_alternatives: int

    def inspect_translation(
        self, source: Source, source_ids: Sequence[int], target_ids: list[int], finished: bool
    ) -> Inspection:
        """Inspect a sentence pair by teacher forcing: attention, predictions, word alignment.

        `source_ids` have special tokens, `target_ids` those that are generated first; `finished` adds EOS. A decoder
        row is labeled with the token that was predicted there, its keys with the tokens that were fed.
        """
        run, framing, tokenizer = self.run, self.run.framing, self.run.target_tokenizer
        label_ids = [*target_ids, framing.eos] if finished else target_ids
        if not label_ids:
            raise UserError(
                "there is nothing to inspect: the translation of the sentence is empty; give another sentence"
            )
        input_ids = [framing.bos, *label_ids[:-1]]
        source_batch, target_batch = (run.pad_batch([ids]) for ids in (source_ids, input_ids))
        forward = record_forward(run.model, *source_batch, *target_batch)
        weights = {path: weights[None] for path, weights in forward.attention_weights.items()}
        cross = cross_attention(run.model, weights, forward.copying)
        source_text = self._source_text(source, source_ids, cross)
        target_text = _tokenized_text(tokenizer, label_ids, tokenizer.decode(target_ids))
        inputs = tokenizer.tokens(input_ids)
        labels: AttentionLabels = {
            "encoder": (source_text.tokens, source_text.tokens),
            "decoder": (target_text.tokens, inputs),
            "cross": (target_text.tokens, source_text.tokens),
        }
        if run.model.is_decoder_only:  # source and target are one sequence, in which each token predicts the next
            queries = (*source_text.tokens[1:], inputs[0], *target_text.tokens)
            labels = {"decoder": (queries, (*source_text.tokens, *inputs))}
        inspection = self._inspection(forward, label_ids, _token_name(tokenizer), labels)
        forced = len(framing.forced_bos)  # tokens with probability 1
        inspection = replace(inspection, score=sum(step.log_probability for step in inspection.steps[forced:]))
        if cross is not None:
            maps = (TokenWordMap.from_tokens(list(side.word_ids), side.tokens) for side in (source_text, target_text))
            inspection = replace(inspection, alignment=word_alignment(cross[0], *maps), cross_attention=cross[0])
        return replace(inspection, source=source_text, target=target_text, finished=finished)

    def inspect_text(self, text: str) -> Inspection:
        """Inspect a text that a language model scores; there is no source."""
        framing, tokenizer = self.run.framing, self.run.target_tokenizer
        begin = framing.source_prefix or (framing.bos,)  # special tokens before the text
        ids = [*begin, *tokenizer.encode(text), framing.eos]
        no_source, inputs = self.run.pad_batch([[]]), self.run.pad_batch([ids[:-1]])
        forward = record_forward(self.run.model, *no_source, *inputs)
        target = _tokenized_text(tokenizer, ids[1:], text)
        labels: AttentionLabels = {"decoder": (target.tokens, tokenizer.tokens(ids[:-1]))}
        inspection = self._inspection(forward, ids[1:], _token_name(tokenizer), labels)
        # without the tokens that every text begins with
        score = sum(step.log_probability for step in inspection.steps[len(begin) - 1 :])
        return replace(inspection, target=target, score=score)

    def inspect_labels(self, source: Source) -> Inspection:
        """Inspect the labels of an encoder-only model: tokens, tags, the label of the text, or whether each
        token is the original one.

        Label ids are the most probable ones; a masked language model scores the tokens that are not masked.
        """
        run, num_labels = self.run, self.run.model.vocab_size
        ids = run.encode_sources([source])[0]
        padded, lengths = run.pad_batch([ids])
        no_target, no_target_lengths = padded[:, :0], torch.zeros_like(lengths)
        forward = record_forward(run.model, padded, lengths, no_target, no_target_lengths)
        text = self._source_text(source, ids, cross=None)
        axes: AttentionLabels = {"encoder": (text.tokens, text.tokens)}
        if run.model.output.is_identity:  # the outputs are states, not labels
            no_labels = [0] * len(forward.logits)
            inspection = self._inspection(forward, label_ids=no_labels, token_name=str, labels=axes)
            return replace(inspection, source=text, score=0.0, steps=(), layers=())
        token_name = _token_name(run.target_tokenizer)
        if num_labels == 1:  # a logit of 0 for the second class turns log softmax into log sigmoid
            layers = {name: pad(logits, (0, 1)) for name, logits in forward.layer_logits.items()}
            forward = replace(forward, logits=pad(forward.logits, (0, 1)), layer_logits=layers)
            token_name = DISCRIMINATOR_LABELS.__getitem__
        if run.model.labels_sequence:  # only the label at the first token counts
            layers = {name: logits[:1] for name, logits in forward.layer_logits.items()}
            forward = replace(forward, logits=forward.logits[:1], layer_logits=layers)
        label_ids = forward.logits.argmax(-1).tolist()
        if num_labels > 1 and run.target_tokenizer is run.source_tokenizer:  # score the tokens that are not masked
            mask = run.source_tokenizer.mask
            label_ids = [best if token_id == mask else token_id for best, token_id in zip(label_ids, ids)]
        return replace(self._inspection(forward, label_ids, token_name, axes), source=text)

    def _inspection(
        self, forward: RecordedForward, label_ids: Sequence[int], token_name: TokenName, labels: AttentionLabels
    ) -> Inspection:
        """Return the predictions and attention maps of a forward pass whose outputs are scored as `label_ids`.

        `token_name` names a token id; `labels` are those of rows and columns of the maps, by kind of attention.
        """
        steps = token_predictions(forward.logits, label_ids, token_name, self.max_alternatives)
        layers = (
            LayerPrediction(name, token_predictions(logits, label_ids, token_name, self.max_alternatives))
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
                for _, tokens in [labels[stack_of(path)]]  # the labels of the columns: what the layer read
            ),
            generation_probs=forward.generation_probs,
        )

    def _attention_maps(self, recorded: dict[str, Tensor], labels: AttentionLabels) -> tuple[AttentionMap, ...]:
        """Return the recorded weights (H T S, by module path) with the labels of their kind of attention.

        `model.memory_paths` are the modules that attend to the encoder's output.
        """
        model, maps = self.run.model, list[AttentionMap]()
        for path, weights in recorded.items():
            kind: AttentionKind = "cross" if path in model.memory_paths else stack_of(path)
            queries, keys = labels[kind]
            stride = getattr(model.get_submodule(path), "key_stride", 1)
            if stride > 1:  # each key stands for several tokens
                keys = _compressed_keys(keys, stride, weights.shape[-1])
            layer = 1 + sum(attention.kind == kind for attention in maps)
            entropy = torch.special.entr(weights).sum(-1).mean(-1) / math.log(2)  # H, in bits
            maps.append(
                AttentionMap(
                    path,
                    kind,
                    layer,
                    queries=tuple(queries),
                    keys=tuple(keys),
                    weights=weights,
                    entropy=tuple(entropy.tolist()),
                )
            )
        return tuple(maps)

    def _source_text(self, source: Source, ids: Sequence[int], cross: Tensor | None) -> TokenizedText:
        """Return a source with its tokens; feature vectors are numbered from 1.

        `cross` (1 T S) is the cross-attention, if there is any.
        """
        if isinstance(source, str):
            return _tokenized_text(self.run.source_tokenizer, ids, source)
        count = len(ids) if cross is None else cross.shape[-1]  # the encoder may subsample feature vectors
        numbers = tuple(str(n) for n in range(1, count + 1))
        return TokenizedText(text="", tokens=numbers, words=(), word_ids=(-1,) * count)


def _tokenized_text(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> TokenizedText:
    """Return a text with its tokens, its words, and the word of each token; words are numbered without gaps."""
    word_ids = tokenizer.word_ids(ids)
    index = {word: n for n, word in enumerate(sorted(set(word_ids) - {-1}))} | {-1: -1}  # −1: no word
    words = word_labels(tokenizer.decode(ids), word_ids) if len(index) > 1 else []
    return TokenizedText(text, tuple(tokenizer.tokens(ids)), tuple(words), tuple(index[word] for word in word_ids))


def _token_name(tokenizer: Tokenizer) -> TokenName:
    """Return a function from token id to token, or #id where an output layer has more ids than the tokenizer."""
    return lambda token_id: tokenizer.tokens([token_id])[0] if token_id < tokenizer.vocab_size else f"#{token_id}"


def _compressed_keys(keys: Sequence[str], stride: int, count: int) -> tuple[str, ...]:
    """Return labels of `count` keys: a key of zeros, then keys that each stand for `stride` tokens, labeled `keys`."""
    return ("(zero)", *("".join(keys[n * stride : (n + 1) * stride]) for n in range(count - 1)))


def token_predictions(
    logits: Tensor, token_ids: Sequence[int], token_name: TokenName, max_alternatives: int
) -> tuple[TokenPrediction, ...]:
    """Return the probability, rank, entropy (bits) and alternatives of each token. Shape: logits (T, V), T token ids.

    Alternatives are the most probable tokens at its position.
    """
    log_p = logits.log_softmax(-1)
    chosen = log_p.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])  # T 1
    ranks = 1 + (log_p > chosen).sum(-1)
    entropy = torch.special.entr(log_p.exp()).sum(-1) / math.log(2)
    top = log_p.topk(min(max_alternatives, log_p.shape[-1]), dim=-1)
    columns = (column.tolist() for column in (chosen[:, 0], ranks, entropy, top.indices, top.values.exp()))
    predictions = []
    for token_id, score, rank, bits, other_ids, probabilities in zip(token_ids, *columns):
        others = tuple(TokenAlternative(token_name(other), other, p) for other, p in zip(other_ids, probabilities))
        predictions.append(
            TokenPrediction(
                token_name(token_id),
                token_id,
                probability=math.exp(score),
                log_probability=score,
                rank=rank,
                entropy=bits,
                alternatives=others,
            )
        )
    return tuple(predictions)


# ---- a teacher-forced forward pass that records attention weights and the states between layers


@dataclass(frozen=True)
class RecordedForward:
    """Results of a recorded pass over one sentence pair."""

    logits: Tensor  # T V
    attention_weights: dict[str, Tensor]  # path of the attention module → H T S
    layer_logits: dict[str, Tensor]  # name of the layer → T V, the output layer applied to its states
    expert_gates: dict[str, Tensor] = field(default_factory=dict)  # path of a mixture of experts → T experts
    copying: CopyDistribution | None = None  # 1 T …: probabilities of copying source tokens, if the model can

    @property
    def generation_probs(self) -> tuple[float, ...]:
        """p_gen at each position: the probability that the next token is generated; empty if nothing is copied."""
        return () if self.copying is None else tuple(self.copying.generation_prob.flatten().tolist())


@torch.inference_mode()
def record_forward(
    model: Model, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
) -> RecordedForward:
    """Run the model on one sentence pair, and record logits, attention weights and the logits after each layer.

    Shape: source (1, S) and target (1, T), without padding; target (1, 0) for encoders, whose outputs have length S.
    """
    recorder: dict[str, list[Tensor]] = {}
    source_layout = Layout.padded(source.shape[1], source_lengths)
    target_layout = Layout.padded(target.shape[1], target_lengths)
    with record_layers(model.output_stack) as layers, record_gates(model) as gates:
        features = model.forward_features(source, source_layout, target, target_layout, recorder)
    count = features.output.shape[1]  # the last positions of the stack, if it reads the source as well

    def logits_after(x: Tensor) -> Tensor:
        """Return the logits, T V, that states x after a layer, (1, T, D), would give."""
        states = model.layer_features(x[:, -count:], source, source_layout, target, target_layout)
        return at_least_float32(model.logits(features.with_output(states))[0])

    return RecordedForward(
        logits=at_least_float32(model.logits(features)[0]),
        attention_weights={
            path: at_least_float32(torch.cat(steps, dim=2)[0]).cpu() for path, steps in recorder.items()
        },
        layer_logits={name: logits_after(x) for name, x in layers.items()},
        expert_gates={path: at_least_float32(rows[0]).cpu() for path, rows in gates.items()},
        copying=None if features.copying is None else features.copying.map(Tensor.cpu),
    )


@contextmanager
def record_layers(stack: StackMixer) -> Iterator[dict[str, Tensor]]:
    """Record the input of a stack and the output of each layer, (B, T, D), after the final norm of the stack.

    Yields a dict that a forward pass fills: (B, T, D) by name of the layer. A layer may have several sublayers; those
    of a stack with a single layer are recorded one by one.
    """
    recorded: dict[str, Tensor] = {}
    sublayers: list[nn.Module] = [sublayer for _, sublayer in stack.named_layers()]
    sublayers_per_layer = len(sublayers) // len(stack.layers) if len(stack.layers) > 1 else 1

    def record(name: str, x: Tensor, context: Context) -> None:
        """Record states (B T D) under the name of their layer; `context` has the positions and lengths of tokens."""
        recorded[name] = stack.norm(x, context.layout)

    def record_output(name: str) -> Any:
        """Return a forward hook that records the output of a layer under this name."""
        return lambda module, inputs, outputs: record(name, x=outputs[0], context=inputs[1])

    with ExitStack() as hooks:
        hooks.enter_context(sublayers[0].register_forward_pre_hook(lambda module, inputs: record("input", *inputs[:2])))
        last_sublayers = sublayers[sublayers_per_layer - 1 :: sublayers_per_layer]  # of each layer
        for number, sublayer in enumerate(last_sublayers, 1):
            hooks.enter_context(sublayer.register_forward_hook(record_output(f"layer {number}")))
        yield recorded
