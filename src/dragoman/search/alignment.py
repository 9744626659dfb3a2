"""Alignments: which source token each target token looked at."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.models import Model
from dragoman.parts.mixer import Layout


@torch.inference_mode()
def attention_weights(
    model: Model, source: Tensor, source_lengths: Tensor, target: Tensor, target_lengths: Tensor
) -> dict[str, Tensor]:
    """Every attention of a teacher-forced pass, by the path of its part: B H T S.

    Row t of the decoder's is what was looked at when the token after target[t] was chosen.
    """
    recorder: dict[str, list[Tensor]] = {}
    layouts = Layout.padded(source.shape[1], source_lengths), Layout.padded(target.shape[1], target_lengths)
    model.features(source, layouts[0], target, layouts[1], recorder)
    return {path: torch.cat(steps, dim=2) for path, steps in recorder.items()}


def cross_attention(model: Model, weights: dict[str, Tensor]) -> Tensor | None:
    """The decoder's looks at the source in one picture: the mean over heads and layers, B T S; None if it has none."""
    looks = [weights[path].mean(1) for path in model.memory_paths if path in weights]
    return torch.stack(looks).mean(0) if looks else None


def word_alignment(weights: Tensor, source_words: list[int], target_words: list[int]) -> list[tuple[int, int]]:
    """T S weights over pieces → (source word, target word) links: each target word with the word it looked at most.

    `source_words` and `target_words` give the word that each piece belongs to, −1 for pieces of none (END, spaces).
    """
    count = max(source_words, default=-1) + 1
    if count == 0:
        return []
    over_words = torch.zeros(len(target_words), count + 1)
    columns = torch.tensor([word if word >= 0 else count for word in source_words])
    over_words.index_add_(1, columns, weights[: len(target_words), : len(source_words)].float().cpu())
    links = []
    for word in range(max(target_words, default=-1) + 1):
        pieces = [piece for piece, of in enumerate(target_words) if of == word]
        if pieces:
            links.append((int(over_words[pieces, :count].sum(0).argmax()), word))
    return sorted(links)
