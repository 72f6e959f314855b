"""Makes training data and models. It imports the service, never the other way.

- `facts`: facts found in passages, questions made from them, the rows of training, what is held out
- `synthesis`: `revelator synthesize`, the papers' pipelines and the rows of the embedded model
- `recipes`: `revelator train`; `lean` trains Llamas on a CPU, `encoders` EfficientRAG's encoders
- `compilation`: `revelator compile`, from float weights to what the service's own engines serve
"""
