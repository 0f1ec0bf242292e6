#!/usr/bin/env bash
# Makes .rigs/torch_npu: the real torch_npu wheel, beside the environment and not in it, since with it installed and
# CANN missing a plain `import torch` fails. Tests put it on PYTHONPATH.
# usage: tests/rigs/torch_npu.sh [PYTHON]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${1:-$root/.venv/bin/python}
release=$("$python" -c 'import torch; print(torch.__version__.split("+")[0])')
# cann_stand_in.sh may have asked for it already.
[ ! -d "$root/.rigs/torch_npu/torch_npu-$release.dist-info" ] || exit 0
rm -rf "$root/.rigs/torch_npu"
"$python" -m pip install --quiet --no-deps --target "$root/.rigs/torch_npu" "torch_npu==$release"
