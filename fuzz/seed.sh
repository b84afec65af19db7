#!/bin/sh
# Fills the corpus with captures of real engines and with the inputs of field cases.
set -eu
cd "$(dirname "$0")"
fixtures=../crates/expediter-wire/fixtures
name() { echo "${1#"$fixtures"/}" | tr / _; }
mkdir -p corpus/request_scan_splice corpus/sse corpus/answer corpus/metrics corpus/kv_events corpus/zmtp

for file in "$fixtures"/v*/generate/*.req; do
  sed '1,/^\r$/d' "$file" >"corpus/request_scan_splice/$(name "$file")"
done
cp "$fixtures"/cases/*.json corpus/request_scan_splice/

for file in "$fixtures"/cases/*.sse; do
  [ "$(wc -c <"$file")" -lt 4000 ] || continue
  { printf '\005\100\377'; cat "$file"; } >"corpus/sse/$(basename "$file")"
done

for file in "$fixtures"/v*/generate/*.resp "$fixtures"/v*/errors/*.resp; do
  [ "$(wc -c <"$file")" -lt 3000 ] || continue
  { printf '\007\100\000'; cat "$file"; } >"corpus/answer/$(name "$file")"
  case $file in
  *stream*) sed '1,/^\r$/d' "$file" | { printf '\007\100\001'; cat; } >"corpus/answer/body_$(name "$file")" ;;
  esac
done

for file in "$fixtures"/v*/metrics/idle*.txt; do
  grep -v '^# ' "$file" | grep -v _bucket | head -c 8000 >"corpus/metrics/$(name "$file")"
done
cp "$fixtures"/cases/*.prom corpus/metrics/

for file in "$fixtures"/v*/kv-events/*.msgpack "$fixtures"/cases/*.msgpack; do
  cp "$file" "corpus/kv_events/$(name "$file")"
done
for file in "$fixtures"/zmtp/*.bin; do
  { printf '\007\100'; cat "$file"; } >"corpus/zmtp/$(name "$file")"
done
