"""Sound as log-mel frames: a WAV file becomes one vector of filter-bank energies per frame.

    frame t, windowed:   x_t[n] = s[t · shift + n] · (½ − ½ cos(2πn / N))      Hann window of N samples
    power spectrum:      P_t[k] = |FFT(x_t)[k]|²
    log energy:          y_t[m] = ln max(Σ_k W[m, k] P_t[k], 10⁻¹⁰)

W has triangular filters whose centers are equally spaced on the mel scale (Davis & Mermelstein 1980).
"""

from __future__ import annotations

import io
import struct
import wave
from collections.abc import Callable
from functools import lru_cache
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from dragoman.config import FeatureConfig
from dragoman.data.whisper_frames import whisper_log_mel
from dragoman.errors import UserError

MAX_SOUND_BYTES = 2**28  # 2.3 hours of 16,000 samples per second with 16 bits
MIN_ENERGY = 1e-10  # of a filter, in the logarithm
BLOCK_FRAMES = 4096  # whose spectra are in memory at a time
_PCM, _EXTENSIBLE = 1, 0xFFFE  # format tags of a WAV file

Samples = NDArray[np.float64]


def read_log_mel(file: BinaryIO, name: str, settings: FeatureConfig) -> NDArray[np.float32]:
    """Read a WAV file and return its log-mel frames, S F (frames × mel filters); `name` is for error messages.

    Its sample rate must be that of the settings.
    """
    samples, rate = read_samples(file, name)
    if rate != settings.sample_rate:
        raise UserError(
            f"{name} has {rate:,} samples per second, but features.sample_rate is {settings.sample_rate:,}: set "
            f"features.sample_rate={rate} if all files have this rate, or resample the file"
        )
    compute_frames = SPECTRA[settings.spectrum]  # "log-mel", or "whisper" with its own scale and normalization
    return compute_frames(samples, settings).astype(np.float32)


def read_samples(file: BinaryIO, name: str) -> tuple[Samples, int]:
    """Return the samples of a PCM WAV file, from −1 to 1, averaged over its channels, and the sample rate.

    A file that is too large, broken, truncated or without samples is a UserError, in which `name` stands for the file.
    """
    content = file.read(MAX_SOUND_BYTES + 1)
    if len(content) > MAX_SOUND_BYTES:
        raise UserError(
            f"{name} has more than {MAX_SOUND_BYTES:,} bytes, the largest size of a sound file: split the "
            "recording into shorter files, such as one for each sentence"
        )
    try:
        with wave.open(io.BytesIO(_with_plain_format(content))) as recording:
            channels, width, rate, count = recording.getparams()[:4]
            data = recording.readframes(count)
    except (wave.Error, EOFError, struct.error, ValueError, RuntimeError) as error:
        raise UserError(
            f"{name} cannot be read as a WAV file ({error or 'unexpected end'}): expected uncompressed PCM samples; "
            "convert it"
        ) from None
    if not count:
        raise UserError(f"the recording {name} contains no samples: remove it from the data")
    if len(data) != count * channels * width:
        raise UserError(
            f"{name} is truncated: its header announces {count:,} samples per channel, but there are "
            f"{len(data) // (channels * width):,}; replace the file"
        )
    return _decode_pcm(data, width, name).reshape(-1, channels).mean(1), rate


def _decode_pcm(data: bytes, width: int, name: str) -> Samples:
    """Decode little-endian PCM samples of `width` bytes to numbers from −1 to 1; single bytes are unsigned integers.

    Other samples are signed integers. `name` is that of the file, for error messages.
    """
    if width == 1:
        return np.frombuffer(data, np.uint8) / 128.0 - 1.0
    if width not in (2, 3, 4):
        raise UserError(f"{name} has samples of {8 * width} bits, but 8, 16, 24 or 32 are expected: convert it")
    padded = np.zeros((len(data) // width, 4), np.uint8)
    # as the highest bytes of integers of 32 bits, whose magnitude is at most 2³¹
    padded[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return padded.view("<i4")[:, 0] / 2.0**31


def _with_plain_format(content: bytes) -> bytes:
    """Return the bytes of a WAV file; the format tag of an “extensible” file of PCM samples is changed to plain PCM.

    The module `wave` of Python before 3.12 reads only files with that tag.
    """
    position = 12  # after "RIFF", the size and "WAVE"
    while position + 8 <= len(content):
        chunk, size = struct.unpack_from("<4sI", content, position)
        if chunk == b"fmt " and size >= 40 and position + 48 <= len(content):
            # the two bytes after the header of the chunk are the format tag; 24 bytes later is that of the samples
            (tag,), (subformat,) = (struct.unpack_from("<H", content, position + offset) for offset in (8, 32))
            if (tag, subformat) == (_EXTENSIBLE, _PCM):
                return content[: position + 8] + struct.pack("<H", _PCM) + content[position + 10 :]
        position += 8 + size + size % 2  # header and content of the chunk, whose size is made even
    return content


def normalized_log_mel(samples: Samples, settings: FeatureConfig) -> Samples:
    """Return the log-mel energies of samples, T M (frames × mel filters), normalized if the settings say so.

    Each filter is normalized over the recording to mean 0 and standard deviation 1.
    """
    features = log_mel(samples, settings)
    return (features - features.mean(0)) / (features.std(0) + 1e-5) if settings.normalize_utterances else features


def log_mel(samples: Samples, settings: FeatureConfig) -> Samples:
    """Return the log-mel energies of samples, T M (frames × mel filters); a last incomplete frame is dropped.

    A sound shorter than a frame is padded with zeros to one frame.
    """
    length, shift = frame_samples(settings)  # of a frame, in samples
    samples = np.pad(samples, (0, max(0, length - len(samples))))
    frames = np.lib.stride_tricks.sliding_window_view(samples, length)[::shift]  # T length, a view
    filters = mel_filters(settings.mel_bins, fft_size(length), settings.sample_rate)
    energies = [  # in blocks of frames, so that memory is bounded
        power_spectrum(frames[start : start + BLOCK_FRAMES]) @ filters.T
        for start in range(0, len(frames), BLOCK_FRAMES)
    ]
    return np.log(np.maximum(np.concatenate(energies), MIN_ENERGY))  # not log 0


def frame_samples(settings: FeatureConfig) -> tuple[int, int]:
    """Return the length and the shift of frames, which the settings have in milliseconds, in samples, at least 1."""
    rate = settings.sample_rate / 1000  # samples per millisecond
    return max(1, round(settings.frame_length * rate)), max(1, round(settings.frame_shift * rate))


def fft_size(length: int) -> int:
    """Return the smallest power of two that is at least the frame length (in samples), and at least 2."""
    return max(2, 1 << (length - 1).bit_length())


def power_spectrum(frames: Samples) -> Samples:
    """Return the power spectrum |FFT|² of frames, which are multiplied by the Hann window.

    `frames` are T frames of N samples; the result is T × (fft_size(N) / 2 + 1).
    """
    length = frames.shape[-1]  # N
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length) if length > 1 else np.ones(1)
    spectrum = np.fft.rfft(frames * window, fft_size(length))
    return spectrum.real**2 + spectrum.imag**2


def mel(frequency: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Convert Hz to mel: 2595 log₁₀(1 + f / 700) (O'Shaughnessy 1987)."""
    return 2595 * np.log10(1 + np.asarray(frequency) / 700)


def mel_centers(mel_bins: int, sample_rate: int) -> NDArray[np.float64]:
    """Return the frequencies at which the triangular filters begin, peak and end, in Hz.

    They are 0, the centers of the `mel_bins` filters, and half the sample rate, equally spaced on the mel scale,
    2595 log₁₀(1 + f / 700). Filter m begins at the center of filter m − 1 and ends at that of filter m + 1.
    """
    corners = np.linspace(0, mel(sample_rate / 2), mel_bins + 2)
    return 700 * (10 ** (corners / 2595) - 1)


@lru_cache(maxsize=8)
def mel_filters(mel_bins: int, size: int, sample_rate: int) -> NDArray[np.float64]:
    """Return the triangular filters W for an FFT of `size` samples, mel_bins × (size / 2 + 1).

    Filter m rises linearly from 0 at the center of filter m − 1 to 1 at its own center, and falls to 0 at the next. A
    filter without any frequency of the FFT is a UserError. Shapes: M = mel_bins filters, K frequencies.
    """
    corners = mel_centers(mel_bins, sample_rate)[:, None]  # M+2 1, in Hz: 0, the centers, the highest frequency
    frequencies = np.arange(size // 2 + 1) * sample_rate / size  # K: of the FFT
    widths = np.diff(corners, axis=0)  # M+1 1
    rising = (frequencies - corners[:-2]) / widths[:-1]
    falling = (corners[2:] - frequencies) / widths[1:]
    filters = np.maximum(0, np.minimum(rising, falling))  # M K
    if not filters.any(1).all():
        raise UserError(
            f"features.mel_bins={mel_bins} is too large: some mel filters contain none of the {size // 2 + 1} "
            "frequencies of a frame's spectrum; lower it, or raise features.frame_length"
        )
    return filters


#: how samples become vectors, by `features.spectrum`
SPECTRA: dict[str, Callable[[Samples, FeatureConfig], Samples]] = {
    "log-mel": normalized_log_mel,
    "whisper": whisper_log_mel,
}
