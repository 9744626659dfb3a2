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
        auto="by the text: hard-monotonic for few pairs of words whose letters keep their order, else transformer; or "
        "the system of the run in training.start_from",
    )
    size: str | None = setting(
        None, "Model size: tiny, small, base or big.", auto="from the amount of data and the device"
    )
    settings: dict[str, Any] = setting(
        {},
        "Hyper-parameters of the system, such as {model_dim: 512, dropout: 0.1}; `dragoman systems NAME` lists them. "
        "Those that are left out follow from system.size.",
    )


@dataclass(frozen=True)
class ObjectiveConfig(Section, section="objective"):
    """Training objective."""

    name: str | None = setting(
        None,
        "What is learned from the data: translation, reward, causal-lm, masked-lm, denoising, span-corruption, "
        "tagging, classification or another objective of docs/settings.md.",
        auto="from the system and the kind of data",
    )
    settings: dict[str, Any] = setting(
        {},
        "Settings of the objective, such as {mask_rate: 0.15}; docs/settings.md lists them. Those that are left out "
        "have their defaults.",
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
        "Batch size in tokens: number of pairs × tokens of the longest source or target, padding included.",
        min=1,
        auto="from the amount of data and the device",
    )
    batch_by: Literal["row", "pair"] = setting(
        "row",
        "How the tokens of a pair are counted for training.batch_tokens. row: by the sequence that the model reads "
        "(for a decoder-only model, source and target together). pair: by the longer of source and target, which gives "
        "all systems the same batches.",
    )
    auto_batch_size: bool = setting(
        False, "Before training, find the largest training.batch_tokens that fits into memory by trying."
    )
    gradient_checkpointing: bool | None = setting(
        None,
        "Recompute activations in the backward pass: about a third more time, much less memory.",
        auto="true if training would not fit into memory otherwise",
    )
    gradient_accumulation: int = setting(
        1, "Number of batches whose gradients are summed for one optimizer step.", min=1
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
        "Maximum training time in minutes, including validation. The learning-rate schedule is fitted to end then.",
        min=0,
        auto="no limit",
    )
    patience: int | None = setting(
        8,
        "Stop after this many validations without improvement of training.selection_metric or the loss; null: never.",
        min=1,
    )
    learning_rate: float | None = setting(
        None, "Peak learning rate.", min=0, max=1e3, auto="from the model width and training.recipe"
    )
    warmup_steps: int | None = setting(
        None, "Steps of linear warm-up to the peak learning rate.", min=0, auto="from the number of steps"
    )
    extended_at: int = setting(
        0,
        "Step at which `train --resume` last extended a finished run; 0: never. Written by the program: do not set it.",
    )
    recipe: Literal["auto", "textbook", "modern", "plain"] = setting(
        "auto",
        "Set of defaults for optimizer, schedule and regularization. textbook: as in the paper of the system. modern: "
        "Muon with a cosine schedule. plain: AdamW with an inverse-square-root schedule. auto: modern for systems that "
        "learn better with it, else plain.",
    )
    schedule: Schedule | None = setting(
        None,
        "Learning-rate schedule after the warm-up. inverse-sqrt: ∝ 1/√step. constant: the peak. cosine, linear: decay "
        "in this shape until the end of training. stable: constant, then a decay by 1 − √progress in the last "
        "training.decay_fraction of training. halving: halved every training.halving_interval epochs. plateau: "
        "multiplied by training.plateau_factor after each validation without a lower loss.",
        fallback="inverse-sqrt",
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
        "With training.schedule=plateau: factor by which the learning rate is multiplied after each validation without "
        "a lower loss.",
        min=0,
        max=1,
        fallback=0.1,
    )
    optimizer: Optimizer | None = setting(
        None,
        "Optimizer: adamw, adam, sgd, adadelta, adafactor, or muon (which leaves embeddings and vectors to AdamW).",
        fallback="adamw",
    )
    momentum: float | None = setting(
        None, "Momentum of sgd, adafactor and muon.", min=0, max=0.99999, auto="0 for sgd and adafactor, 0.95 for muon"
    )
    nesterov: bool | None = setting(None, "Use Nesterov momentum in sgd.", fallback=False)
    beta1: float | None = setting(
        None, "β₁ of Adam and AdamW: decay of the mean of gradients.", min=0, max=0.99999, fallback=0.9
    )
    beta2: float | None = setting(
        None, "β₂ of Adam and AdamW: decay of the mean of squared gradients.", min=0, max=0.9999999, fallback=0.98
    )
    epsilon: float | None = setting(
        None, "ε of Adam and AdamW: added to the denominator of an update.", min=0, max=1, fallback=1e-9
    )
    weight_decay: float | None = setting(
        None, "Decoupled weight decay of adamw and muon (Loshchilov and Hutter 2019).", min=0, max=10, fallback=0.01
    )
    loss_normalization: Literal["tokens", "sentences"] | None = setting(
        None,
        "What the summed loss of a training step is divided by: its number of target tokens, or of sentences.",
        fallback="tokens",
    )
    clip_norm: float | None = setting(
        None, "Maximum norm of the gradient; larger gradients are scaled down. 0: no clipping.", min=0, fallback=1.0
    )
    label_smoothing: float | None = setting(
        None,
        "Label smoothing ε (Szegedy et al. 2016): share of the target probability that is spread evenly over the "
        "vocabulary.",
        min=0,
        max=0.999,
        auto="0.1 for translation, else 0",
    )
    validation_interval: int | None = setting(
        None, "Training steps between two validations.", min=1, auto="about one epoch"
    )
    validation_sentences: int | None = setting(
        None,
        "Validation sentences that are decoded at each validation, for BLEU, exact match and other metrics of texts.",
        min=0,
        auto="as many as can be decoded in about a tenth of the training time",
    )
    selection_metric: SelectionMetric = setting(
        "auto",
        "Validation metric that decides which checkpoint is the best. Ties are broken by the symbol or character error "
        "rate, then by the loss. training.patience counts validations in which neither this metric nor the loss "
        "improves. Error rates: ier (items: lines that differ from the reference), wer (words), ser (symbols between "
        "spaces), per (phonemes), cer (characters), ter (translation edit rate). auto: by the validation references, "
        "such as bleu for sentences and exact_match for single words. rouge of stems needs the package rouge-score.",
    )
    bleu_tokenizer: Literal[
        "auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200", "spBLEU-1K", "none"
    ] = setting(
        "auto",
        "Tokenizer of sacreBLEU for the BLEU of this run; auto: by the script of the references, 13a where words are "
        "separated by spaces.",
    )
    keep_checkpoints: int = setting(5, "Number of recent validated checkpoints to keep, besides the best.", min=1)
    keep_history: int = setting(
        0,
        "Maximum number of further checkpoints to keep, which show how a translation changed in training. They hold "
        "the weights, without the state of the optimizer, of the steps 0, 1, 2, 3, 4, 6, 8, 11, 16 …; if these are "
        "too many, those that are close to others are removed. 0: none.",
        min=0,
    )
    mirror: str | None = setting(
        None,
        "Path or URL of a copy of the run folder, such as s3://bucket/runs/en-de. Every checkpoint is copied, and "
        "machines without the run folder fetch it. None: no copy.",
    )
    average_checkpoints: bool = setting(
        True,
        "At the end of training, average the weights of the kept checkpoints (training.keep_checkpoints), and use the "
        "average if it validates better than the best checkpoint.",
    )
    ema_decay: float | None = setting(
        None,
        "Decay per step of an exponential moving average of the weights, such as 0.999. Validation and inference use "
        "the average.",
        min=0,
        max=0.9999999,
        auto="no average",
    )
    start_from: str | None = setting(
        None,
        "Run folder, or folder of a Hugging Face checkpoint, that provides the initial weights, the tokenizers and the "
        "system (warm start). The model is validated with these weights before step 1. None: random initial weights.",
    )
    freeze: tuple[str, ...] = setting(
        (),
        "Weights that are not trained: `embeddings`, the beginning of names up to a dot (encoder, decoder.layers.0), "
        "or a pattern such as *.bias; a later pattern with ! makes exceptions, as in [*, '!*norm*']. They have no "
        "optimizer state, and are stored once, in the folder `initial` of the run, instead of in each checkpoint. "
        "Empty: all weights are trained.",
    )
    seed: int = setting(1, "Random seed of initialization, data order and dropout.", min=0, max=2**31 - 1)
    device: str = setting("auto", "Device of the training: cpu, cuda, cuda:N or mps; auto: a GPU if there is one.")
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "Number format of matrix products; auto: bfloat16 on a GPU, else float32."
    )
    parallelism: Literal["auto", "replicated", "sharded"] = setting(
        "auto",
        "Distribution of the weights over processes: replicated (data parallel) or sharded (FSDP); auto: replicated.",
    )
    batch_layout: Literal["auto", "padded", "packed"] = setting(
        "auto",
        "Layout of a batch. padded: one row per pair. packed: all pairs in one row, without padding. auto: packed on a "
        "GPU where the system supports it.",
    )
    compile: bool | None = setting(
        None,
        "Compile the training step on a GPU, which takes about a minute.",
        auto="true if the training is long enough to save more than that",
    )
    deterministic: bool = setting(False, "Use deterministic GPU kernels: bit-identical results, somewhat slower.")

    def __post_init__(self) -> None:
        """Convert and check every setting, then check them against each other; raise a UserError for a wrong one."""
        super().__post_init__()
        if self.auto_batch_size and self.batch_tokens is not None:
            raise UserError(
                f"training.auto_batch_size searches for the batch size, but training.batch_tokens={self.batch_tokens} "
                "sets it: leave one of them out"
            )

    def resolved(self, name: str) -> Any:
        """Return the value of a setting, or the fallback of its declaration if it is None.

        It is None if neither the user nor the recipe (`training.recipe`, a set of training defaults) has set it.
        """
        value = getattr(self, name)
        return TRAINING_DEFAULTS.get(name) if value is None else value


#: fallback values of training settings that neither the user nor the recipe has set
TRAINING_DEFAULTS: dict[str, Any] = {
    name: declaration.fallback
    for name, declaration in settings_of(TrainingConfig).items()
    if declaration.fallback is not None
}
