"""Fine-tuning of Llama models on a CPU: the fastest data type for products, few passes over memory.

`functions` has element-wise operations with hand-written gradients, `network` the model, `packing`
rows with a common beginning in batches by length, and `loop` the updates, with checkpoints to
resume from.
"""
