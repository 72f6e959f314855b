"""Fine-tuning of Llamas on a CPU: products in the fastest type, few passes over memory.

`functions` are the element-wise parts with gradients of their own, `network` the model, `packing`
rows that begin alike in batches by length, `loop` the updates with points to resume from.
"""
