"""Embeddings of tokens, image patches and acoustic frames, and the output layer that maps vectors to logits."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.parts.feedforward import ACTIVATIONS, Activation
from dragoman.parts.flops import Workload, module_flops
from dragoman.parts.mixer import Context, CopyDistribution, MixerOutput, SequenceLayout
from dragoman.parts.spec import Spec
from dragoman.text import Tokenizer


def is_embedding_table(module: nn.Module) -> bool:
    """Whether the rows of the module's weight are vectors of tokens, positions or labels, not a linear map.

    Modules other than nn.Embedding say so in an attribute of this name.
    """
    return isinstance(module, nn.Embedding) or getattr(module, "is_embedding_table", False)


class SourceEmbedding(nn.Module):
    """Maps a source, token ids or feature vectors, to vectors for the encoder."""

    stride = 1  # source positions per output position
    supports_packing = True

    def embed_source(self, source: Tensor, layout: SequenceLayout) -> tuple[Tensor, SequenceLayout]:
        """Embed a source, token ids B S or vectors of F features B S F: return vectors B S D, and their layout.

        Here the layout (positions and lengths) stays that of the source; subclasses may return shorter sequences.
        """
        return self(source), layout


@dataclass(frozen=True)
class Embedding(Spec):
    """A learned vector for each token, multiplied by √D if `scaled` (Vaswani et al. 2017, §3.4).

    `width` other than the model's: the stack projects the vectors (Lan et al. 2020). `word_dropout` is the probability
    of replacing all vectors of a token by zeros (Gal & Ghahramani 2016).
    """

    scaled: bool = False
    width: int | None = None
    word_dropout: float = 0.0

    def build_embedding(self, vocab_size: int, dim: int) -> TokenEmbedding:
        """Create the table of `vocab_size` vectors for a model of width `dim`."""
        return TokenEmbedding(self, vocab_size, dim)


class TokenEmbedding(SourceEmbedding):
    is_embedding_table = True

    def __init__(self, spec: Embedding, vocab_size: int, dim: int) -> None:
        """The table has `vocab_size` rows; vectors have `spec.width`, or the model's width `dim` by default.

        In the forward pass they are multiplied by `scale`: 1, or the square root of their width if `spec.scaled`.
        """
        super().__init__()
        self.width = spec.width or dim
        self.weight = nn.Parameter(torch.empty(vocab_size, self.width))
        self.scale = math.sqrt(self.width) if spec.scaled else 1.0
        self.word_dropout = spec.word_dropout

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up the vectors of tokens, B T → B T D, times `scale`, with word dropout in training.

        Word dropout sets the whole vectors of some tokens to zero and divides the others by the share that is kept.
        """
        x = nn.functional.embedding(tokens, self.weight)
        if self.training and self.word_dropout > 0:
            is_kept = torch.rand(tokens.shape, device=tokens.device) >= self.word_dropout
            x = x * (is_kept / (1 - self.word_dropout))[..., None].to(x.dtype)
        return x if self.scale == 1.0 else x * self.scale

    def flops(self, work: Workload) -> int:
        """Return 0, whatever the number of tokens: a look-up multiplies no matrices."""
        return 0


class RestrictedEmbedding(nn.Module):
    """Embedding of a restricted vocabulary: token i is `tokens[i]` of the table."""

    def __init__(self, table: nn.Module, tokens: Tensor) -> None:
        """`table` embeds the whole vocabulary; `tokens` (N) are the ids in it of the restricted one."""
        super().__init__()
        self.table = table
        self.tokens: Tensor
        self.register_buffer("tokens", tokens, persistent=False)

    def forward(self, indices: Tensor) -> Tensor:
        """Indices into the restricted vocabulary, B T → vectors B T D."""
        return self.table(self.tokens[indices])


@dataclass(frozen=True)
class Transform(Spec):
    """A layer before the output layer: norm(f(W h + b)) (Devlin et al. 2019).

    It has the width of the embedding table that the output layer is tied to, otherwise `width`, by default the model's.
    """

    activation: Activation = "gelu"
    norm: Spec | None = None
    width: int | None = None

    def build_layer(self, dim: int, width: int) -> TransformLayer:
        """Create the layer norm(f(W h + b)) from width `dim` to `width`."""
        return TransformLayer(self, dim, width)


class TransformLayer(nn.Module):
    def __init__(self, spec: Transform, dim: int, width: int) -> None:
        """norm(f(W x + b)): `dense` maps width `dim` to `width`, f is the spec's activation."""
        super().__init__()
        self.dense = nn.Linear(dim, width)
        self.activation = ACTIVATIONS[spec.activation]
        self.norm = spec.norm.build(width) if spec.norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """norm(f(W x + b)): … dim → … width."""
        return self.norm(self.activation(self.dense(x)))


class OutputLayer(nn.Module):
    """Logits W h + b, W being the embedding table `tied`, if any (Press & Wolf 2017).

    `transform` is applied to h first; `scaled` multiplies h by 1/√D (Raffel et al. 2020).
    """

    is_embedding_table = True
    is_identity = False  # whether it returns hidden states instead of logits
    reads_log_probs = False  # whether its inputs are log-probabilities, B T V, which it returns as they are
    is_mixture = False  # whether its logits are logarithms of sums of probabilities, which round more

    def __init__(
        self,
        outputs: int,
        dim: int,
        tied: TokenEmbedding | None,
        bias: bool,
        transform: Transform | None = None,
        scaled: bool = False,
    ) -> None:
        """Logits W h + b for vectors h of width `dim`; W is the embedding table `tied`, or a new one of `outputs` rows.

        `transform` is a layer before it, which also maps h to the width of W; without one, a linear layer does so if
        the widths differ. `scaled` divides h by √dim.
        """
        super().__init__()
        own_width = transform.width if transform is not None and transform.width else dim
        width = own_width if tied is None else tied.width  # of W
        self.scale = 1 / math.sqrt(dim) if scaled else 1.0
        self.transform: nn.Module
        if transform is not None:
            self.transform = transform.build_layer(dim, width)
        else:
            self.transform = nn.Identity() if width == dim else nn.Linear(dim, width)
        self.weight = nn.Parameter(torch.empty(outputs, width)) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def output_features(self, x: Tensor) -> Tensor:
        """Return the vectors that are multiplied by W: the transformed and scaled input, B T D → B T (width of W)."""
        x = self.transform(x)
        return x if self.scale == 1.0 else x * self.scale

    def match_vocabularies(self, source: Tokenizer, target: Tokenizer) -> None:
        """Do nothing: only output layers that copy need to know which source tokens are equal to target tokens."""

    def copied_tokens(self, source: Tensor, layout: SequenceLayout, width: int) -> Tensor | None:
        """Return None: this output layer copies no source tokens.

        Layers that do return the target token as which each source token (B S) is copied, −1 for none: B `width`. The
        layout says which positions are padding; `width` is the length of the encoder's output.
        """
        return None

    def add_copy_probabilities(self, decoded: MixerOutput, context: Context) -> MixerOutput:
        """Return the decoder's result unchanged: this output layer copies no source tokens.

        Layers that do attend to the encoded source (in the context) and add the probabilities of copying its tokens.
        """
        return decoded

    def logits(self, x: Tensor, copying: CopyDistribution | None = None) -> Tensor:
        """Return the logits of all V tokens, … D → … V.

        `copying`, the probabilities of copying source tokens, is used by output layers that copy; here it is None.
        """
        return self(x)

    def restrict_vocabulary(self, tokens: Tensor) -> OutputLayer:
        """Return an output layer that computes the logits of N `tokens` (ids) only, in this order."""
        layer = copy(self)
        layer._parameters = dict(self._parameters)  # replace parameters of the copy only
        layer.weight = nn.Parameter(self.weight.detach()[tokens], requires_grad=False)  # N D
        layer.bias = None if self.bias is None else nn.Parameter(self.bias.detach()[tokens], requires_grad=False)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """Logits of all V tokens: the decoder's outputs, B T D → B T V."""
        return nn.functional.linear(self.output_features(x), self.weight, self.bias)


class IdentityOutput(OutputLayer):
    """No output layer: returns the hidden states, B T D."""

    is_identity = True

    def __init__(self) -> None:
        """Create an output layer without weights."""
        nn.Module.__init__(self)  # not that of `OutputLayer`, which creates a weight

    def forward(self, x: Tensor) -> Tensor:
        """Return x, B T D, unchanged."""
        return x


class LogProbabilityOutput(IdentityOutput):
    """The output layer of models that compute log-probabilities themselves, such as mixtures: returns them, B T V."""

    is_identity = False
    reads_log_probs = is_mixture = True

    def restrict_vocabulary(self, tokens: Tensor) -> OutputLayer:
        """Return the layer itself: the model computes the log-probabilities of `tokens` (N) only."""
        return self


def check_features(source: Tensor, features: int) -> None:
    """Raise an error unless the source consists of feature vectors, B S F, with F = `features` numbers each."""
    if source.dim() != 3 or source.shape[-1] != features:
        raise UserError(
            f"this model reads batches of shape batch × length × {features} (vectors of {features} numbers), but got "
            f"the shape {' × '.join(map(str, source.shape))}: compute the features as for its training"
        )


@dataclass(frozen=True)
class Patches(Spec):
    """W x + b for each image patch of `features` pixel values (Dosovitskiy et al. 2021, §3.1, eq. 1).

    There is no class token: the decoder attends to all patches.
    """

    features: int

    def build(self, dim: int) -> PatchEmbedding:
        """Create the embedding of patches for a model of width `dim`."""
        return PatchEmbedding(self, dim)


class PatchEmbedding(SourceEmbedding):
    def __init__(self, spec: Patches, dim: int) -> None:
        """A linear layer from `spec.features` pixel values to the model's width `dim`."""
        super().__init__()
        self.features = spec.features
        self.project = nn.Linear(spec.features, dim)

    def forward(self, source: Tensor) -> Tensor:
        """Embed image patches of F pixel values, B S F → B S D."""
        check_features(source, self.features)
        return self.project(source)


@dataclass(frozen=True)
class Frames(Spec):
    """Subsampling of acoustic frames: each layer y_t = ReLU(W [x_{2t−1}; x_{2t}; x_{2t+1}] + b) halves their number.

    `stride` 4 means two layers (Dong et al. 2018, §3), which here convolve over time only, not over frequencies; then a
    projection. x is zero before the first and after the last frame.

    Whisper (Radford et al. 2023, §2.2) has GELU as activation, a `full_rate_layer`, which convolves without reducing
    the number of frames, then one layer that halves it, and no `projection`.
    """

    features: int
    stride: int = 4
    activation: Activation = "relu"
    full_rate_layer: bool = False
    projection: bool = True

    def build(self, dim: int) -> FrameEmbedding:
        """Create the embedding of frames for a model of width `dim`."""
        return FrameEmbedding(self, dim)


class FrameEmbedding(SourceEmbedding):
    supports_packing = False

    def __init__(self, spec: Frames, dim: int) -> None:
        """Create log₂(stride) convolutions (`halve`) over three frames each, which halve the number of frames.

        Optionally there is one before them that keeps the number (`full_rate`), and a projection to `dim` after them. A
        stride that is no power of two, or neither a convolution nor a projection, raises a UserError.
        """
        super().__init__()
        num_layers = spec.stride.bit_length() - 1  # log₂
        if spec.stride != 2**num_layers:
            raise UserError(
                f"system.settings.stride is the factor by which convolutions shorten a recording, and must be a power "
                f"of two, such as 4, but is {spec.stride}: set it to 1, 2, 4 or 8"
            )
        if not spec.projection and not (num_layers or spec.full_rate_layer):
            raise UserError(
                "the source vectors need a convolution or a projection to the width of the model: set "
                "system.settings.stride to 2 or more, or full_rate_layer or projection to true"
            )
        self.features, self.stride = spec.features, spec.stride
        self.activation = ACTIVATIONS[spec.activation]
        self.full_rate = nn.Linear(3 * spec.features, dim) if spec.full_rate_layer else None
        width = dim if spec.full_rate_layer else spec.features  # of the frames before they are halved
        self.halve = nn.ModuleList(nn.Linear(3 * (dim if i > 0 else width), dim) for i in range(num_layers))
        self.project = nn.Linear(dim if num_layers else width, dim) if spec.projection else nn.Identity()

    def embed_source(self, source: Tensor, layout: SequenceLayout) -> tuple[Tensor, SequenceLayout]:
        """Embed frames of sound, B S F, whose lengths the layout holds: vectors B ⌈S/stride⌉ D, and their layout.

        F is the number of values of a frame. The layer `full_rate`, if any, keeps the number of frames, each of `halve`
        halves it. Frames of another width, or rows of several recordings, raise a UserError.
        """
        check_features(source, self.features)
        if layout.lengths is None:
            raise UserError(
                "the frames of several recordings are packed into one row of the batch, but convolutions need one row "
                "for each recording: set training.batch_layout to padded"
            )
        x = source
        if self.full_rate is not None:
            x = self.activation(self.full_rate(windows(_without_padding(x, layout), step=1)))
        for layer in self.halve:
            assert layout.lengths is not None
            x = self.activation(layer(windows(_without_padding(x, layout), step=2)))
            layout = SequenceLayout.padded(x.shape[1], (layout.lengths + 1) // 2)
        return self.project(x), layout

    def flops(self, work: Workload) -> int:
        """FLOPs for `work.tokens` frames: each layer for the frames that it returns, and the projection."""
        total = 0 if self.full_rate is None else module_flops(self.full_rate, work)
        frames = work.tokens
        for layer in self.halve:
            frames = (frames + 1) // 2
            total += module_flops(layer, work.with_tokens(frames))
        return total + module_flops(self.project, work.with_tokens(frames))


def _without_padding(x: Tensor, layout: SequenceLayout) -> Tensor:
    """Return x, B S F (F numbers per frame), with zeros in place of padding, after the last frame of a recording."""
    return x.masked_fill(~cast(Tensor, layout.token_mask)[..., None], 0.0)


def windows(x: Tensor, step: int) -> Tensor:
    """Concatenate every vector (`step` 1), or every second one (2), with its two neighbours: B S F → B ⌈S/step⌉ 3F.

    F is the width of a vector. The neighbours of the first and the last vector are zeros.
    """
    count = -(-x.shape[1] // step)  # ⌈S/step⌉
    # B step·count+2 F: a vector of zeros at each end, and with step 2 another one after an odd number of vectors
    x = F.pad(x, (0, 0, 1, 1 + x.shape[1] % step))
    return torch.cat([x[:, start : start + step * count : step] for start in range(3)], -1)  # B ⌈S/step⌉ 3F
