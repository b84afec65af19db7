"""HTTP without a client library: what is on the wire, and clients that leave."""

import http.client
import json
import socket
import struct

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def ask(url, path, body, timeout=90):
    """Status, content type and body of one POST."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=timeout)
    payload = body if isinstance(body, (bytes, str)) else json.dumps(body)
    connection.request("POST", path, payload, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    try:
        return answer.status, answer.getheader("content-type"), answer.read()
    finally:
        connection.close()


def events(body):
    """The payloads of a complete event stream, in order; `[DONE]` stays a text."""
    text = body.decode()
    assert text.endswith("\n\n"), f"the last event is cut: {text[-80:]!r}"
    payloads = []
    for event in text.split("\n\n")[:-1]:
        assert event.startswith("data: "), event
        payload = event.removeprefix("data: ")
        payloads.append(payload if payload == "[DONE]" else json.loads(payload))
    return payloads


class Leaver:
    """A client that sends a request and goes away before its answer is complete."""

    def __init__(self, url, path, body):
        host, port = url.removeprefix("http://").split(":")
        payload = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.sendall(head.encode() + payload)

    def read_events(self, count):
        seen = b""
        while seen.count(b"data: ") < count:
            more = self.socket.recv(65536)
            assert more, f"the stream ended: {seen[-300:]!r}"
            seen += more

    def leave(self, how):
        """`fin` closes, `rst` resets the connection."""
        if how == "rst":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
