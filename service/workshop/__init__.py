"""Makes training data and models. It imports the service, never the other way.

- `facts`: training rows, the held-out split, labels of routes
- `synthesis`: `revelator synthesize`, the papers' pipelines
- `recipes`: `revelator train`; `encoders` trains EfficientRAG's encoders
- `compilation`: the export of encoders to quantised ONNX
"""
