"""An OpenAI-compatible endpoint on the loopback that answers as it is told."""

import json
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def completion(text):
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return 200, json.dumps({"id": "1", "created": 0, "model": "judge", "system_fingerprint": "", "choices": [choice]})


@contextmanager
def judge_server(answer, pause=0.0, header_pause=0.0):
    """
    Runs while the block does. `answer(prompt, attempt)` gives status and body, and headers if there are any, or None to
    drop the connection, byte by byte with a `pause` after each of the body and a `header_pause` before it; `attempt` counts
    the requests with that prompt from 0.
    """
    seen = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = body["messages"][0]["content"]
            with lock:
                attempt = sum(prompt == other["messages"][0]["content"] for other in seen)
                seen.append({**body, "path": self.path, "key": self.headers["Authorization"]})
            reply = answer(prompt, attempt)
            if reply is None:
                self.connection.close()
                return
            status, content, *headers = reply
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content.encode())))
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):
                for start in range(0, len(content), 1 if pause else len(content)):
                    self.wfile.write(content[start:][: 1 if pause else None].encode())
                    time.sleep(pause)

        def flush_headers(self):
            if not header_pause:
                return super().flush_headers()
            headers, self._headers_buffer = b"".join(self._headers_buffer), []
            with suppress(BrokenPipeError, ConnectionResetError):
                for byte in headers:
                    self.wfile.write(bytes([byte]))
                    time.sleep(header_pause)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        server.server_close()
