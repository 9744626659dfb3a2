"""Export of runs from Python: `dragoman.export`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dragoman import console
from dragoman.interop.exporting import ExportOptions, ExportResult, check_export_folder, create_exporter, export_run
from dragoman.run import Run


def export(
    run: Run | str | Path,
    out: str | Path,
    to: str = "huggingface",
    *,
    dtype: str = "float32",
    checkpoint: str = "best",
    device: str | None = None,
    sentences: Sequence[str] | None = None,
    license: str = "",
    languages: tuple[str, str] | None = None,
    log: Callable[[str], None] | None = None,
) -> ExportResult:
    """Write a run in the format of another library, and verify the result with that library.

    The other library opens the new folder, and its teacher-forced logits and beam outputs are compared with ours on
    sample sentences. A difference is an error and leaves no folder. If the library is not installed, the folder is
    written and `ExportResult.check` is None.

    Args:
        run: a run, or its folder.
        out: the folder to create.
        to: the format: huggingface, ctranslate2 or onnx.
        dtype: number format of the weights: float32, float16 or bfloat16; for ctranslate2 also int8, int8_float32,
            int8_float16, int8_bfloat16 and int16.
        checkpoint: best, last, averaged, or a step, if `run` is a folder.
        device: auto (the default), cpu, cuda or cuda:N, if `run` is a folder.
        sentences: sample sentences of the verification; by default those of the run's validation set.
        license: licence of the model for its model card, such as mit or cc-by-4.0.
        languages: the default source and target language of a multilingual model, such as ("eng_Latn", "kin_Latn").
        log: receives messages about progress; by default they are printed on standard error.

    Examples:
        >>> result = dragoman.export(run, folder / "exported", "huggingface")
        >>> print(result.verification)
        verified with transformers …
    """
    options = ExportOptions(dtype, license)
    create_exporter(to, options)  # reports wrong arguments before the run is loaded
    check_export_folder(Path(out))
    if not isinstance(run, Run):
        from dragoman import load

        run = load(run, checkpoint, device)
    if languages is not None:
        run = run.with_languages(*languages)
    return export_run(run, Path(out), to, options, sentences, log or console.log)
