"""Saliency: how strongly each token influences the probability of each token of a translation.

    s_tj = ‖∂ log p(y_t) / ∂e_j‖ / Σ_k ‖∂ log p(y_t) / ∂e_k‖,    e_j: the embedding of source or earlier target token j

(Simonyan et al. 2014; for translation Ding et al. 2019). Unlike attention it covers the whole model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.lens.gradients import embedding_leaves
from dragoman.parts.mixer import SequenceLayout
from dragoman.parts.precision import at_least_float32
from dragoman.run import Run


@dataclass(frozen=True)
class Saliency:
    """Shares of the gradient norm; each row of `source` and `target` together sums to 1."""

    source_tokens: tuple[str, ...]  # S, with special tokens
    input_tokens: tuple[str, ...]  # T: the tokens that the decoder was fed, BOS first
    target_tokens: tuple[str, ...]  # T: the tokens that it predicted, EOS last
    source: Tensor  # T S
    target: Tensor  # T T: 0 above the diagonal


def measure_saliency(run: Run, source: str, translation: str) -> Saliency:
    """Measure how strongly the log-probability of each token of a translation depends on the tokens that it follows.

    Saliency is the norm of ∂ log p(y_t) / ∂e, where e is the embedding of a source token or of an earlier target token,
    divided by the sum of these norms over all such tokens. The translation is fed by teacher forcing; `framing` has the
    special token ids, and `embedding_leaves` collects the embeddings of source and target as leaves for autograd.
    A model that does not translate text into text, and an empty source, are a UserError.
    """
    model, framing, tokenizer = run.full_precision_model, run.framing, run.target_tokenizer
    if not model.can_generate or model.source_features is not None:  # feature vectors of images or speech
        raise UserError(
            f"the model in {run.folder} does not translate text, but saliency is measured for text-to-text models: "
            "name another run"
        )
    if not source.strip():
        raise UserError(
            "saliency is the influence of source tokens on the translation, but the source sentence is empty: give "
            "another sentence"
        )
    source_ids = list(run.encode_sources([source])[0])
    # the tokens that are predicted; `forced_bos` are those, such as a language code, that every translation begins with
    labels = [*framing.forced_bos, *tokenizer.encode(translation), framing.eos]
    inputs = [framing.bos, *labels[:-1]]  # the tokens that the decoder reads
    (source_batch, source_lengths), (target_batch, lengths) = run.pad_batch([source_ids]), run.pad_batch([inputs])
    source_layout, target_layout = (
        SequenceLayout.padded(len(source_ids), source_lengths),
        SequenceLayout.padded(len(inputs), lengths),
    )
    rows = []
    with torch.enable_grad(), embedding_leaves(run) as (embedded, _):
        features = model.forward_features(source_batch, source_layout, target_batch, target_layout)
        label_ids = torch.tensor(labels, device=source_batch.device)
        log_p = at_least_float32(model.logits(features)).log_softmax(-1)[0].gather(1, label_ids[:, None])[:, 0]  # T
        for t in range(len(labels)):
            gradients = torch.autograd.grad(log_p[t], embedded, retain_graph=True)
            norms = torch.cat([at_least_float32(gradient)[0].norm(dim=-1) for gradient in gradients])
            norms = norms[: len(source_ids) + len(inputs)]  # S+T: masks in the places of predicted tokens come last
            rows.append(norms / norms.sum().clamp(min=1e-30))  # shares; the limit avoids 0 / 0
    weights = torch.stack(rows).cpu()  # T S+T: sources first
    return Saliency(
        source_tokens=tuple(run.source_tokenizer.tokens(source_ids)),
        input_tokens=tuple(tokenizer.tokens(inputs)),
        target_tokens=tuple(tokenizer.tokens(labels)),
        source=weights[:, : len(source_ids)],
        target=weights[:, len(source_ids) :],
    )
