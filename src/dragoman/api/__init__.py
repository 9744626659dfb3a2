"""Implementation of the public functions of `dragoman`: training and evaluation from Python."""

PSEUDO_PERPLEXITY = "pseudo-perplexity"
