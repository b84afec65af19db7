"""A real engine and the simulated one find the same tokens of every prompt in their caches: `calibration/compare.py`,
in small. Times are not compared here."""

import asyncio
import subprocess
import sys

import pytest

from gateway import BINARY, ROOT
from replica import Replica

sys.path.append(str(ROOT / "calibration"))
from compare import compare  # noqa: E402

BLOCKS, SEQUENCES, LENGTH = "256", "16", "4096"


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    replica = Replica(tmp_path_factory.mktemp("calibration") / "engine.log")
    try:
        replica.start("--num-gpu-blocks-override", BLOCKS, "--max-num-seqs", SEQUENCES, "--max-model-len", LENGTH,
                      "--max-num-batched-tokens", "2048")
        replica.wait_ready()
        yield replica.url
    finally:
        replica.kill()


@pytest.fixture(scope="module")
def simulated():
    command = [BINARY, "engine-sim", "--listen", "127.0.0.1:0", "--block-size", "32", "--blocks", BLOCKS,
               "--max-num-seqs", SEQUENCES, "--max-model-len", LENGTH]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def test_cached_tokens_are_those_of_a_real_engine(real, simulated):
    result = asyncio.run(compare(real, simulated, seed=3, requests=120, rate=8.0))
    assert result["requests"] == 120
    assert result["cached"] > 30_000 and result["evicted"] >= 2, "the trace says something about hits and evictions"
    assert result["differing"] == []
