"""A Marian transformer as one of our models: its spec, and the names of its weights."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.interop.huggingface.conversion import Conversion, WeightTransform
from dragoman.interop.marian.marian_options import MODEL_OPTIONS, MarianOptions
from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.embedding import Embedding
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Sinusoidal
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PostNorm, PreNorm, Stack
from dragoman.parts.visibility import Causal, Full
from dragoman.text.framing import Framing

MARIAN_NORM = LayerNorm(1e-6)
#: Marian's sinusoids: all sines, then all cosines, with frequencies from 1 to 1/10000
MARIAN_POSITIONS = Sinusoidal(sines_first=True, full_range=True)
MARIAN_DROPOUT = 0.1  # of a training that continues; the archive does not have that of the original one
OUTPUT_BIAS = "decoder_ff_logit_out_b"


def convert_marian(options: MarianOptions, framing: Framing, names: set[str]) -> Conversion:
    """Return our spec of a Marian transformer, and where its weights are stored.

    The decoder starts with a vector of zeros: the embedding of BOS, which Marian does not have, is a row of zeros after
    the others. `names` are those of the stored weights.
    """
    options.check_supported()  # raises an error that names an unsupported option
    source_tokens, target_tokens = options.vocabulary_sizes()
    source_rows = max(source_tokens, target_tokens) + 1  # sources are padded with BOS, whose id is `target_tokens`
    shared = options.flag("tied-embeddings-all") or options.flag("tied-embeddings-src")
    tied = options.flag("tied-embeddings-all") or options.flag("tied-embeddings")
    if shared and source_tokens != target_tokens:
        raise options.unsupported("dim-vocabs", [source_tokens, target_tokens], "tied embeddings need equal numbers")
    spec = EncoderDecoder(
        options.integer("dim-emb"),
        source_rows,
        target_tokens + 1,  # with BOS
        encoder=_stack(options, encoder=True),
        decoder=_stack(options, encoder=False),
        embedding=Embedding(scaled=True),
        shared_embeddings=shared,
        tied_embeddings=tied,
    )
    modules, transforms = _names_of_weights(options)
    source, target = ("Wemb", "Wemb") if shared else ("encoder_Wemb", "decoder_Wemb")
    untransposed = "decoder_ff_logit_out_W"  # name of the output matrix (D V) in earlier versions; now it is V D
    output = target if tied else untransposed if untransposed in names else "decoder_ff_logit_out_Wt"
    modules |= {"source_embedding.weight": source, "target_embedding.weight": target}
    modules |= {"output.weight": output, "output.bias": OUTPUT_BIAS}
    transforms["source_embedding.weight"] = _with_zero_rows(source_rows - source_tokens)
    transforms["target_embedding.weight"] = transforms["output.weight"] = _with_zero_rows(1)  # of BOS
    if output == untransposed:
        transforms["output.weight"] = lambda weight, layer: _append_zeros(weight.T, 1)
    transforms["output.bias"] = lambda bias, layer: _append_zeros(bias.flatten(), 1)
    optional = frozenset({"output.bias"}) if options.flag("output-omit-bias") else frozenset[str]()
    return Conversion(
        "transformer",
        spec,
        modules,
        framing,
        transforms=transforms,
        optional=optional,
        first_layer=1,  # Marian counts layers from 1
        config_name=MODEL_OPTIONS,
    )


def _stack(options: MarianOptions, encoder: bool) -> Stack:
    """Return the spec of the stack of layers of the encoder (`encoder` is True) or of the decoder."""
    heads, bias = options.integer("transformer-heads", 8), not options.flag("transformer-no-bias")
    ffn_dim = options.integer("transformer-dim-ffn", 2048)
    if not encoder and options.text("transformer-decoder-dim-ffn", "0") != "0":  # 0: that of the encoder
        ffn_dim = options.integer("transformer-decoder-dim-ffn")
    parts: list[Spec] = [SelfAttention(heads, visibility=Full() if encoder else Causal(), bias=bias)]
    if not encoder:
        parts.append(CrossAttention(heads, bias=bias))
    parts.append(FeedForward(ffn_dim, activation=options.activation(), bias=bias))
    residual = PreNorm if _is_pre_norm(options) else PostNorm
    # letters of operations: d dropout, a addition of the input, n norm
    has_input_norm = "n" in options.operations("transformer-postprocess-emb", "d", supported="dn")
    has_final_norm = "n" in options.operations("transformer-postprocess-top", "", supported="dn")
    return Stack(
        tuple(residual(part, norm=MARIAN_NORM, dropout=MARIAN_DROPOUT) for part in parts),
        depth=options.integer("enc-depth" if encoder else "dec-depth"),
        position=MARIAN_POSITIONS,
        dropout=MARIAN_DROPOUT,
        norm=MARIAN_NORM if has_final_norm else None,
        input_norm=MARIAN_NORM if has_input_norm else None,
    )


def _is_pre_norm(options: MarianOptions) -> bool:
    """Whether norms are before the layers (pre-norm), not after the additions (post-norm); else a UserError.

    The options name operations by letters: d dropout, a addition of the input, n norm.
    """
    before = options.operations("transformer-preprocess", "", supported="dn")
    after = options.operations("transformer-postprocess", "dan", supported="dan")
    has_one_norm = ("n" in before) != ("n" in after)
    is_norm_before_addition = "n" in after and after.find("n") < after.find("a")
    if "a" not in after or not has_one_norm or is_norm_before_addition:
        raise options.unsupported(
            "transformer-postprocess",
            f"{after!r} and transformer-preprocess {before!r}",
            "a layer must add its input, and have one norm: before it, or after the addition",
        )
    return "n" in before


#: our names of the weights of a part of a layer → Marian's, without the beginning `encoder_l1_` or `decoder_l1_`; `~`
#: stands for an ending that the names of norms before a layer have
SELF_ATTENTION_WEIGHTS = {
    "body.project.weight": "self_{Wq,Wk,Wv}",
    "body.project.bias": "self_{bq,bk,bv}",
    "body.output.weight": "self_Wo",
    "body.output.bias": "self_bo",
    "norm.weight": "self_Wo_ln_scale~",
    "norm.bias": "self_Wo_ln_bias~",
}
CROSS_ATTENTION_WEIGHTS = {
    "body.query.weight": "context_Wq",
    "body.query.bias": "context_bq",
    "body.project.weight": "context_{Wk,Wv}",
    "body.project.bias": "context_{bk,bv}",
    "body.output.weight": "context_Wo",
    "body.output.bias": "context_bo",
    "norm.weight": "context_Wo_ln_scale~",
    "norm.bias": "context_Wo_ln_bias~",
}
FEED_FORWARD_WEIGHTS = {
    "body.widen.weight": "ffn_W1",
    "body.widen.bias": "ffn_b1",
    "body.narrow.weight": "ffn_W2",
    "body.narrow.bias": "ffn_b2",
    "norm.weight": "ffn_ffn_ln_scale~",
    "norm.bias": "ffn_ffn_ln_bias~",
}
STACK_WEIGHTS = {
    "encoder": (SELF_ATTENTION_WEIGHTS, FEED_FORWARD_WEIGHTS),
    "decoder": (SELF_ATTENTION_WEIGHTS, CROSS_ATTENTION_WEIGHTS, FEED_FORWARD_WEIGHTS),
}


def _names_of_weights(options: MarianOptions) -> tuple[dict[str, str], dict[str, WeightTransform]]:
    """Return our name of every weight of the stacks → its stored name, and our name → how the weight is transformed.

    In a name, `*` is the number of the layer. Marian stores matrices transposed, vectors as matrices of one row.
    """
    norm_ending = "_pre" if _is_pre_norm(options) else ""
    modules: dict[str, str] = {}
    for side, parts in STACK_WEIGHTS.items():
        for number, weights in enumerate(parts):  # the parts of a layer
            for ours, theirs in weights.items():  # ~ is where the names of norms differ
                modules[f"{side}.layers.*.{number}.{ours}"] = f"{side}_l*_{theirs.replace('~', norm_ending)}"
        for ours, theirs in (("weight", "scale"), ("bias", "bias")):
            modules[f"{side}.input_norm.{ours}"] = f"{side}_emb_ln_{theirs}_pre"
            modules[f"{side}.norm.{ours}"] = f"{side}_top_ln_{theirs}"
    transforms: dict[str, WeightTransform] = {}
    for ours, theirs in modules.items():
        is_matrix = ".body." in ours and ours.endswith(".weight")
        matrices = theirs.count(",") + 1  # "self_{Wq,Wk,Wv}" are three
        transforms[ours] = _transpose_blocks(matrices) if is_matrix else _row_to_vector
    return modules, transforms


def _row_to_vector(weight: Tensor, layer: int) -> Tensor:
    """Return a vector, such as a bias, which Marian stores as a matrix of one row or of several concatenated rows.

    `layer` is not used: all transforms of weights have the same signature.
    """
    return weight.flatten()


def _transpose_blocks(count: int) -> WeightTransform:
    """Return a transform that transposes each of `count` matrices of one shape, which are concatenated along rows.

    A transform also gets the number of the layer, which is not used.
    """
    return lambda weight, layer: weight.unflatten(0, (count, -1)).transpose(1, 2).flatten(0, 1)


def _with_zero_rows(count: int) -> WeightTransform:
    """Return a transform that appends `count` rows of zeros to a matrix; the number of the layer is not used."""
    return lambda weight, layer: _append_zeros(weight, count)


def _append_zeros(weight: Tensor, count: int) -> Tensor:
    """Append `count` zeros to a vector, or rows of zeros to a matrix."""
    return torch.cat((weight, weight.new_zeros(count, *weight.shape[1:])))
