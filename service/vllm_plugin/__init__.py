"""Token signals out of a stock vLLM, for requests that ask for them (METHODS.md §3.2, §6 #19).

Runs inside the environment of vLLM, through its documented extension points, and imports nothing
that such an environment lacks. With the rest it shares only the wire: this file, and what
`tests/unit/test_architecture.py` lists. Three parts, in three places:

- the worker processes: `attention.py` (registered attention backends) and `logits.py` (a logits
  processor of model runners V1 and V2) show each step to `tap.py`, which keeps what the tracked
  requests asked for (`tracking.py`); `worker.py` (the `worker_extension_cls`) hands it out;
- the API server: `plugin.py` (the entry points) adds the routes of `routes.py` under
  `/v1/revelator`; `calls.py` runs them, fetching from all workers by one `collective_rpc` a step;
- both sides: `packets.py`, how a worker's packet looks and how those of several ranks become one.

Which model runner runs is vLLM's choice. A request says what it wants in its sampling parameters
(`extra_args[NAME]`); while no such request is there, a step costs three looks at an empty table.

Bounds, per API server (shown by `/v1/revelator/info`): `calls.MAX_CALLS` calls and
`calls.MAX_BYTES` bytes of rows and maxima on a worker; a call reserves its worst case when it
begins, see `calls.bytes_of`. Only vLLM's CPU backend was run, with model runner V1; of V2, the
interfaces were, with vLLM's own classes (`tests/integration/vllm_steps.py`). The layouts of the GPU
backends' caches are recognised by comparing the cache with the keys just written, and refused where
none fits.
"""

# of the entry points, and the key of the request's `Wish` in `SamplingParams.extra_args`
NAME = "revelator"
PROTOCOL = 2  # of the routes under `/v1/revelator`
EXTENSION = "service.vllm_plugin.worker.SignalsExtension"
