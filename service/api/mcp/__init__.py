"""The Model Context Protocol: tools and resources for agents, at `/mcp` and by `revelator mcp`.

`server.py` has the handlers of the official SDK's server, `tools.py` the tools, and `endpoint.py`
the path over HTTP. Only these import the SDK, when they are first needed.
"""
