"""Log-mel frames: against formulas, sines and Parseval's theorem; WAV files of all widths; damaged ones are errors."""

from __future__ import annotations

import io
import math
import struct
import wave
from contextlib import suppress

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.config import FeatureConfig
from dragoman.data.log_mel import (
    fft_size,
    frame_samples,
    log_mel,
    mel_centers,
    mel_filters,
    power_spectrum,
    read_log_mel,
    read_samples,
)
from dragoman.errors import UserError

DEFAULT = FeatureConfig()
PLAIN = FeatureConfig(sample_rate=8000, mel_bins=40, normalize_utterances=False)


def recording(data: bytes, width: int = 2, channels: int = 1, rate: int = 8000) -> io.BytesIO:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(data)
    file.seek(0)
    return file


def sine(frequency: float, rate: int, seconds: float = 0.2) -> NDArray[np.float64]:
    return np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)


# ---- the computation


def test_frames_of_the_defaults() -> None:
    """25 and 10 ms at 16,000 samples per second are 400 and 160 samples; one second has 1 + (16000 − 400) // 160."""
    assert frame_samples(DEFAULT) == (400, 160)
    assert fft_size(400) == 512
    assert fft_size(512) == 512
    assert log_mel(np.zeros(16_000), DEFAULT).shape == (98, 80)
    assert log_mel(np.zeros(399), DEFAULT).shape == (1, 80)  # padded
    assert np.allclose(log_mel(np.zeros(400), DEFAULT), math.log(1e-10))


def test_power_spectrum_obeys_parseval() -> None:
    """Σ_n x[n]² = (1/N) Σ_k |X[k]|²; all frequencies but the first and the last occur twice."""
    frames = np.random.default_rng(0).normal(size=(3, 200))
    hann = np.array([math.sin(math.pi * n / 200) ** 2 for n in range(200)])
    power = power_spectrum(frames)
    assert power.shape == (3, 129)
    energy = (2 * power.sum(1) - power[:, 0] - power[:, -1]) / 256
    assert np.allclose(energy, ((frames * hann) ** 2).sum(1))


def test_power_spectrum_by_the_definition() -> None:
    frame = np.random.default_rng(1).normal(size=6)
    hann = [0.5 - 0.5 * math.cos(2 * math.pi * n / 6) for n in range(6)]
    for k, found in enumerate(power_spectrum(frame[None])[0]):
        terms = (hann[n] * frame[n] * np.exp(-2j * math.pi * k * n / 8) for n in range(6))
        assert found == pytest.approx(abs(sum(terms)) ** 2)


def test_filters_by_the_formula() -> None:
    """Triangles between neighboring centers, which are equally spaced in mel = 2595 log₁₀(1 + f / 700)."""
    bins, size, rate = 10, 256, 8000
    mels = [2595 * math.log10(1 + 4000 / 700) * m / (bins + 1) for m in range(bins + 2)]
    corners = [700 * (10 ** (value / 2595) - 1) for value in mels]
    assert np.allclose(mel_centers(bins, rate), corners)
    filters = mel_filters(bins, size, rate)
    assert filters.shape == (bins, size // 2 + 1)
    for m in range(bins):
        low, center, high = corners[m : m + 3]
        for k in range(size // 2 + 1):
            frequency = k * rate / size
            rising, falling = (frequency - low) / (center - low), (high - frequency) / (high - center)
            assert filters[m, k] == pytest.approx(max(0.0, min(rising, falling)))


def test_neighboring_filters_add_up_to_one() -> None:
    filters, centers = mel_filters(40, 512, 16_000), mel_centers(40, 16_000)
    frequencies = np.arange(257) * 16_000 / 512
    inner = (frequencies >= centers[1]) & (frequencies <= centers[-2])
    assert np.allclose(filters.sum(0)[inner], 1)


@pytest.mark.parametrize("number", [5, 10, 20, 30, 39])
def test_a_sine_peaks_in_the_nearest_filter(number: int) -> None:
    """Also if it is not exactly at the center, but a fifth of the way to the next one."""
    center, following = mel_centers(40, 8000)[number + 1 : number + 3]
    for frequency in (center, 0.8 * center + 0.2 * following):
        energies = log_mel(sine(frequency, 8000), PLAIN)
        assert set(energies.argmax(1)) == {number}


def test_louder_by_ten_is_log_100_more_everywhere() -> None:
    noise = np.random.default_rng(2).normal(size=2000)
    assert np.allclose(log_mel(10 * noise, PLAIN) - log_mel(noise, PLAIN), math.log(100))


def test_frames_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(3).normal(size=4000)
    expected = log_mel(noise, PLAIN)
    monkeypatch.setattr("dragoman.data.log_mel.BLOCK_FRAMES", 7)
    assert np.allclose(log_mel(noise, PLAIN), expected)


def test_the_first_frame_by_hand() -> None:
    """The second frame is the first frame of the sound without its first 80 samples."""
    noise = np.random.default_rng(4).normal(size=800)
    whole = log_mel(noise, PLAIN)
    assert np.allclose(whole[1:], log_mel(noise[80:], PLAIN))
    energy = power_spectrum(noise[None, :200])[0] @ mel_filters(40, 256, 8000)[5]
    assert whole[0, 5] == pytest.approx(math.log(energy))


def test_too_many_filters_are_an_error_that_names_the_setting() -> None:
    with pytest.raises(UserError, match=r"features\.mel_bins=200 is too large"):
        log_mel(np.zeros(1000), FeatureConfig(sample_rate=8000, mel_bins=200))


# ---- WAV files


@pytest.mark.parametrize(
    ("width", "data", "expected"),
    [
        (1, bytes([0, 64, 128, 192]), [-1, -0.5, 0, 0.5]),
        (2, struct.pack("<4h", -32768, -16384, 0, 16384), [-1, -0.5, 0, 0.5]),
        (3, b"\x00\x00\x80" + b"\x00\x00\xc0" + b"\x00\x00\x00" + b"\x01\x00\x40", [-1, -0.5, 0, 0.5 + 2**-23]),
        (4, struct.pack("<4i", -(2**31), -(2**30), 1, 2**30), [-1, -0.5, 2**-31, 0.5]),
    ],
)
def test_samples_of_every_width(width: int, data: bytes, expected: list[float]) -> None:
    samples, rate = read_samples(recording(data, width, rate=11_025), "it")
    assert rate == 11_025
    assert samples.tolist() == expected


def test_channels_are_averaged() -> None:
    stereo = struct.pack("<4h", 16384, 0, -32768, 16384)
    assert read_samples(recording(stereo, channels=2), "it")[0].tolist() == [0.25, -0.25]


def test_the_extensible_header() -> None:
    """Format tag 0xFFFE with the subformat PCM, as many programs write 24 bits."""
    samples = struct.pack("<2h", 16384, -16384)
    guid = struct.pack("<H", 1) + bytes.fromhex("000000001000800000aa00389b71")
    body = struct.pack("<HHIIHH", 0xFFFE, 1, 8000, 16_000, 2, 16) + struct.pack("<HHI", 22, 16, 4) + guid
    chunks = b"fmt " + struct.pack("<I", len(body)) + body + b"data" + struct.pack("<I", len(samples)) + samples
    content = b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks
    assert read_samples(io.BytesIO(content), "it")[0].tolist() == [0.5, -0.5]
    floats = content.replace(guid, struct.pack("<H", 3) + guid[2:])
    with pytest.raises(UserError, match="it cannot be read as a WAV file"):
        read_samples(io.BytesIO(floats), "it")


def test_normalization_of_an_utterance() -> None:
    noise = np.random.default_rng(5).integers(-9000, 9000, 4000).astype("<i2").tobytes()
    plain = read_log_mel(recording(noise), "it", PLAIN)
    normalized = read_log_mel(recording(noise), "it", FeatureConfig(sample_rate=8000, mel_bins=40))
    assert plain.dtype == normalized.dtype == np.float32
    assert np.allclose(normalized.mean(0), 0, atol=1e-5)
    assert np.allclose(normalized.std(0), 1, atol=1e-3)
    correlation = np.corrcoef(plain[:, 3], normalized[:, 3])[0, 1]
    assert correlation == pytest.approx(1)
    single = read_log_mel(recording(noise[:400]), "it", FeatureConfig(sample_rate=8000, mel_bins=40))
    assert np.array_equal(single, np.zeros((1, 40)))


def test_another_sample_rate_is_an_error_that_names_the_setting() -> None:
    expected = (
        r"a\.wav has 8,000 samples per second, but features\.sample_rate is 16,000: set features\.sample_rate=8000"
    )
    with pytest.raises(UserError, match=expected):
        read_log_mel(recording(bytes(800)), "a.wav", DEFAULT)


def test_broken_recordings_are_user_errors() -> None:
    whole = recording(bytes(range(200))).getvalue()
    for content, expected in {
        b"": "cannot be read as a WAV file",
        b"RIFF, but nothing else": "cannot be read as a WAV file",
        whole[:30]: "cannot be read as a WAV file",
        whole[:-50]: "is truncated: its header announces 100 samples per channel, but there are 75",
        recording(b"").getvalue(): "contains no samples",
    }.items():
        with pytest.raises(UserError, match=f"a.wav {expected}"):
            read_samples(io.BytesIO(content), "a.wav")
    random = np.random.default_rng(0)
    for _ in range(100):
        damaged = bytearray(whole[: random.integers(1, len(whole))])
        damaged[random.integers(len(damaged))] = random.integers(256)
        with suppress(UserError):
            assert read_samples(io.BytesIO(bytes(damaged)), "a.wav")[0].ndim == 1


def test_huge_recordings_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.data.log_mel.MAX_SOUND_BYTES", 100)
    with pytest.raises(UserError, match="has more than 100 bytes, the largest size of a sound file"):
        read_samples(recording(bytes(200)), "a.wav")
