#!/usr/bin/env bash
# Makes .rigs/sglang: a virtual environment with the real SGLang 0.5.23, for the tests and the benchmark that put our
# allocator beside its own. It sees the packages of PYTHON's environment, so that torch is not installed a second time.
# usage: tests/rigs/sglang.sh [PYTHON]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${1:-$root/.venv/bin/python}
rig=$root/.rigs/sglang
rm -rf "$rig"
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "no rig sglang: SGLang 0.5.23 needs Python 3.11 or newer" >&2
  exit 0
fi
# Half a rig would be taken for a whole one.
trap 'rm -rf "$rig"' ERR
"$python" -m venv "$rig"
own=$("$rig/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# addsitedir, and not the bare path, also follows editable installs, of which this project is one.
"$python" -c '
import sysconfig
for path in sorted({sysconfig.get_path(scheme) for scheme in ("purelib", "platlib")}):
    print(f"import site; site.addsitedir({path!r})")' > "$own/test_environment.pth"
"$rig/bin/python" -m pip install --quiet --disable-pip-version-check -r "$root/tests/rigs/sglang.txt"
"$rig/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile sglang==0.5.23
"$rig/bin/python" "$root/tests/peer/sglang_peer.py"
