"""Makes training data and models. It imports the service, never the other way.

- `facts`: facts found in passages, questions made from them, training rows, the held-out split
- `synthesis`: `revelator synthesize`, the papers' pipelines and the rows of the embedded model
- `recipes`: `revelator train`; `lean` trains Llamas on a CPU, `encoders` EfficientRAG's encoders
- `compilation`: `revelator compile`, which converts float weights for the service's own engines
"""
