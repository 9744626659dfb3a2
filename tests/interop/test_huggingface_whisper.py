"""Whisper: the same frames, logits and transcripts as transformers."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from huggingface_pairs import liven
from huggingface_tiny import TOLERANCE, change, read, theirs, transformers
from numpy.typing import NDArray
from tokenizers import models, pre_tokenizers

import dragoman
from dragoman.config import FeatureConfig
from dragoman.data.log_mel import read_log_mel
from dragoman.errors import UserError
from dragoman.interop.huggingface import import_checkpoint, read_checkpoint

SLOW = pytest.mark.slow
SIZES: dict[str, Any] = {
    **{"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 3},
    **{"decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 36, "num_mel_bins": 12},
    **{"max_source_positions": 50, "max_target_positions": 20, "vocab_size": 29},
    **{"pad_token_id": 2, "bos_token_id": 2, "eos_token_id": 2, "decoder_start_token_id": 3},
}
LANGUAGES, TASKS, NO_TIMESTAMPS = (
    {"<|en|>": 4, "<|de|>": 5},
    {"translate": 6, "transcribe": 7},
    28,
)  # timestamps follow it
GENERATION: dict[str, Any] = {
    **{"lang_to_id": LANGUAGES, "task_to_id": TASKS, "no_timestamps_token_id": NO_TIMESTAMPS, "is_multilingual": True},
    **{"language": "de", "task": "transcribe", "suppress_tokens": [3, 4, 5, 6, 7, 20, 28, 29, 30], "max_length": 12},
    **{"begin_suppress_tokens": [9, 10, 2], "decoder_start_token_id": 3, "return_timestamps": False},
}


def whisper(**settings: Any) -> Any:
    return theirs("WhisperForConditionalGeneration", "WhisperConfig", **(SIZES | settings))


def recordings(*seconds: float) -> list[NDArray[np.float64]]:
    """Tones with noise, 16,000 samples a second."""
    random = np.random.default_rng(4)
    times = [np.arange(int(length * 16_000)) / 16_000 for length in seconds]
    return [
        0.4 * np.sin(2 * np.pi * (300 + 500 * n) * time) + 0.1 * random.standard_normal(len(time))
        for n, time in enumerate(times)
    ]


def write_wav(path: Path, samples: NDArray[np.float64], rate: int = 16_000) -> NDArray[np.float32]:
    """Write a recording; return its samples as others read them."""
    numbers = np.clip(np.round(samples * 32768), -32768, 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(numbers.tobytes())
    return numbers.astype(np.float32) / 32768


def extractor(mel_bins: int, seconds: int) -> Any:
    return transformers.WhisperFeatureExtractor(feature_size=mel_bins, chunk_length=seconds)


@pytest.mark.parametrize(
    ("mel_bins", "seconds"), [(12, 1), pytest.param(80, 2, marks=SLOW), pytest.param(128, 1, marks=SLOW)]
)
def test_frames_equal_those_of_the_feature_extractor(tmp_path: Path, mel_bins: int, seconds: int) -> None:
    settings = FeatureConfig(spectrum="whisper", seconds=seconds, mel_bins=mel_bins)
    for samples in [*recordings(0.7, seconds, 0.01), np.zeros(500)]:
        heard = write_wav(tmp_path / "a.wav", samples)
        expected = extractor(mel_bins, seconds)(heard, sampling_rate=16_000, return_tensors="np").input_features[0].T
        with (tmp_path / "a.wav").open("rb") as file:
            frames = read_log_mel(file, "a.wav", settings)
        assert frames.shape == (seconds * 100, mel_bins)
        np.testing.assert_allclose(frames, expected, atol=2e-4)  # theirs are float32 throughout


def test_a_long_recording_is_several_parts(tmp_path: Path) -> None:
    heard = write_wav(tmp_path / "a.wav", recordings(1.4)[0])
    expected = extractor(12, 1)(heard, sampling_rate=16_000, return_tensors="np").input_features[0].T  # truncated
    with (tmp_path / "a.wav").open("rb") as file:
        frames = read_log_mel(file, "a.wav", FeatureConfig(spectrum="whisper", seconds=1, mel_bins=12))
    assert len(frames) == 200
    np.testing.assert_allclose(frames[:100], expected, atol=2e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_word_embeddings": False, "encoder_layers": 1, "decoder_layers": 3, "activation_function": "relu"},
        {"d_model": 30, "encoder_attention_heads": 5, "num_mel_bins": 7, "scale_embedding": True},
    ],
    ids=str,
)
@torch.no_grad()
def test_logits(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = whisper(**settings)
    checkpoint, mine = read(model, tmp_path)
    frames = torch.randn(3, 100, settings.get("num_mel_bins", 12))
    target = torch.randint(29, (3, 7))
    expected = model(input_features=frames.transpose(1, 2), decoder_input_ids=target, use_cache=False).logits
    logits = mine(frames, torch.tensor([100] * 3), target, torch.tensor([7] * 3))
    torch.testing.assert_close(logits, expected, **TOLERANCE)
    assert checkpoint.framing.languages is None  # no generation settings


def save(folder: Path, seed: int = 1, **generation: Any) -> Any:
    """A model with strong opinions, its tokenizer and its feature extractor in a folder."""
    torch.manual_seed(seed)
    model = whisper(tie_word_embeddings=False, vocab_size=31)
    liven(model, 2)
    for name, value in (GENERATION | generation).items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    words = ["<|endoftext|>", "<|startoftranscript|>", *LANGUAGES, *TASKS, *"abcdefghijklmnopqrst", "<|notimestamps|>"]
    library = tokenizers.Tokenizer(models.WordLevel({"x": 0, "y": 1} | {word: n + 2 for n, word in enumerate(words)}))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens([*words[:6], words[-1]])
    library.add_tokens(["<|0.00|>", "<|0.02|>"])
    transformers.PreTrainedTokenizerFast(tokenizer_object=library, eos_token=words[0]).save_pretrained(folder)
    extractor(12, 1).save_pretrained(folder)
    return model


@pytest.fixture
def wavs(tmp_path: Path) -> tuple[list[Path], torch.Tensor]:
    """Files of several lengths, and their frames by the extractor of transformers."""
    paths = [tmp_path / f"{n}.wav" for n in range(4)]
    heard = [write_wav(path, samples) for path, samples in zip(paths, recordings(0.4, 1.0, 0.9, 0.05))]
    return paths, extractor(12, 1)(heard, sampling_rate=16_000, return_tensors="pt").input_features


@pytest.mark.parametrize(
    ("generation", "beams"),
    [
        pytest.param({}, 1, marks=SLOW),
        ({"num_beams": 3}, 3),
        pytest.param({"num_beams": 3, "length_penalty": 2.0, "early_stopping": True}, 3, marks=SLOW),
        pytest.param({"task": "translate", "max_length": 448}, 1, marks=SLOW),
        pytest.param(
            {"language": None, "task": None, "forced_decoder_ids": [[1, 4], [2, 7]], "num_beams": 2}, 2, marks=SLOW
        ),
        pytest.param({"max_length": 20, "max_new_tokens": 5, "num_beams": 2, "length_penalty": 0.0}, 2, marks=SLOW),
    ],
    ids=str,
)
def test_transcripts_equal_generate(
    tmp_path: Path, wavs: tuple[list[Path], torch.Tensor], generation: dict[str, Any], beams: int
) -> None:
    paths, frames = wavs
    seen = set()
    for seed in range(3):
        folder = tmp_path / str(seed)
        model = save(folder, seed, **generation)
        found = model.generate(input_features=frames)
        run = dragoman.load(folder, device="cpu")
        expected = [[token for token in row if token not in range(2, 8) and token < 28] for row in found.tolist()]
        ours = run.translate(paths)
        tokens = [run.target_tokenizer.encode(one.text) for one in ours]
        assert tokens == expected
        assert run.config.search.beam_size == beams
        seen |= {tuple(row) for row in tokens}
    assert len(seen) > 4


@pytest.mark.parametrize("minimum", [{"min_new_tokens": 6}, {"min_length": 10}], ids=str)
def test_minimum_lengths_equal_generate(
    tmp_path: Path, wavs: tuple[list[Path], torch.Tensor], minimum: dict[str, int]
) -> None:
    """Both demand 6 tokens before EOS: only `min_length` counts BOS and the prompt, 4 tokens together."""
    paths, frames = wavs

    def transcripts(found: torch.Tensor) -> list[list[int]]:
        return [[token for token in row if token not in range(2, 8) and token < 28] for row in found.tolist()]

    unlimited = transcripts(save(tmp_path / "unlimited").generate(input_features=frames))
    expected = transcripts(save(tmp_path / "whisper", **minimum).generate(input_features=frames))
    assert min(map(len, unlimited)) < 6 == min(map(len, expected))
    run = dragoman.load(tmp_path / "whisper", device="cpu")
    assert [run.target_tokenizer.encode(one.text) for one in run.translate(paths)] == expected


@SLOW
def test_another_language_and_its_errors(tmp_path: Path, wavs: tuple[list[Path], torch.Tensor]) -> None:
    paths, frames = wavs
    model = save(tmp_path / "whisper", language=None)
    run = dragoman.load(tmp_path / "whisper", device="cpu")
    for language in ("en", "de"):
        found = model.generate(input_features=frames, language=language, task="transcribe")
        expected = [[token for token in row if token not in range(2, 8) and token < 28] for row in found.tolist()]
        ours = run.translate(paths, target_language=language)
        assert [run.target_tokenizer.encode(one.text) for one in ours] == expected
    with pytest.raises(UserError, match=r"give the target \(--to\) language, such as "):
        run.score(paths, ["a"] * 4)


def test_languages_are_recognized(tmp_path: Path, wavs: tuple[list[Path], torch.Tensor]) -> None:
    paths, frames = wavs
    seen = set()
    for seed in range(4):
        folder = tmp_path / str(seed)
        model = save(folder, seed, language=None)
        run = dragoman.load(folder, device="cpu")
        codes = {number: name[2:-2] for name, number in LANGUAGES.items()}
        expected = [codes[token] for token in model.detect_language(input_features=frames).tolist()]
        assert run.detect_languages(paths) == expected
        found = model.generate(input_features=frames, task="transcribe")
        tokens = [[token for token in row if token not in range(2, 8) and token < 28] for row in found.tolist()]
        assert [run.target_tokenizer.encode(one.text) for one in run.translate(paths)] == tokens
        *_, last = run.stream(paths[0])
        assert last.translation is not None
        assert run.target_tokenizer.encode(last.translation.text) == tokens[0]
        seen |= {*expected}
    assert seen == {"en", "de"}


def test_import_and_long_recordings(tmp_path: Path) -> None:
    save(tmp_path / "whisper")
    import_checkpoint(tmp_path / "whisper", tmp_path / "run", lambda text: None)
    run = dragoman.load(tmp_path / "run", device="cpu")
    assert (run.config.features.spectrum, run.config.features.seconds, run.max_source_length) == ("whisper", 1.0, 100)
    long, short = tmp_path / "long.wav", tmp_path / "short.wav"
    samples = recordings(1.5)[0]
    write_wav(long, samples)
    write_wav(short, samples[:16_000])
    first, second = run.translate([long, short])
    assert (first.truncated_source, second.truncated_source) == (True, False)
    assert first.text == second.text
    assert run.target_tokenizer.decode([29, 8, 28, 9, 30]) == "a b"  # without timestamps
    write_wav(short, samples, rate=8000)
    with pytest.raises(UserError, match=r"has 8,000 samples per second, but features.sample_rate is 16,000"):
        run.translate([short])


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("generation_config.json", {"task": "sing"}, "task 'sing', which is not supported"),
        ("generation_config.json", {"forced_decoder_ids": [[2, 7]], "task": None}, "with the positions 1, 2, …"),
        ("generation_config.json", {"language": "Klingon"}, "does not know the language 'Klingon'"),
        ("preprocessor_config.json", {"feature_size": 80}, "feature_size 80, which is not supported"),
        ("preprocessor_config.json", {"chunk_length": 30}, "correct chunk_length"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, file: str, fields: dict[str, Any], message: str) -> None:
    save(tmp_path)
    assert json.loads((tmp_path / file).read_text())
    change(tmp_path, file, **fields)
    with pytest.raises(UserError, match=message):
        read_checkpoint(tmp_path)
