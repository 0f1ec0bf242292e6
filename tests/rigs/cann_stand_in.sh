#!/usr/bin/env bash
# Makes .rigs/cann_stand_in: what the real torch_npu wheel takes for CANN, built from tests/npu/stand_in with g++.
# usage: tests/rigs/cann_stand_in.sh [PYTHON]
#
# lib/      everything
# old/lib/  the same without aclnnInplaceIndexFill, as CANN's older releases are
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
source=$root/tests/npu/stand_in
rig=$root/.rigs/cann_stand_in
# The wheel carries CANN's own headers, so that the compiler checks every signature against them.
headers=$root/.rigs/torch_npu/torch_npu/include

if ! command -v g++ >/dev/null; then
  echo "cann_stand_in.sh: g++ is not installed; on Debian or Ubuntu: apt-get install g++" >&2
  exit 1
fi
[ -d "$headers/acl" ] || "$root/tests/rigs/torch_npu.sh" "$@"

# Built beside the old one and then put in its place, so that a failed build leaves no half of a rig.
build=$rig.new
rm -rf "$build"
mkdir -p "$build/objects" "$build/lib" "$build/old/lib"
compile() { g++ -std=c++17 -O2 -fPIC -pthread -Wall -Wextra -Werror -I"$headers" -c "$1" -o "$2"; }
link() { g++ -shared -pthread -Wl,-soname,"$(basename "$1")" -Wl,-z,defs -o "$@"; }

for file in "$source"/*.cpp "$source"/operators/*.cpp; do
  compile "$file" "$build/objects/$(basename "$file" .cpp).o"
done
runtime=() operators=()
for file in "$source"/*.cpp; do runtime+=("$build/objects/$(basename "$file" .cpp).o"); done
for file in "$source"/operators/*.cpp; do operators+=("$build/objects/$(basename "$file" .cpp).o"); done

beside=(-Wl,--no-as-needed -L"$build/lib" -lascendcl "-Wl,-rpath,\$ORIGIN")
link "$build/lib/libascendcl.so" "${runtime[@]}"
# CANN spreads its runtime over these. torch_npu looks for a symbol in the one that has it, so each leads to the first.
for name in hccl acl_op_compiler ge_runner graph acl_tdt_channel; do
  link "$build/lib/lib$name.so" "${beside[@]}"
done
link "$build/lib/libopapi.so" "${operators[@]}" "${beside[@]}"

cp "$build"/lib/* "$build/old/lib/"
echo '{ local: aclnnInplaceIndexFill; aclnnInplaceIndexFillGetWorkspaceSize; };' >"$build/objects/old.map"
link "$build/old/lib/libopapi.so" "${operators[@]}" "${beside[@]}" -Wl,--version-script="$build/objects/old.map"

# torch_npu looks for these folders where ASCEND_HOME_PATH and ASCEND_OPP_PATH point.
for home in "$build" "$build/old"; do mkdir -p "$home/runtime" "$home/compiler" "$home/opp"; done
rm -rf "$build/objects" "$rig"
mv "$build" "$rig"
