"""Token signals out of a stock vLLM, for requests that ask for them (METHODS.md §3.2, §6 #19).

Runs inside the environment of vLLM, through its documented extension points, and imports nothing
that such an environment lacks. With the rest it shares only the wire: this file, and what
`tests/unit/test_architecture.py` lists. Signals travel with vLLM's own completions: a request to
`/v1/completions` says in the header HEADER what it wants, and gets vLLM's answer, whose events have
the field NAME besides. Two sides, in different processes:

- the workers: `attention.py` (registered attention backends) and `logits.py` (a logits processor of
  model runners V1 and V2) show each step to `tap.py`, which keeps what later steps need of the
  tracked requests and hands the rest to `sender.py`, which sends it off from a thread of its own;
- the API server: `middleware.py` (vLLM's flag `--middleware`) passes the wish on to the workers, in
  vLLM's field `vllm_xargs`, and adds to the answer what `receiver.py` receives of them, through a
  Unix socket.

Which model runner runs is vLLM's choice. While no request asks, no step of vLLM calls the plugin.
"""

# the entry points, the key of a `Wish` in `SamplingParams.extra_args`, and the field of an answer
NAME = "revelator"
HEADER = "x-revelator-signals"
PROTOCOL = 4  # of HEADER and the field, see `middleware.py`
MIDDLEWARE = "service.vllm_plugin.middleware.Signals"
