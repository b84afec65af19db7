#!/usr/bin/env python3
"""Distils ServeGen's m-large clients into servegen_m_large_clients.csv (standard library only).

    python3 distil_servegen.py TRACES.tar.gz LENGTHS.jsonl.gz > servegen_m_large_clients.csv

TRACES holds data/language/m-large/chunk-*-trace.csv of github.com/alibaba/ServeGen, one file a client, without a
header: window start (s), requests per second, CV of the gaps, distribution, two fitted parameters. LENGTHS holds
one JSON line a client and window of six hours, taken from chunk-*-dataset.json: client, window (s), input_tokens
and output_tokens as Python-dict literals {length: probability}.

A client's rate is its mean over all 2,016 windows of 600 s (14 days), so that every client is there; its CV is
the mean over its active windows, weighted by their rates; its lengths are means over the windows that LENGTHS
holds, weighted likewise, and empty where LENGTHS lacks the client.
"""

import ast
import csv
import gzip
import io
import json
import sys
import tarfile

WINDOWS = 2016


def read_traces(path):
    clients = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile():
                client = int(member.name.split("chunk-")[1].split("-")[0])
                text = archive.extractfile(member).read().decode()
                clients[client] = [(int(r[0]), float(r[1] or 0), float(r[2] or 0)) for r in csv.reader(io.StringIO(text))]
    return clients


def read_lengths(path, clients):
    """Client -> (weight, weighted sum of mean inputs, the same of outputs)."""
    sums = {}
    with gzip.open(path, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            start, client = row["window"], row["client"]
            weight = sum(rate for at, rate, _ in clients[client] if start <= at < start + 21600)
            means = [sum(k * p for k, p in ast.literal_eval(row[field]).items()) for field in ("input_tokens", "output_tokens")]
            old = sums.get(client, (0.0, 0.0, 0.0))
            sums[client] = (old[0] + weight, old[1] + weight * means[0], old[2] + weight * means[1])
    return sums


def main():
    clients = read_traces(sys.argv[1])
    lengths = read_lengths(sys.argv[2], clients)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["client", "rate_per_second", "cv", "input_tokens_mean", "output_tokens_mean"])
    for client, rows in sorted(clients.items(), key=lambda item: -sum(r[1] for r in item[1])):
        total = sum(rate for _, rate, _ in rows)
        cv = sum(rate * cv for _, rate, cv in rows) / total
        weight, inputs, outputs = lengths.get(client, (0.0, 0.0, 0.0))
        means = [round(inputs / weight), round(outputs / weight)] if weight > 0 else ["", ""]
        out.writerow([client, f"{total / WINDOWS:.5f}", f"{cv:.3f}", *means])


main()
