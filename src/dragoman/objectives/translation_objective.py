"""Translation: −Σ log p(y_t | y_<t, x) with teacher forcing, scheduled sampling and R-Drop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dragoman.data import Batch, BatchRow, SubwordSamplers, TokenStore
from dragoman.models import DecoderOnlyModel, EncoderDecoderModel
from dragoman.objectives.objective import SequenceObjective, TaskContext, concat_ids
from dragoman.parts.mixer import SequenceLayout
from dragoman.parts.precision import at_least_float32
from dragoman.text import BPEDropout

SAMPLING_CHUNK_TOKENS = 1024  # tokens whose logits exist at a time

SamplingDecay = Literal["linear", "exponential", "inverse-sigmoid"]


class TranslationObjective(SequenceObjective):
    """Predicts the target tokens from the source and the target tokens before them.

    A decoder-only model that can be packed reads source and target as one row, with labels for the target tokens.

    Args:
        sampling_rate: scheduled sampling (Bengio et al. 2015): the share of decoder inputs that are sampled from the
            model grows from 0 to this value. Tokens are sampled in a first pass with teacher forcing, and the loss is
            that of a second pass (Mihaylova & Martins 2019), so that it works for parallel decoders too.
        sampling_steps: training steps over which the share grows.
        sampling_decay: how the share of teacher-forced tokens decays.
        rdrop_alpha: R-Drop (Liang et al. 2021): every pair passes through the model twice with different dropout, and
            the mean of both KL divergences between the passes, KL(p₁‖p₂) and KL(p₂‖p₁), is added with this weight.
    """

    model_kind = (EncoderDecoderModel, DecoderOnlyModel)
    generates = True
    default_label_smoothing = 0.1
    default_bpe_dropout = True

    @classmethod
    def copies_per_pair(cls, settings: Mapping[str, Any]) -> int:
        """Return how often each pair is in its batch: twice with R-Drop, which compares two passes."""
        return 2 if settings.get("rdrop_alpha") else 1

    def __init__(
        self,
        task: TaskContext,
        *,
        sampling_rate: float = 0.0,
        sampling_steps: int = 10_000,
        sampling_decay: SamplingDecay = "linear",
        rdrop_alpha: float = 0.0,
    ) -> None:
        """Set up scheduled sampling and R-Drop, and choose the rows (training sequences).

        Scheduled sampling replaces a share of the decoder inputs by sampled tokens. Within `sampling_steps` training
        steps it grows from 0 to `sampling_rate`, as fast as `sampling_decay` says. R-Drop compares two passes with
        weight `rdrop_alpha`. If a decoder-only model uses neither, its rows are source and target concatenated, with
        labels for the target. `doubled`: R-Drop needs every row twice. `static_shapes`: sampling cannot be captured as
        a CUDA graph.
        """
        super().__init__(task)
        self.sampling_rate, self.sampling_steps, self.sampling_decay = sampling_rate, sampling_steps, sampling_decay
        self.rdrop_alpha = rdrop_alpha
        self.subword_samplers = bpe_dropout_segmenters(task)
        model, framing = task.model, task.framing
        # in concatenated rows the padding token stands for no label, so that it must differ from the label EOS
        can_concatenate = not sampling_rate and not rdrop_alpha and framing.pad != framing.eos
        if model.is_decoder_only and model.supports_packing and can_concatenate:
            self.build_row = self._concatenated_row
            self.labels_source = True  # the row is the source of its batch, so that labels belong to source tokens
        self.doubled, self.static_shapes = rdrop_alpha > 0, not sampling_rate
        # a decoder-only model is packed only if a row is source and target concatenated
        self.supports_packing = model.supports_packing and (self.labels_source or not model.is_decoder_only)

    def _concatenated_row(self, store: TokenStore, index: int, random: np.random.Generator) -> BatchRow:
        """Concatenate source and target of pair number `index` of the store to one training example of a decoder.

        The label of a target token is the next one. Source tokens, and target tokens before a forced one (a first token
        that is not predicted, such as a language code), have the padding token as label, which stands for none.
        `random` is not used.
        """
        framing = self.task.framing
        source = concat_ids(framing.source_prefix, store.source(index), framing.source_suffix)
        target = concat_ids(framing.target_prefix, store.target(index), (framing.eos,))
        no_labels = np.full(len(source) + len(framing.forced_bos), framing.pad)
        # the target begins with BOS and forced tokens; the last of these has the first label
        labels = concat_ids(no_labels, target[len(framing.target_prefix) :])
        return BatchRow(source=concat_ids(source, target[:-1]), target=labels)

    def decoder_inputs(self, batch: Batch, step: int) -> Tensor:
        """Return the tokens that the decoder reads at a training step, B T: the target (teacher forcing).

        With scheduled sampling, a share of them that depends on the step is sampled from the model.
        """
        if self.sampling_rate and torch.is_grad_enabled():  # in training, not in validation
            return self._sampled_inputs(batch, self.sampling_ratio(step))
        return batch.target

    def sampling_ratio(self, step: int) -> float:
        """Return the share of decoder inputs that scheduled sampling takes from the model at a training step.

        It grows from about 0 to `sampling_rate` within `sampling_steps` steps.
        """
        return self.sampling_rate * (1 - teacher_forcing_ratio(step / self.sampling_steps, self.sampling_decay))

    @torch.no_grad()
    def _sampled_inputs(self, batch: Batch, ratio: float) -> Tensor:
        """Return the targets of a batch (B T) with a share, `ratio`, of tokens sampled from the model's predictions.

        With R-Drop, which compares two passes over the same input, the second half of the batch repeats the first one,
        and gets the same tokens.
        """
        copies = 2 if self.doubled else 1
        count = len(batch.target) // copies
        source, target = batch.source[:count], batch.target[:count]
        source_layout = SequenceLayout.padded(source.shape[1], batch.source_lengths[:count])
        target_layout = SequenceLayout.padded(target.shape[1], batch.target_lengths[:count])
        features = self.model.forward_features(source, source_layout, target, target_layout)
        rows = max(1, SAMPLING_CHUNK_TOKENS // target.shape[1])  # whose logits exist at a time
        chunks = [features.select_rows(slice(start, start + rows)) for start in range(0, count, rows)]
        sampled = torch.cat([sample_tokens(self.model.logits(chunk)) for chunk in chunks])  # B T: the next tokens
        is_replaced = torch.rand(target.shape, device=target.device) < ratio
        is_replaced &= target_layout.positions > 0  # BOS, at position 0, stays
        inputs = torch.where(is_replaced, sampled.roll(1, 1), target)  # a predicted token is the next input
        return inputs.repeat(copies, 1)


def sample_tokens(logits: Tensor) -> Tensor:
    """Sample a token from each softmax, N V → N, by the Gumbel-max trick."""
    logits = at_least_float32(logits)
    return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)


def bpe_dropout_segmenters(task: TaskContext) -> SubwordSamplers:
    """Return functions that segment source and target into subwords anew in every epoch, by BPE dropout.

    None for a side without it: sources of feature vectors, and tokenizers without BPE merges. If `task.bpe_dropout`,
    the probability to skip a merge, is set, but neither tokenizer has merges, a UserError is raised.
    """
    if not task.bpe_dropout:
        return None, None
    source, target = task.source_tokenizer, task.target_tokenizer
    if not source.has_merges:
        return None, BPEDropout(target, task.bpe_dropout)  # raises a UserError if the target has no merges either
    source_sampler = BPEDropout(source, task.bpe_dropout) if task.model.source_features is None else None
    target_sampler = BPEDropout(target, task.bpe_dropout) if target.has_merges else None
    return source_sampler, target_sampler


def teacher_forcing_ratio(progress: float, decay: SamplingDecay) -> float:
    """Return the share of decoder inputs that are target tokens, not sampled ones, in scheduled sampling.

    It falls from about 1 to about 0 while `progress`, the share of `sampling_steps` that are done, grows from 0 to 1.
    `decay` is one of the functions of Bengio et al. (2015, §2.4).
    """
    progress = min(1.0, progress)
    if decay == "linear":
        return 1 - progress
    if decay == "exponential":
        return 0.01**progress  # ends at 1 %
    return 1 / (1 + math.exp(10 * (progress - 0.5)))  # inverse sigmoid: from 0.99 over ½ in the middle to 0.01
