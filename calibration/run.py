#!/usr/bin/env python3
"""The whole comparison on one machine: starts a real vLLM, fits it, starts engine-sim with what was fitted, compares.

usage: run.py FOLDER [--rounds N] [--fit-rounds N] [--requests N] [--rate R] [--real-time]

FOLDER gets `profiles.txt`, `fit.txt`, `again.txt`, `comparison.txt` and `comparison.json`. Takes about 20 minutes. Needs
`cargo xtask test-engine` once (it installs vLLM), and a release build. README.md says more.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.append(str(ROOT / "tests/engine"))
from replica import CACHE, Replica, free_port  # noqa: E402

BINARY = os.environ.get("EXPEDITER_BINARY") or ROOT / "target/release/expediter"
MODEL = CACHE / "vllm-0.32.0/calibration-model"
# Blocks are of 32 tokens, as the replicas of the tests have them.
LIMITS = {"--max-num-seqs": "16", "--max-model-len": "4096"}


def make_model():
    """A model whose steps take long enough to be seen through the API: see README.md."""
    if not (MODEL / "model.safetensors").exists():
        tokenizer = CACHE / "vllm-0.32.0/model"
        python = CACHE / "vllm-0.32.0/venv/bin/python"
        subprocess.run([python, ROOT / "tests/engine/make_model.py", HERE / "model", tokenizer, MODEL], check=True)
    os.environ["MODEL_DIR"] = str(MODEL)


def real_time(replica):
    """Takes the cores before everything else on the machine. The process that computes gives way to those that pass
    tokens on: among equals it would keep its core for a whole step, and each first token would come a step late."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            group = int((process / "stat").read_text().rsplit(")", 1)[1].split()[2])
            if group != replica.process.pid:
                continue
            computes = (process / "comm").read_text().startswith("VLLM::Worker")
            for thread in (process / "task").iterdir():
                os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1 if computes else 2))
        except FileNotFoundError:
            continue  # it has ended meanwhile
    # Our own, and with it the clients and engine-sim.
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(3))


def simulated(profiles):
    command = [BINARY, "engine-sim", "--listen", f"127.0.0.1:{free_port()}", "--block-size", "32", "--blocks", "256",
               "--profiles", profiles, "--profile", "cpu"]
    command += [word for pair in LIMITS.items() for word in pair]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def script(out, name, *arguments):
    """Runs one of our scripts; what it prints is shown and kept."""
    done = subprocess.run([sys.executable, HERE / name, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    out.write_text(done.stdout)
    return done.returncode


def between(fit):
    """What fit.py found between client and engine, in milliseconds."""
    return float(re.search(r"between client and engine, a request: (\S+) ms", fit.read_text())[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fit-rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--rate", type=float, default=8.0)
    parser.add_argument("--real-time", action="store_true", help="in a real-time class, where other work goes on")
    arguments = parser.parse_args()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    make_model()
    replica, process = Replica(folder / "vllm.log"), None
    try:
        replica.start("--num-gpu-blocks-override", "256", "--max-num-batched-tokens", "2048",
                      *[word for pair in LIMITS.items() for word in pair])
        replica.wait_ready()
        if arguments.real_time:
            real_time(replica)
        profiles = folder / "profiles.txt"
        failed = script(folder / "fit.txt", "fit.py", replica.url, "--name", "cpu", "--out", profiles,
                        "--rounds", arguments.fit_rounds)
        if failed:
            return failed
        process, url = simulated(profiles)
        script(folder / "again.txt", "fit.py", url, "--rounds", 3)
        more = max(0.0, between(folder / "fit.txt") - between(folder / "again.txt"))
        return script(folder / "comparison.txt", "compare.py", replica.url, url, "--rounds", arguments.rounds,
                      "--requests", arguments.requests, "--rate", arguments.rate, "--between-ms", more,
                      "--out", folder / "comparison.json")
    finally:
        replica.kill()
        if process:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
