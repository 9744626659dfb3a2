"""Results that papers report for the systems, shown beside those of a comparison.

Table 2 of Vaswani et al. (2017) gives BLEU on newstest2014 and the training cost. The cost is an estimate: training
time times number of GPUs times the sustained speed of a GPU (2.8, 3.7, 6.0 and 9.5 TFLOP/s for K80, K40, M40 and P100).
The base Transformer took 12 hours on 8 P100: 12 · 3600 · 8 · 9.5e12 = 3.3e18. Counted operations are fewer, because
no training keeps a GPU busy with matrix products all the time.

Liu et al. (2018), table 4, give perplexity and ROUGE-L of abstracts of Wikipedia from their sources; L is the number
of source tokens.
"""

from __future__ import annotations

from typing import NamedTuple


class PublishedResult(NamedTuple):
    """One row of a table in a paper; `device_flops` is the estimated training cost, None if it is not reported."""

    system: str  # the name here
    model: str  # the name in the paper
    task: str
    metric: str
    score: float
    device_flops: float | None = None


PUBLISHED_RESULTS = tuple(
    PublishedResult(system, model, f"WMT14 {pair}", "BLEU", score, flops)
    for system, model, *results in (
        ("bytenet", "ByteNet", (23.75, None), None),
        ("deep-att", "Deep-Att + PosUnk", None, (39.2, 1.0e20)),
        ("gnmt", "GNMT + RL", (24.6, 2.3e19), (39.92, 1.4e20)),
        ("convs2s", "ConvS2S", (25.16, 9.6e18), (40.46, 1.5e20)),
        ("moe-2017", "MoE", (26.03, 2.0e19), (40.56, 1.2e20)),
        ("deep-att", "Deep-Att + PosUnk, ensemble", None, (40.4, 8.0e20)),
        ("gnmt", "GNMT + RL, ensemble", (26.30, 1.8e20), (41.16, 1.1e21)),
        ("convs2s", "ConvS2S, ensemble", (26.36, 7.7e19), (41.29, 1.2e21)),
        ("transformer", "Transformer (base)", (27.3, 3.3e18), (38.1, 3.3e18)),
        ("transformer", "Transformer (big)", (28.4, 2.3e19), (41.8, 2.3e19)),
    )
    for pair, result in zip(("en-de", "en-fr"), results)
    if result is not None
    for score, flops in (result,)
) + tuple(
    PublishedResult(system, model, "Wikipedia abstracts", metric, score)
    for system, model, *scores in (
        ("bahdanau", "seq2seq-attention, L = 500", 5.04952, 12.7),
        ("transformer", "Transformer-ED, L = 500", 2.46645, 34.2),
        ("transformer-d", "Transformer-D, L = 4000", 2.22216, 33.6),
        ("transformer-dmca", "Transformer-DMCA, L = 11000", 2.05159, 36.2),
        ("transformer-dmca-moe", "Transformer-DMCA, MoE-128, L = 11000", 1.92871, 37.9),
        ("transformer-dmca-moe", "Transformer-DMCA, MoE-256, L = 7500", 1.90325, 38.8),
    )
    for metric, score in zip(("perplexity", "ROUGE-L"), scores)
)


def published_rows(systems: list[str]) -> list[dict[str, object]]:
    """Return what papers report for the systems with these names, as rows of a table: column → value.

    "as published" is the name of the model in the paper, "device FLOPs" its estimated training cost (None: not stated).
    """
    return [
        {
            "system": result.system,
            "as published": result.model,
            "task": result.task,
            "metric": result.metric,
            "score": f"{result.score:g}",
            "device FLOPs": result.device_flops,
        }
        for result in PUBLISHED_RESULTS
        if result.system in systems
    ]
