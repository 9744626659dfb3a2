"""Implementation of the public functions of `dragoman`: training and evaluation from Python."""

#: metrics of translations that are computed by default
TRANSLATION_METRICS = ("bleu", "chrf", "ter", "exact")
PSEUDO_PERPLEXITY = "pseudo-perplexity"
