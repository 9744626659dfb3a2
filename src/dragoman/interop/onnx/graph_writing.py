"""Tracing of graphs with torch.export and their conversion to ONNX files."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dragoman.errors import UserError
from dragoman.interop.onnx.recurrent_operator import recurrent_layer
from dragoman.interop.onnx.step_graphs import Graph

MAX_SINGLE_FILE_BYTES = 1_500_000_000  # larger weights are stored beside the graph: protocol buffers end at 2 GiB
#: loggers with messages for the developers of torch's exporter
CHATTY_LOGGERS = ("torch.onnx", "torch.export", "torch._guards", "torch.fx", "torch._dynamo", "onnxscript", "onnx_ir")


def write_graph(graph: Graph, folder: Path) -> None:
    """Trace a graph, convert it to ONNX and write it to `folder`; an error names the part that cannot be traced."""
    dynamic = torch.export.Dim.DYNAMIC
    with torch.no_grad(), _quiet():
        try:
            dynamic_axes = {name: dict.fromkeys(axes, dynamic) for name, axes in graph.axes.items()}
            program = torch.export.export(
                graph.module,
                tuple(graph.inputs.values()),
                dynamic_shapes=_axes_by_argument(graph, dynamic_axes),
                strict=False,
            )
            converted = torch.onnx.export(
                program,
                input_names=list(graph.inputs),
                output_names=graph.outputs,
                dynamic_shapes=_axes_by_argument(graph, graph.axes),  # names of the dynamic axes
                custom_translation_table={torch.ops.dragoman.recurrent_layer.default: recurrent_layer},
                verbose=False,
            )
        except UserError:
            raise
        except Exception as error:  # torch raises errors of many kinds
            raise _tracing_error(graph, error) from error
    assert converted is not None
    size = sum(weight.numel() * weight.element_size() for weight in graph.module.parameters())
    converted.save(str(folder / f"{graph.name}.onnx"), external_data=size > MAX_SINGLE_FILE_BYTES)


def _axes_by_argument(graph: Graph, axes: dict[str, Any]) -> dict[str, Any]:
    """Return the dynamic axes of a graph's inputs as torch.export wants them: by argument of the module's `forward`.

    `axes` has those of each input by its name. The first arguments of `forward` are called like the inputs. All inputs
    with a "/" in their names, such as past/…, are passed as `*tensors`.
    """
    by_argument = {name: axes[name] for name in graph.inputs if "/" not in name}
    variadic = tuple(axes[name] for name in graph.inputs if "/" in name)
    return by_argument | ({"tensors": variadic} if variadic else {})


def _tracing_error(graph: Graph, error: Exception) -> UserError:
    """Return the error for a model that cannot be traced: it names the innermost part where tracing failed."""
    part = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and type(module).__module__.startswith("dragoman.parts"):
            path = getattr(module, "path", "")
            part = f" in the part {type(module).__name__}" + (f" ({path})" if path else "")
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return UserError(
        f"this model cannot be exported to ONNX: torch cannot trace the {graph.name}{part}: {lines[0]}; use --to "
        "ctranslate2 if the model is a Transformer, or train another system"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings, printed text and log messages of torch's exporter, which are for its developers."""
    loggers = [logging.getLogger(name) for name in CHATTY_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
