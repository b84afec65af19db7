"""A real vLLM replica: started, killed, frozen, brought back, and asked for its counts."""

import os
import pathlib
import signal
import socket
import subprocess
import urllib.error
import urllib.request

from waiting import eventually

HERE = pathlib.Path(__file__).parent
CACHE = pathlib.Path(os.environ.get("EXPEDITER_CACHE") or pathlib.Path.home() / ".cache/expediter")

MAX_NUM_SEQS = 8
FLAGS = [
    "--enforce-eager", "--num-gpu-blocks-override", "4096", "--block-size", "32", "--max-model-len", "8192",
    "--max-num-seqs", str(MAX_NUM_SEQS), "--enable-prompt-tokens-details",
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
]
# A start takes 30 to 40 s on two idle cores.
START_SECONDS = 240


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url, timeout=10):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


class Replica:
    """One engine on a port that it keeps over restarts. Its processes are a group of their own."""

    def __init__(self, log):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self.process = None

    def start(self, *more_flags):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                ["bash", HERE / "serve.sh", CACHE / "vllm-0.32.0", str(self.port), *FLAGS, *more_flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )

    def wait_ready(self):
        def ready():
            assert self.process.poll() is None, f"the engine ended at its start:\n{self.log_tail()}"
            try:
                get(f"{self.url}/health")
                return True
            except OSError:
                return False

        eventually(ready, START_SECONDS, "the engine answers /health")

    def restart(self, *more_flags):
        self.kill()
        self.start(*more_flags)
        self.wait_ready()

    def signal(self, number):
        """Signals the API server only, as `kubectl delete pod` or an operator would."""
        self.process.send_signal(number)

    def freeze(self):
        self._signal_group(signal.SIGSTOP)

    def freeze_core(self):
        """The engine core alone: the API server goes on, and answers /health with 200 all the while."""
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                group = int((process / "stat").read_text().rsplit(")", 1)[1].split()[2])
            except OSError:
                continue  # it has ended meanwhile
            if group == self.process.pid != int(process.name):
                os.kill(int(process.name), signal.SIGSTOP)

    def thaw(self):
        self._signal_group(signal.SIGCONT)

    def kill(self):
        """Ends all its processes: a killed API server leaves the engine core behind, holding its ports."""
        if self.process is not None:
            self._signal_group(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _signal_group(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def gauge(self, name):
        """The sum over engines of a gauge such as `num_requests_running`."""
        lines = get(f"{self.url}/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"vllm:{name}{{"))

    def busy(self):
        return self.gauge("num_requests_running") + self.gauge("num_requests_waiting")

    def log_tail(self):
        return "".join(open(self.log, errors="replace").readlines()[-40:])
