#!/usr/bin/env bash
# Checks the CUDA side without a GPU: the committed PTX and code are what the sources give, every kernel assembles for
# every supported GPU without spilling where that costs, prototypes and constants are those of NVIDIA's headers, and the
# real cuDNN makes plans of our descriptors. With --write PTX and code are made anew. NVRTC, headers and assemblers come
# from PyPI by name into a folder of their own ($PATCHBAY_CUDA_TOOLS), once: 760 MB to load, 430 to keep.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=${PATCHBAY_CUDA_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/patchbay-cuda-tools}
kernels=engine/cuda/kernels
archive=engine/cuda/compiled/kernels.zip
write=false
[ "${1:-}" = --write ] && write=true

# Two versions of one package do not fit into one environment, so every version has a folder.
install() { # folder package==version...
  local dir=$tools/$1
  shift
  [ -e "$dir/complete" ] && return
  echo "installing $* into $dir"
  [ -x "$tools/venv/bin/pip" ] || python3 -m venv "$tools/venv"
  rm -rf "$dir"
  if ! "$tools/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$dir" "$@"; then
    echo "PTX, registers and prototypes NOT RUN: cannot install $*"
    exit 0
  fi
  touch "$dir/complete"
}
mkdir -p "$tools"
install 12.4 nvidia-cuda-nvrtc-cu12==12.4.127 nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-nvcc-cu12==12.4.131
install 12.9 nvidia-cuda-nvcc-cu12==12.9.86
install 13.0 nvidia-cuda-nvcc==13.0.88 nvidia-cuda-runtime==13.0.96
install cublas nvidia-cublas-cu12==12.4.5.8
rm -f "$tools"/cublas/nvidia/cublas/lib/*.so.12 # the header is all that is used
headers=$tools/12.4/nvidia/cuda_runtime/include
nvrtc=$(echo "$tools"/12.4/nvidia/cuda_nvrtc/lib/libnvrtc.so.*)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/stub/nv"
touch "$work/stub/nv/target" # what it says is for device code
nvcc=$tools/12.4/nvidia/cuda_nvcc/include
gcc -fsyntax-only -std=c11 -Wall -Wextra -DPB_CHECK_HEADERS -I "$headers" -x c engine/cuda/driver/driver.h
gcc -fsyntax-only -std=c11 -Wall -Wextra -DPB_CHECK_HEADERS -I "$headers" -I "$nvcc" \
  -I "$tools/cublas/nvidia/cublas/include" -I engine/cuda/driver -isystem "$work/stub" -x c engine/cuda/lt/cublaslt.h
gcc -fsyntax-only -std=c11 -Wall -Wextra -DPB_CHECK_HEADERS -I "$tools/13.0/nvidia/cu13/include" \
  -x c engine/cuda/driver/driver.h
echo "prototypes and constants: those of cuda.h 12.4 and 13.0 and cublasLt.h 12.4.5"

for version in 2.21.5 2.28.9; do
  case $version in 2.21.5) package=nvidia-nccl-cu12 ;; *) package=nvidia-nccl-cu13 ;; esac
  install "nccl-$version" "$package==$version"
  rm -f "$tools/nccl-$version"/nvidia/nccl/lib/*.so* # the header is all that is used
  nccl=$tools/nccl-$version/nvidia/nccl/include
  # The types of half precision that nccl.h includes need a C++ library; it uses none of them.
  gcc -fsyntax-only -std=c11 -Wall -Wextra -DPB_CHECK_NCCL -D__CUDA_FP16_H__ -D__CUDA_BF16_H__ \
    -D__CUDA_BF16_TYPES_EXIST__ -I "$headers" -I "$nvcc" -I "$nccl" -I engine/cuda/driver -x c engine/cuda/nccl/nccl.h
  grep -q 0xcafebeef "$nccl/nccl.h"
  echo "prototypes and constants: those of nccl.h $version"
done

# The form of cuDNN that compiles its kernels when it runs has the headers and all that attention needs, in 17 MB.
for version in 9.13.1.26 9.19.1.2; do
  install "cudnn-${version%.*}" "nvidia-cudnn-jit-cu12==$version"
  dnn=$tools/cudnn-${version%.*}/nvidia/cudnn_jit
  cudnn=(-std=gnu11 -Wall -Wextra -Wno-enum-conversion -Wno-enum-compare -DPB_CHECK_HEADERS -I "$headers" -I "$nvcc" \
    -I "$dnn/include" -I engine/cuda/driver -isystem "$work/stub")
  gcc -fsyntax-only "${cudnn[@]}" -x c engine/cuda/dnn/cudnn9.h
  echo "prototypes and constants: those of cudnn_graph.h ${version%.*}"
  gcc -O1 "${cudnn[@]}" -o "$work/plans" tests/fakegpu/cudnn/plans.c -ldl
  # A driver whose every call succeeds, and whose loads give something that is not null.
  strings -n 5 "$dnn"/lib/libcudnn_graph.so.9 | grep -E '^cu[A-Z][A-Za-z0-9_]+$' | sort -u | awk '
    /^cu(Module(Load|Get)|Library(Load|Get)|KernelGet)/ {
      print "int " $0 "(void **p) { *p = (void *)4096; return 0; }"
      next
    }
    { print "int " $0 "(void) { return 0; }" }' >"$work/stub/driver.c"
  gcc -shared -fPIC -w -fno-builtin -o "$work/stub/libcuda.so.1" "$work/stub/driver.c"
  LD_LIBRARY_PATH=$work/stub:$(dirname "$nvrtc") "$work/plans" "$dnn/lib/libcudnn.so.9"
done

gcc -O1 -std=gnu11 -Wall -Wextra -o "$work/nvrtc" tests/fakegpu/nvrtc/nvrtc.c -ldl
jobs=$(nproc)

# ptx SOURCE: PTX for compute_80, which drivers from 550 on compile for any GPU since Ampere, below a line that names
# the source and what it was made of (TestPTXIsThatOfItsSources).
ptx() {
  local name
  name=$(basename "$1" .cu)
  "$work/nvrtc" "$nvrtc" "$1" compute_80 "$work/$name.body" -I"$headers" -I"$kernels"
  {
    echo "// source $name.cu $(cat "$kernels/args.h" "$kernels/device.cuh" "$1" | sha256sum | cut -d' ' -f1)"
    cat "$work/$name.body"
  } >"$work/$name.ptx"
}
export -f ptx
export work nvrtc headers kernels
printf '%s\n' "$kernels"/*.cu | xargs -P "$jobs" -I{} bash -c 'set -euo pipefail; ptx {}'
# assemble VERSION ARCHITECTURE PTX: code, and a line a kernel: name, architecture, registers, bytes spilled. Code by
# ptxas 13.0, which stands for what newer drivers make of the PTX, is only measured, as sm_XX-13.0.
assemble() {
  local name
  name=$(basename "$3" .ptx)
  local as=$2 ptxas=$tools/$1/nvidia/cuda_nvcc/bin/ptxas
  [ "$1" != 13.0 ] || as=$2-13.0 ptxas=$tools/13.0/nvidia/cu13/bin/ptxas
  "$ptxas" -v -arch="$2" "$3" -o "$work/$name.$as" 2>"$work/$name.$as.log" || {
    cat "$work/$name.$as.log"
    exit 1
  }
  awk -v arch="$as" '/Compiling entry function/ { split($0, part, "\x27"); kernel = part[2] }
    /bytes spill stores/ { for (i = 1; i <= NF; i++) if ($i == "spill" && $(i + 1) ~ /^stores/) spill = $(i - 2) }
    /Used [0-9]+ registers/ { for (i = 1; i <= NF; i++) if ($i == "Used") print kernel, arch, $(i + 1), spill }' \
    "$work/$name.$as.log" >"$work/$name.$as.table"
}
export -f assemble
export tools
for arch in "12.4 sm_80" "12.4 sm_86" "12.4 sm_89" "12.4 sm_90" "12.9 sm_100" "12.9 sm_120" \
  "13.0 sm_90" "13.0 sm_100" "13.0 sm_120"; do
  for f in "$work"/*.ptx; do echo "$arch $f"; done
done | xargs -P "$jobs" -I{} bash -c 'set -euo pipefail; assemble {}'

# The archive is what engine/cuda/compiled reads; its members are compared, as versions of Python pack them otherwise.
python3 - "$archive" "$work" "$write" <<'PY'
import os, re, sys, zipfile

archive, work, write = sys.argv[1], sys.argv[2], sys.argv[3] == "true"
names = sorted(n for n in os.listdir(work) if re.fullmatch(r"\w+\.(ptx|sm_\d+)", n))
made = {n: open(os.path.join(work, n), "rb").read() for n in names}
if write:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_BZIP2) as z:
        for n in names:
            z.writestr(zipfile.ZipInfo(n), made[n], zipfile.ZIP_BZIP2, 9)
    print("wrote", archive, "anew")
with zipfile.ZipFile(archive) as z:
    committed = {n: z.read(n) for n in z.namelist()}
differ = sorted(n for n in made.keys() | committed.keys() if made.get(n) != committed.get(n))
if differ:
    sys.exit("%s is not what the sources give (%s): make cuda-kernels" % (archive, " ".join(differ)))
for what, form in ("PTX", r"ptx"), ("code for 6 architectures", r"sm_\d+"):
    members = [i for i in zipfile.ZipFile(archive).infolist() if re.search(r"\." + form + "$", i.filename)]
    print("%s: %d bytes, %d compressed: what NVIDIA's compilers make of the sources" %
          (what, sum(i.file_size for i in members), sum(i.compress_size for i in members)))
PY

# A multiprocessor has 65,536 registers, given to threads by eights; a block has no more threads than its launch bound.
cat "$work"/*.ptx | awk '/\.entry/ { split($3, part, "("); kernel = part[1] }
  $1 == ".maxntid" { sub(",", "", $2); print kernel, "threads", $2 }' | cat - "$work"/*.table | sort | awk '
  $2 == "threads" { threads[$1] = $3; next }
  { of[NR] = $1; arch[NR] = $2; used[NR] = int(($3 + 7) / 8) * 8; newer += $2 ~ /-13/ }
  END {
    for (i in of) {
      n = threads[of[i]] * used[i]; most = n > most ? n : most
      if (n == 0 || n > 65536) { print of[i], arch[i], n, "registers in a block"; bad = 1 }
    }
    printf "at most %d of 65536 registers in a block, with ptxas 13.0 too (%d kernels)\n", most, newer
    exit bad || newer == 0
  }'

cat "$work"/*.table | sort | awk '
  { cell = $3 ($4 > 0 ? "+" $4 "B" : ""); at[$1, $2] = cell; names[$1] = 1
    bad += $4 > 0 && $1 ~ /_(attend|linear)_/; spilled += $4 > 0 && $2 !~ /-13/ }
  END {
    split("sm_80 sm_86 sm_89 sm_90 sm_100 sm_120", arch, " ")
    for (k in at) if (k ~ /-13/) spilled13 += at[k] ~ /B/
    printf "%-24s", "registers (+bytes spilled)"; for (i = 1; i <= 6; i++) printf "%8s", arch[i]; print ""
    n = 0; for (k in names) list[++n] = k
    for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (list[j] < list[i]) {
      t = list[i]; list[i] = list[j]; list[j] = t
    }
    for (i = 1; i <= n; i++) {
      printf "%-26s", list[i]
      for (j = 1; j <= 6; j++) { c = at[list[i], arch[j]]; printf "%8s", c; missing += c == "" }
      print ""
    }
    text = "%d kernels on 6 architectures, %d spill, %d of them attention or linear, %d missing\n"
    printf text, n, spilled, bad, missing
    printf "with ptxas 13.0 for sm_90, sm_100 and sm_120, %d spill\n", spilled13
    exit bad > 0 || missing > 0 || n == 0
  }'
echo "cuda-check: ok"
