"""A worker without a model: it answers probes, and is as busy as the file BUSY_FILE says.

It prints its command line, and ends with 0 at SIGTERM.
"""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        running = Path(os.environ["BUSY_FILE"]).read_text(encoding="utf-8")
        bodies = {"/health": "", "/metrics": f'vllm:num_requests_running{{engine="0"}} {running}\n'}
        self.send_response(200 if self.path in bodies else 404)
        self.end_headers()
        self.wfile.write(bodies.get(self.path, "").encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(json.dumps(sys.argv[1:]), flush=True)
    HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
