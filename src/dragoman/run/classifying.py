"""Classifying whole texts with an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dragoman.run.filling import batch_logits, special_labels
from dragoman.run.results import Classification
from dragoman.run.sources import max_source_tokens, normalize_text

if TYPE_CHECKING:
    from dragoman.run.run import Run


@torch.inference_mode()
def classify(run: Run, texts: Sequence[str]) -> list[Classification]:
    """Predict the label of each text, with the probabilities of all labels, from the encoder output at its first token.

    A text that is too long for the model is classified by its beginning (`truncated_source`). A run that is no
    classifier is a UserError.
    """
    run.check_usage("classify")
    if not run.model.one_label_per_sequence:
        raise run.usage_error("classify")
    tokens = run.source_tokenizer.encode_batch([normalize_text(run, text) for text in texts])
    max_tokens, num_labels = max_source_tokens(run), run.model.num_labels
    names = [run.target_tokenizer.decode([label]) for label in range(num_labels)]
    special = special_labels(run.target_tokenizer, num_labels)
    results: dict[int, Classification] = {}  # by index of the text, since batches are sorted by length
    for batch, logits in batch_logits(run, run.full_precision_model, [ids[:max_tokens] for ids in tokens]):
        label_logits = logits[:, 0]  # B labels: at the first token
        label_logits[:, special] = -torch.inf  # special tokens are never predicted
        probabilities, labels = label_logits.softmax(-1).sort(descending=True, stable=True)  # B labels, best first
        for index, text_probabilities, text_labels in zip(batch, probabilities.tolist(), labels.tolist()):
            by_name = {
                names[label]: probability
                for label, probability in zip(text_labels, text_probabilities)
                if label not in special
            }
            best_name = next(iter(by_name))
            is_truncated = len(tokens[index]) > max_tokens
            results[index] = Classification(best_name, by_name, truncated_source=is_truncated)
    return [results[index] for index in range(len(texts))]
