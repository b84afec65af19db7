"""The program under test: `expediter serve` with a configuration file, on ports of the system's choice."""

import json
import os
import pathlib
import subprocess
import threading
import time
import urllib.request

import openai

from waiting import eventually

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("EXPEDITER_BINARY") or ROOT / "target/release/expediter")
TOKEN = "engine-tests"

CONFIGURATION = """\
pools:
  tiny:
    replicas: [{replicas}]
aliases:
  gpt-fast: tiny
"""


class Gateway:
    """A running gateway in front of `replicas` (their URLs), with a configuration file that has a pool and an alias;
    or, where it is `zero_config`, with the URLs as arguments and nothing else."""

    def __init__(self, folder, replicas, zero_config=False, **settings):
        configuration = folder / "expediter.yaml"
        configuration.write_text(CONFIGURATION.format(replicas=", ".join(replicas)))
        fleet = replicas if zero_config else ["--config", configuration]
        self.usage_file = folder / "usage.jsonl"
        self.log = folder / "log.jsonl"
        settings = {
            "listen": "127.0.0.1:0", "admin.listen": "127.0.0.1:0", "admin.token": TOKEN,
            "log.format": "json", "usage.file": self.usage_file, **settings,
        }
        sets = [word for path, value in settings.items() for word in ("--set", f"{path}={value}")]
        self.process = subprocess.Popen(
            [BINARY, "serve", *fleet, *sets], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        self._addresses = {}
        threading.Thread(target=self._read_log, daemon=True).start()
        eventually(self._listens, 30, "the gateway listens")
        self.url = f"http://{self._addresses['listening']}"
        self.admin_url = f"http://{self._addresses['admin listening']}"
        self.port = int(self.url.rsplit(":", 1)[1])

    def _read_log(self):
        with open(self.log, "wb") as log:
            for line in self.process.stderr:
                log.write(line)
                log.flush()
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if record.get("message") in ("listening", "admin listening"):
                    self._addresses[record["message"]] = record["address"]

    def _listens(self):
        assert self.process.poll() is None, f"the gateway ended at its start:\n{self.log.read_text()}"
        return len(self._addresses) == 2

    def replicas(self):
        """Replica objects of the admin API, by URL."""
        request = urllib.request.Request(
            f"{self.admin_url}/admin/replicas", headers={"Authorization": f"Bearer {TOKEN}"})
        answer = json.load(urllib.request.urlopen(request, timeout=10))
        listed = answer if isinstance(answer, list) else answer.get("replicas", answer.get("data"))
        return {replica["url"].rstrip("/"): replica for replica in listed}

    def act(self, url, verb):
        """`drain` or `undrain` of the replica at `url`."""
        request = urllib.request.Request(
            f"{self.admin_url}/admin/replicas/{self.replicas()[url]['id']}/{verb}",
            headers={"Authorization": f"Bearer {TOKEN}"}, method="POST")
        return json.load(urllib.request.urlopen(request, timeout=10))

    def state(self, url):
        return self.replicas()[url]["state"]

    def wait_ready(self, *urls, seconds=60):
        for url in urls:
            eventually(lambda: self.state(url) == "ready", seconds, f"{url} is ready")

    def idle(self):
        """No request is in flight, by the gateway's own count."""
        return all(replica["in_flight"] == 0 for replica in self.replicas().values())

    def usage(self):
        """The usage records of all requests that have ended. A thread of its own writes them, a moment after the
        answer's last byte: they are all there once no more come."""
        written = self.usage_file.read_text()
        while True:
            time.sleep(0.2)
            before, written = written, self.usage_file.read_text()
            if before == written:
                return [json.loads(line) for line in written.splitlines()]

    def client(self):
        return client(self.url)

    def stop(self):
        self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()


def client(url):
    """The stock client, without the retries that would hide a failed request."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=90)
