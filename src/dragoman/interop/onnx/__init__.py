"""Export of runs to ONNX."""
