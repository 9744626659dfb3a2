"""Settings of the system, the objective and the optimization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dragoman.config.setting_declarations import Section, setting, settings_of
from dragoman.errors import UserError


@dataclass(frozen=True)
class SystemConfig(Section, section="system"):
    """Architecture of the model."""

    name: str | None = setting(
        None,
        "Architecture of the model, such as transformer or luong; `dragoman systems` lists all names.",
        auto="hard-monotonic for at most 50,000 pairs of words whose letters or sounds follow the same order in "
        "source and target, else transformer; or the system of the run in training.start_from",
    )
    size: str | None = setting(
        None,
        "Model size: tiny, small, base or big, which sets the defaults of system.settings, such as the number of "
        "layers.",
        auto="tiny, small or base, by the number of training pairs and the device",
    )
    settings: dict[str, Any] = setting(
        {},
        "Hyper-parameters of the system, such as {model_dim: 512, dropout: 0.1}; `dragoman systems NAME` lists them. "
        "Those that are left out follow from system.size and training.recipe.",
    )


@dataclass(frozen=True)
class ObjectiveConfig(Section, section="objective"):
    """Training objective."""

    name: str | None = setting(
        None,
        "Training objective: translation, reward (expected BLEU, GLEU or chrF of sampled translations), causal-lm, "
        "masked-lm, denoising, span-corruption, tagging, classification or another objective of docs/settings.md.",
        auto="from the system and the kind of data, such as translation for pairs of source and target",
    )
    settings: dict[str, Any] = setting(
        {},
        "Settings of the training objective that objective.name selects, such as {mask_rate: 0.15}; docs/settings.md "
        "lists them. Those that are left out have their defaults.",
    )


Schedule = Literal["inverse-sqrt", "cosine", "linear", "constant", "stable", "halving", "plateau"]
Optimizer = Literal["adamw", "adam", "sgd", "adadelta", "adafactor", "muon"]


SelectionMetric = Literal[
    "auto",
    "bleu",
    "chrf",
    "chrf++",
    "ter",
    "rouge_1",
    "rouge_2",
    "rouge_l",
    "rouge_1_stem",
    "rouge_2_stem",
    "rouge_l_stem",
    "exact_match",
    "ier",
    "wer",
    "ser",
    "per",
    "cer",
    "span_f1",
    "bracket_f1",
    "accuracy",
    "loss",
]


@dataclass(frozen=True)
class TrainingConfig(Section, section="training"):
    """Optimization. Training stops at the first limit it reaches: steps, epochs, minutes or patience."""

    batch_tokens: int | None = setting(
        None,
        "Maximum number of tokens of a batch, padding included: its number of pairs × the length of the longest "
        "source or target among them (or of both together, see training.batch_by). A batch is what one process (GPU) "
        "computes in one forward and backward pass; an optimizer step has training.gradient_accumulation batches, "
        "over all processes together.",
        min=1,
        auto="from the amount of data and the device",
    )
    batch_by: Literal["row", "pair"] = setting(
        "row",
        "Length of a pair that counts for training.batch_tokens. row: that of the sequence which the model reads, "
        "source and target together in a decoder-only model, the longer of both in an encoder–decoder. pair: always "
        "that of the longer of both, which gives all systems the same batches.",
    )
    auto_batch_size: bool = setting(
        False,
        "Before training, find the largest training.batch_tokens that fits into memory: by trial steps on a GPU, by "
        "an estimate on a CPU.",
    )
    gradient_checkpointing: bool | None = setting(
        None,
        "Recompute activations in the backward pass: about a third more time, much less memory.",
        auto="true if training would not fit into memory otherwise, else false",
    )
    gradient_accumulation: int = setting(
        1,
        "Number of batches whose gradients are summed for one optimizer step, over all processes (GPUs) together. In "
        "a new run, a number below that of the processes is raised to it. If a batch of automatically chosen "
        "training.batch_tokens does not fit into memory, these are divided by some n and this number is multiplied by "
        "n, so that a step has as many tokens as before.",
        min=1,
    )
    steps: int | None = setting(
        None,
        "Maximum number of optimizer steps.",
        min=1,
        auto="from the amount of data with training.schedule=cosine, linear or stable; else no limit",
    )
    epochs: int | None = setting(None, "Maximum number of passes over the training data.", min=1, auto="no limit")
    minutes: float | None = setting(
        None,
        "Maximum training time in minutes, including validation. The learning-rate schedule is fitted to end at that "
        "time.",
        min=0.01,
        auto="no limit",
    )
    patience: int | None = setting(
        8,
        "Stop after this many validations in a row in which neither training.selection_metric nor the validation loss "
        "is better than the best so far. None (null in YAML): never.",
        min=1,
    )
    learning_rate: float | None = setting(
        None,
        "Peak learning rate, reached at the end of the warm-up.",
        min=0,
        max=1e3,
        auto="with training.recipe=plain or modern, c / model width, where c depends on the recipe, the system and "
        "whether training.start_from is set; with training.recipe=textbook, as in the system's paper",
    )
    warmup_steps: int | None = setting(
        None,
        "Optimizer steps of linear warm-up to the peak learning rate.",
        min=0,
        auto="about four epochs, from 100 to 4,000 steps and at most a tenth of the training; with "
        "training.recipe=textbook, as in the system's paper",
    )
    extended_at: int = setting(
        0,
        "Step at which `train --resume` last extended a finished run; 0: never. Written by the program: do not set it.",
    )
    recipe: Literal["auto", "textbook", "modern", "plain"] = setting(
        "auto",
        "Set of defaults for optimizer, learning-rate schedule and regularization; settings that are given override "
        "it. textbook: as in the paper of the system. modern: Muon with a cosine schedule. plain: AdamW with an "
        "inverse-square-root schedule. auto: plain with LoRA (lora.rank) and for models of another library in "
        "training.start_from; else the default of the system, modern or plain.",
    )
    schedule: Schedule | None = setting(
        None,
        "Learning-rate schedule after the warm-up. inverse-sqrt: ∝ 1/√step. constant: the peak. cosine, linear: a "
        "decay in this shape to training.final_rate_factor (0 by default) × the peak at the end of training. "
        "stable: constant, then a decay to the same value by 1 − √t in the last training.decay_fraction of training, "
        "in which t grows from 0 to 1. halving: halved after training.halving_start_epoch epochs, then every "
        "training.halving_interval epochs. plateau: multiplied by training.plateau_factor after each validation whose "
        "loss is not lower than the lowest so far.",
        fallback="inverse-sqrt",
        auto="inverse-sqrt; cosine with training.recipe=modern; with training.recipe=textbook, as in the system's "
        "paper",
    )
    warmup_start_factor: float | None = setting(
        None, "Learning rate at the start of warm-up, as a fraction of the peak.", min=0, max=1, fallback=0.0
    )
    hold_steps: int | None = setting(
        None,
        "Steps at the peak learning rate between the warm-up and the decay. Only for training.schedule=inverse-sqrt.",
        min=0,
        fallback=0,
    )
    final_rate_factor: float | None = setting(
        None,
        "Learning rate at the end of training, as a fraction of the peak. Only for training.schedule=cosine, linear or "
        "stable, which end at this rate.",
        min=0,
        max=1,
        fallback=0.0,
    )
    decay_fraction: float = setting(
        0.2,
        "With training.schedule=stable: fraction of training, at its end, in which the learning rate decays.",
        min=0,
        max=1,
    )
    halving_start_epoch: float | None = setting(
        None,
        "With training.schedule=halving: number of epochs after which the learning rate is halved for the first time.",
        min=0,
        fallback=5.0,
    )
    halving_interval: float | None = setting(
        None,
        "With training.schedule=halving: epochs between two halvings of the learning rate.",
        min=0.001,
        fallback=1.0,
    )
    plateau_factor: float | None = setting(
        None,
        "With training.schedule=plateau: factor by which the learning rate is multiplied after each validation whose "
        "loss is not lower than the lowest so far.",
        min=0,
        max=1,
        fallback=0.1,
    )
    optimizer: Optimizer | None = setting(
        None,
        "Optimizer: adamw, adam, sgd, adadelta, adafactor, or muon (which leaves embeddings and vectors, such as "
        "biases, to AdamW).",
        fallback="adamw",
        auto="adamw; muon with training.recipe=modern; with training.recipe=textbook, as in the system's paper",
    )
    momentum: float | None = setting(
        None,
        "Momentum of sgd, adafactor and muon.",
        min=0,
        max=0.99999,
        auto="0 for sgd and adafactor, 0.95 for muon; with training.recipe=textbook, as in the system's paper",
    )
    nesterov: bool | None = setting(
        None, "Use Nesterov momentum in sgd, which needs training.momentum above 0.", fallback=False
    )
    beta1: float | None = setting(
        None,
        "β₁ of Adam and AdamW (also of the AdamW in muon): decay per step of the moving average of gradients.",
        min=0,
        max=0.99999,
        fallback=0.9,
    )
    beta2: float | None = setting(
        None,
        "β₂ of Adam and AdamW (also of the AdamW in muon): decay per step of the moving average of squared gradients.",
        min=0,
        max=0.9999999,
        fallback=0.98,
    )
    epsilon: float | None = setting(
        None,
        "ε of Adam and AdamW (also of the AdamW in muon): added to the root of the mean squared gradient, by which "
        "updates are divided, against division by zero.",
        min=0,
        max=1,
        fallback=1e-9,
    )
    weight_decay: float | None = setting(
        None, "Decoupled weight decay of adamw and muon (Loshchilov and Hutter 2019).", min=0, max=10, fallback=0.01
    )
    loss_normalization: Literal["tokens", "sentences"] | None = setting(
        None,
        "What the loss of an optimizer step, summed over its target tokens, is divided by: tokens (the number of "
        "these) or sentences (the number of its pairs).",
        fallback="tokens",
    )
    clip_norm: float | None = setting(
        None,
        "Maximum L2 norm of the gradient of all weights together; a larger gradient is scaled down to it. 0: no "
        "clipping.",
        min=0,
        fallback=1.0,
    )
    label_smoothing: float | None = setting(
        None,
        "Label smoothing ε (Szegedy et al. 2016): share of the target probability that is spread evenly over the "
        "vocabulary.",
        min=0,
        max=0.999,
        auto="0.1 for translation, else 0; with training.recipe=textbook, as in the system's paper",
    )
    validation_interval: int | None = setting(
        None,
        "Optimizer steps between two validations.",
        min=1,
        auto="an epoch or a twelfth of the training, whichever is longer, but from 50 to 2,000 steps; with "
        "training.minutes, a tenth of that time, at most ten minutes",
    )
    validation_sentences: int | None = setting(
        None,
        "Number of validation sentences that are translated at each validation, for BLEU, exact match and other "
        "metrics of texts; the loss is always that of all validation pairs. 0: none.",
        min=0,
        auto="as many as can be decoded in about a tenth of the training time, from 50 to 2,000",
    )
    selection_metric: SelectionMetric = setting(
        "auto",
        "Validation metric that selects the best checkpoint. auto: accuracy for tagging and classification; loss for "
        "other objectives that generate no targets, and if no validation sentences are decoded; else by the "
        "validation pairs: exact_match if most references have fewer than four words (in a script without spaces: if "
        "they are short enough for single words), or if they are sequences of symbols (phonemes, actions), code or "
        "logical forms (recognized by their many punctuation marks or signs such as =); rouge_l if the median source "
        "has at least 30 words, and the median reference at most a third as many; bleu for all others. With fewer "
        "than 50 references, auto takes an error rate instead of exact_match: cer if most references have fewer than "
        "four words, or are in a script without spaces, else ser. The same error rate ranks checkpoints with equal "
        "exact_match or ier; checkpoints that are still equal, or have equal values of another metric, are ranked by "
        "the loss. Error rates: ier (lines that differ from the reference), ter (translation edit rate), cer (edit "
        "distance in characters), and wer, ser and per, three names of the edit distance in tokens between spaces: "
        "words, symbols or phonemes. accuracy: share of tokens predicted correctly, given the reference before them; "
        "span_f1: F₁ of the spans that B and I tags mark; bracket_f1: F₁ of the constituents of bracketed trees. The "
        "metrics ending in _stem (ROUGE of word stems) need the package rouge-score.",
    )
    bleu_tokenizer: Literal[
        "auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200", "spBLEU-1K", "none"
    ] = setting(
        "auto",
        "Tokenizer of sacreBLEU for the BLEU of this run; auto: 13a where words are separated by spaces, otherwise by "
        "the language of the references, such as zh for Chinese.",
    )
    keep_checkpoints: int = setting(
        5,
        "Number of checkpoints to keep besides the best one: the latest of those that were saved at a validation.",
        min=1,
    )
    keep_history: int = setting(
        0,
        "Maximum number of additional checkpoints, of steps 0, 1, 2, 3, 4, 6, 8, 11, 16 …, which show how a "
        "translation changed in training. They hold the weights, without the state of the optimizer. If there are "
        "more, those whose steps are closest to others (on a logarithmic scale) are removed. 0: none.",
        min=0,
    )
    mirror: str | None = setting(
        None,
        "Path or URL of a copy of the run folder, such as s3://bucket/runs/en-de. Every checkpoint is copied there; a "
        "machine without the run folder fetches it from there to resume the training. None: no copy.",
    )
    average_checkpoints: bool = setting(
        True,
        "At the end of training, average the weights of the kept checkpoints (training.keep_checkpoints), and use the "
        "average instead of the best checkpoint if its training.selection_metric is better. Without effect if "
        "training.ema_decay is set.",
    )
    ema_decay: float | None = setting(
        None,
        "Decay per step of an exponential moving average of the weights, such as 0.999. Validation and inference use "
        "the averaged weights.",
        min=0,
        max=0.9999999,
        auto="none: no average",
    )
    start_from: str | None = setting(
        None,
        "Run folder, or folder of a Hugging Face checkpoint, that provides the initial weights, the tokenizers and the "
        "system (warm start). The model is validated with these weights before step 1. None: random initial weights.",
    )
    freeze: tuple[str, ...] = setting(
        (),
        "Weights that are not trained: `embeddings`, the beginning of names up to a dot (encoder, decoder.layers.0), "
        "or a pattern such as *.bias; a later pattern with ! makes exceptions: [*, '!*norm*'] trains only the norms. "
        "Frozen weights have no optimizer state, and are stored once, in the folder `initial` of the run, instead of "
        "in each checkpoint. Empty: all weights are trained.",
    )
    seed: int = setting(1, "Random seed of initialization, data order and dropout.", min=0, max=2**31 - 1)
    device: str = setting(
        "auto",
        "Device of the training: cpu, cuda, cuda:N (GPU number N, from 0) or mps; auto: a GPU if there is one, else "
        "cpu.",
    )
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "Number format of matrix products; auto: bfloat16 on a GPU, else float32."
    )
    parallelism: Literal["auto", "replicated", "sharded"] = setting(
        "auto",
        "Distribution of the weights over the processes (GPUs) of a training: replicated (each has all weights: data "
        "parallel) or sharded (each has a part: FSDP); auto: replicated.",
    )
    batch_layout: Literal["auto", "padded", "packed"] = setting(
        "auto",
        "Layout of a batch. padded: one row per pair. packed: all pairs in one row, without padding. auto: packed on "
        "a GPU if system and objective support it, else padded.",
    )
    compile: bool | None = setting(
        None,
        "Compile the training step with torch.compile on a GPU, which takes about a minute.",
        auto="true on a GPU if the training is so long that this saves more than a minute, else false",
    )
    deterministic: bool = setting(False, "Use deterministic GPU kernels: bit-identical results, somewhat slower.")

    def __post_init__(self) -> None:
        """Convert and check every setting, then check them against each other; raise a UserError for a wrong one."""
        super().__post_init__()
        if self.auto_batch_size and self.batch_tokens is not None:
            raise UserError(
                "training.auto_batch_size searches for the batch size that fits into memory, but "
                f"training.batch_tokens={self.batch_tokens} sets it: leave one of them out"
            )

    def resolved(self, name: str) -> Any:
        """Return the value of the setting `name`, or the fallback of its declaration if that is None.

        The value is None if neither the user nor the recipe (`training.recipe`, a set of training defaults) has set it.
        """
        value = getattr(self, name)
        return TRAINING_DEFAULTS.get(name) if value is None else value


#: fallback values of training settings that neither the user nor the recipe has set
TRAINING_DEFAULTS: dict[str, Any] = {
    name: declaration.fallback
    for name, declaration in settings_of(TrainingConfig).items()
    if declaration.fallback is not None
}
