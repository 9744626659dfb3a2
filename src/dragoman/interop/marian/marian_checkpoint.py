"""Read a checkpoint in Marian's own format: model.npz, its options, and its vocabularies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dragoman.errors import UserError
from dragoman.interop.huggingface.converted_checkpoint import ConvertedCheckpoint, OpenedCheckpoint
from dragoman.interop.huggingface.safetensors_weights import StoredWeights
from dragoman.interop.marian.marian_model import convert_marian
from dragoman.interop.marian.marian_options import MODEL_OPTIONS, MarianOptions, read_yaml
from dragoman.interop.marian.marian_vocabularies import MARIAN_EOS, MARIAN_UNK, marian_tokenizer, read_vocabulary
from dragoman.interop.marian.npz_file import NpzFile
from dragoman.models import meta_model
from dragoman.text.framing import Framing
from dragoman.text.language_codes import LanguageCodes

DECODER_CONFIG = "decoder.yml"
VOCABULARY_PATTERNS = ("*.vocab.yml", "vocab*.yml", "vocab*.spm", "*.spm", "vocab*.json", "vocab*.txt")
MARIAN_BEAM_SIZE = 12  # Marian's default
MAX_TARGET_LENGTH = 512  # in tokens


def read_marian_checkpoint(path: Path) -> OpenedCheckpoint:
    """Convert a Marian checkpoint, an .npz file or the folder that holds it, to one of our models with its tokenizers.

    Nothing is unpickled, and no script of the folder is executed. Options that change what the model computes in a way
    that is not supported are refused by name, and so are vocabularies with more tokens than the model has embeddings.
    """
    folder = path if path.is_dir() else path.parent
    decoding = _decoder_options(path, folder)
    model_path = _model_file(folder, decoding) if path.is_dir() else path
    file = NpzFile(model_path)
    options = _model_options(file)
    weights = StoredWeights(
        {name: file for name in file if not name.startswith("special:")}, model_path, base_prefix=""
    )
    source_file, target_file = vocabularies = _vocabulary_files(folder, model_path, decoding)
    source_ids, target_ids = (read_vocabulary(vocabulary) for vocabulary in vocabularies)
    _check_sizes(options, vocabularies, source_ids, target_ids)
    source_size, target_size = options.vocabulary_sizes()
    bos = target_size  # Marian has no BOS: its id, and row of the embeddings, follows those of the target tokens
    eos, unk = target_ids[MARIAN_EOS], target_ids[MARIAN_UNK]
    framing = Framing(
        pad=bos,  # Marian has no padding token either
        bos=bos,
        eos=eos,
        source_suffix=(source_ids[MARIAN_EOS],),
        suppressed=(bos,) if decoding.flag("allow-unk") else (unk, bos),
        force_eos_at_limit=True,
    )
    source_model = _sentencepiece_file(folder, "source", source_file)
    target_model = _sentencepiece_file(folder, "target", target_file)
    source = marian_tokenizer(source_file, source_ids, bos=source_size, sentencepiece=source_model)
    is_shared = (source_file, source_model) == (target_file, target_model)
    target = source if is_shared else marian_tokenizer(target_file, target_ids, bos=bos, sentencepiece=target_model)
    if source.language_codes:
        codes = {code[2:-2]: index for code, index in source.language_codes.items()}  # >>deu<< becomes deu
        languages = LanguageCodes(codes, source_position="none", target_position="source_prefix")
        framing = replace(framing, languages=languages)
    conversion = convert_marian(options, framing, set(weights))
    # a meta model has shapes, but no values
    shapes = {name: weight.shape for name, weight in meta_model(conversion.spec).named_parameters()}
    # options that are numbers: an error names those that contradict the shape of a weight
    number_options = {name: int(value) for name, value in options.values.items() if str(value).isdecimal()}
    checkpoint = ConvertedCheckpoint(
        "Marian transformer",
        system=conversion.system,
        spec=conversion.spec,
        weights=conversion.convert(weights, shapes, number_options),
        framing=framing,
        generation=_generation(decoding, eos),
    )
    message = (
        f"{folder} has no SentencePiece models (source.spm and target.spm): texts must be tokenized as in the training "
        "of the model, with spaces between tokens"
    )
    return OpenedCheckpoint(checkpoint, source, target, messages=[] if source_model and target_model else [message])


def _model_options(file: NpzFile) -> MarianOptions:
    """Return the options of the model: from the archive, or else from the file model.npz.yml next to model.npz."""
    if MODEL_OPTIONS in file:
        # a text as numbers of bytes, with zeros at its end
        content = file[MODEL_OPTIONS].to(torch.uint8).numpy().tobytes().rstrip(b"\0")
        return MarianOptions.parse(content, f"{MODEL_OPTIONS} in {file.path}")
    beside = file.path.with_name(f"{file.path.name}.yml")
    if beside.is_file():
        return MarianOptions(read_yaml(beside), str(beside))
    raise UserError(
        f"the Marian options of {file.path} are missing: it has no entry {MODEL_OPTIONS}, and there is no "
        f"{beside.name} next to it: name a model file that Marian wrote"
    )


def _decoder_options(path: Path, folder: Path) -> MarianOptions:
    """Return the options of Marian's decoder for a model at `path`, in `folder`: those of the first file that exists.

    For a file model.npz, these are model.npz.decoder.yml, decoder.yml and model.npz.yml; for a folder, decoder.yml,
    *.npz.decoder.yml and *.npz.yml. Without any of them there are no options.
    """
    candidates = [folder / DECODER_CONFIG]
    if path.is_file():
        candidates = [path.with_name(f"{path.name}.decoder.yml"), *candidates, path.with_name(f"{path.name}.yml")]
    else:
        candidates += sorted(folder.glob("*.npz.decoder.yml")) + sorted(folder.glob("*.npz.yml"))
    for candidate in candidates:
        if candidate.is_file():
            return MarianOptions(read_yaml(candidate), str(candidate))
    return MarianOptions({}, str(folder))


def _model_file(folder: Path, decoding: MarianOptions) -> Path:
    """Return the model in a folder: the one that `decoding`, the decoder's options, names, or the only .npz file."""
    models_option = decoding.values.get("models") or []  # a name or a list of names
    names = models_option if isinstance(models_option, list) else [models_option]
    if len(names) == 1:
        path = folder / Path(str(names[0])).name  # the directories in the name are those of the training machine
        if path.is_file():
            return path
        raise UserError(
            f"{decoding.origin} names the model {names[0]}, but the folder {folder} has no file {path.name}: get this "
            "file, or correct the name"
        )
    models = sorted(folder.glob("*.npz"))
    if len(models) == 1:
        return models[0]
    if not models:
        raise UserError(f"{folder} has no model of Marian (*.npz): name a folder that has one, or the file itself")
    raise UserError(f"{folder} has {len(models)} models (*.npz), but one is needed: name one, such as {models[0]}")


def _vocabulary_files(folder: Path, model_path: Path, decoding: MarianOptions) -> tuple[Path, Path]:
    """Return the vocabularies of source and target: those that the decoder's options name, or files with a usual name.

    Without names, the files of the first pattern in VOCABULARY_PATTERNS that has any are taken.
    """
    names = decoding.values.get("vocabs")
    if isinstance(names, list) and len(names) == 2:
        # the directories in the names are those of the training machine
        paths = [folder / Path(str(name)).name for name in names]
        for name, path in zip(names, paths):
            if not path.is_file():
                raise UserError(
                    f"{decoding.origin} names the vocabulary {name}, but the folder {folder} has no file {path.name}: "
                    "get this file, or correct the name"
                )
        return paths[0], paths[1]
    for pattern in VOCABULARY_PATTERNS:
        # source.spm and target.spm only segment texts
        paths = [path for path in sorted(folder.glob(pattern)) if path.name not in ("source.spm", "target.spm")]
        if paths:
            if len(paths) <= 2:  # one for source and target, or one for each
                return paths[0], paths[-1]
            break  # it is not known which of more files are meant
    raise UserError(
        f"it is unclear which files are the vocabularies of {model_path}: name them in {folder / DECODER_CONFIG}, as "
        "'vocabs: [source.vocab.yml, target.vocab.yml]'"
    )


def _sentencepiece_file(folder: Path, side: str, vocabulary: Path) -> Path | None:
    """Return the SentencePiece model that segments the texts of a side, "source" or "target"; None without one.

    It is the vocabulary itself if that is a SentencePiece model, or else the file source.spm or target.spm.
    """
    if vocabulary.suffix == ".spm":
        return vocabulary
    path = folder / f"{side}.spm"
    return path if path.is_file() else None


def _check_sizes(
    options: MarianOptions, paths: tuple[Path, Path], source: dict[str, int], target: dict[str, int]
) -> None:
    """Raise a UserError if a vocabulary has more tokens than the model has embeddings.

    `source` and `target` are the ids of the tokens in the vocabulary files `paths`.
    """
    for path, ids, size in zip(paths, (source, target), options.vocabulary_sizes()):
        if max(ids.values()) >= size:
            raise UserError(
                f"the vocabulary {path} has {max(ids.values()) + 1:,} tokens, but the model has only {size:,} "
                "embeddings: get vocabulary and weights of the same model"
            )


def _generation(decoding: MarianOptions, eos: int) -> dict[str, Any]:
    """Return the settings of the search, under transformers' names, from `decoding`, the options of Marian's decoder.

    Marian's `normalize` is the exponent of the length by which scores are divided. A target that reaches the maximum
    length ends with the token id `eos`.
    """
    return {
        "num_beams": decoding.integer("beam-size", MARIAN_BEAM_SIZE),
        "length_penalty": decoding.number("normalize", 0.0),
        "max_length": MAX_TARGET_LENGTH,
        "forced_eos_token_id": eos,
    }
