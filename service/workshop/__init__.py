"""Makes training data and models. It imports the service, never the other way.

- `facts`: training rows, and the held-out split
- `synthesis`: `revelator synthesize`, the papers' pipelines
- `recipes`: `revelator train`, and the export of encoders to quantised ONNX
"""
