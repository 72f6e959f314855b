"""The Model Context Protocol: tools and resources for agents, at `/mcp` and by `revelator mcp`.

`server.py` has the handlers of the official SDK's server, which it imports when it is first needed,
and `tools.py` the tools and the path over HTTP.
"""
