"""Makes training data and models. It imports the service, never the other way.

- `rows`, `splits`: training rows, and what is held out
- `synthesis`: `revelator synthesize`, the papers' pipelines
- `recipes`: `revelator train`, and the export of encoders to quantised ONNX
"""
