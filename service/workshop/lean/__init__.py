"""Fine-tuning of Llama models on a CPU, with its fastest data type and few passes over memory.

`functions` contains element-wise operations with hand-written gradients, and `network` the model.
`packing` merges rows with a common prefix and batches them by length. `loop` performs the updates
and saves points to resume from.
"""
