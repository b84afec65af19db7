"""A replica of old answers: sends what vLLM 0.16.0 once sent, byte for byte.

A request names its answer in its text: `replay NAME PIECE` gets captures-0.16.0/NAME.resp in writes of PIECE bytes
(0: one write). Whatever else is asked, such as a gateway's warm-up request, gets a plain answer of its kind."""

import json
import re
import socketserver
import threading
import time

from replica import HERE

CAPTURES = HERE / "captures-0.16.0"
NAMED = re.compile(rb"replay (\w+) (\d+)")


def capture(name):
    return (CAPTURES / f"{name}.resp").read_bytes()


class Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        method, path, _ = self.rfile.readline().decode().split(" ", 2)
        length = 0
        while (line := self.rfile.readline().strip()):
            name, _, value = line.decode().partition(":")
            if name.lower() == "content-length":
                length = int(value)
        body = self.rfile.read(length)
        answer, piece = self.answer(method, path, body)
        for start in range(0, len(answer), piece or len(answer)):
            self.wfile.write(answer[start:start + (piece or len(answer))])
            if piece and start // piece % 8 == 0:
                time.sleep(0.0002)  # so that some pieces stay apart on the wire

    def answer(self, method, path, body):
        if method == "GET":
            if path == "/metrics":
                text = (CAPTURES / "metrics.txt").read_bytes()
                head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len(text)}\r\nconnection: close\r\n\r\n"
                return head.encode() + text, 0
            known = {"/health": "health", "/v1/models": "models", "/version": "version"}
            return capture(known.get(path, "not_found")), 0
        named = NAMED.search(body)
        if named is None:
            return capture("chat_plain" if "chat" in path else "comp_plain"), 0
        name, piece = named[1].decode(), int(named[2])
        self.server.asked.append(name)
        with_usage = ((json.loads(body).get("stream_options") or {}).get("include_usage"))
        if with_usage and (CAPTURES / f"{name}_usage.resp").exists():
            name += "_usage"
        return capture(name), piece


class Replay(socketserver.ThreadingTCPServer):
    """Listens on a port of the system's choice until `close`."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()

    def handle_error(self, *_):
        pass  # a client that left
