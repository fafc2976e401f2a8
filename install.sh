#!/bin/sh
# Builds Patchbay from this folder, unless it is a release, and installs it below a prefix. Run with --help for the
# options.
# Nothing outside the prefix is changed, except by apt (gcc, libc6-dev, make, where they are missing) and by Go's own
# caches.
set -eu

usage() {
    cat <<USAGE
usage: ./install.sh [--prefix DIR] [--dry-run] [--uninstall]

Builds bin/patchbay (a release has it) and installs program, shell completions and examples.

  --prefix DIR   install below DIR (default: \$PREFIX, else ~/.local)
  --dry-run      say what would be done and change nothing
  --uninstall    remove what an earlier run installed below the prefix
  --help         this text

Environment: PREFIX as --prefix, GO the go command (default: go), CC the C compiler (default: gcc).
USAGE
}

say() { printf '%s\n' "$*"; }
step() { printf '==> %s\n' "$*"; }
fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

# run COMMAND...: run it, or in a dry run only show it.
run() {
    if [ "$dry" = yes ]; then
        say "    would run: $*"
    else
        "$@"
    fi
}

# absolute DIR: the path without a relative start.
absolute() {
    case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s/%s\n' "$(pwd)" "$1" ;;
    esac
}

# required_go: major.minor that go.mod asks for.
required_go() { sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' go.mod; }

# older A B: whether major.minor A comes before B.
older() {
    [ "${1%%.*}" -lt "${2%%.*}" ] || { [ "${1%%.*}" -eq "${2%%.*}" ] && [ "${1#*.}" -lt "${2#*.}" ]; }
}

check_go() {
    want=$(required_go)
    step "checking Go (needs $want or newer)"
    have=none
    if command -v "$go" >/dev/null 2>&1; then
        # "go version go1.26.8 linux/amd64"; asked outside this folder, where go.mod cannot make Go fetch another.
        have=$(cd / && GOTOOLCHAIN=local "$go" version | sed -n 's/^go version go\([0-9]*\.[0-9]*\).*/\1/p')
        [ -n "$have" ] || have=unknown
    fi
    if [ "$have" = none ] || [ "$have" = unknown ] || older "$have" "$want"; then
        say "    found: $have. This script cannot install Go. Get it in one of these ways and run it again:" >&2
        say "      - the archive from https://go.dev/dl/, unpacked anywhere, with its go/bin folder in PATH" >&2
        say "      - your package manager, if its Go is $want or newer" >&2
        say "    A Go that is not in PATH is used with GO=/path/to/go ./install.sh" >&2
        fail "Go $want or newer is missing"
    fi
    say "    found: Go $have ($(command -v "$go")); Go itself fetches the version of go.mod if yours is an older $want"
}

# compiles: whether the C compiler builds a program with the C library's headers.
compiles() {
    printf '#include <math.h>\n#include <stdio.h>\nint main(void) { return puts("") < 0; }\n' |
        sh -c "$cc -x c -fsyntax-only -" >/dev/null 2>&1
}

check_tools() {
    step "checking C compiler and make"
    set --
    compiles || set -- gcc libc6-dev
    command -v make >/dev/null 2>&1 || set -- "$@" make
    if [ $# -eq 0 ]; then
        say "    found: $cc, $(command -v make)"
        return
    fi
    say "    missing: $*"
    as=''
    if [ "$(id -u)" -ne 0 ]; then
        as=sudo
    fi
    if ! command -v apt-get >/dev/null 2>&1 || { [ -n "$as" ] && ! command -v sudo >/dev/null 2>&1; }; then
        say "    This script installs packages with apt-get only, as root or through sudo: not possible here." >&2
        say "    Install a C compiler with the C library's headers, and make, with your package manager:" >&2
        say "      Debian, Ubuntu: apt-get install gcc libc6-dev make     Fedora: dnf install gcc make" >&2
        say "      Arch: pacman -S gcc make                               Alpine: apk add gcc musl-dev make" >&2
        fail "missing: $*"
    fi
    step "installing $* with apt-get${as:+ through sudo}"
    run ${as:+"$as"} apt-get update || fail "apt-get update did not work; install $* yourself and run this script again"
    run ${as:+"$as"} apt-get install -y --no-install-recommends "$@" || fail "apt-get could not install $*"
}

# example_files: what of examples/ is installed, one path a line, and the Python client that they use. Training scripts
# and reference numbers stay in the repository.
example_files() {
    find examples clients/python/patchbay -type f ! -name '*.pyc' \
        ! -path 'examples/demo/train/*' ! -path 'examples/demo/reference/*' \
        ! -path 'examples/demo/samples/*' ! -path 'examples/demo/state/*' |
        LC_ALL=C sort
}

# put SOURCE PATH MODE: copy a file to PATH below the prefix under another name first, so that a running program is not
# disturbed.
put() {
    printf '%s\n' "$2" >>"$list"
    mkdir -p "$prefix/$(dirname "$2")"
    cp "$1" "$prefix/$2.new"
    chmod "$3" "$prefix/$2.new"
    mv -f "$prefix/$2.new" "$prefix/$2"
}

# installed: paths of the last installation, below the prefix; lines that could lead elsewhere are ignored.
installed() {
    [ -f "$prefix/$manifest" ] || return 0
    grep -v -e '^/' -e '\.\.' "$prefix/$manifest" || true
}

# remove PATH: delete a file below the prefix and its folders that are empty then.
remove() {
    rm -f "$prefix/$1"
    dir=$(dirname "$1")
    while [ "$dir" != . ]; do
        rmdir "$prefix/$dir" 2>/dev/null || return 0
        dir=$(dirname "$dir")
    done
}

# build: make the program, unless this is a release, which has it and no Makefile.
build() {
    if [ ! -f Makefile ] && [ -x bin/patchbay ]; then
        step "found a release: $(bin/patchbay version 2>&1 | sed 1q)"
        bin/patchbay version >/dev/null 2>&1 || fail "its program does not run here; nothing was installed"
        return
    fi
    check_go
    check_tools
    step "building: make build"
    run make build GO="$go" || fail "the build did not work; nothing was installed"
}

install_all() {
    build
    step "installing below $prefix"
    say "    bin/patchbay"
    say "    share/bash-completion/completions/patchbay, share/zsh/site-functions/_patchbay," \
        "share/fish/vendor_completions.d/patchbay.fish"
    say "    share/patchbay/examples ($(example_files | wc -l | tr -d ' ') files)"
    if [ "$dry" = yes ]; then
        say "    would copy these files"
        return
    fi
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    list=$tmp/list
    : >"$list"
    put bin/patchbay bin/patchbay 755
    for shell in bash zsh fish; do
        bin/patchbay completion "$shell" >"$tmp/$shell" || fail "patchbay completion $shell: no output"
    done
    put "$tmp/bash" share/bash-completion/completions/patchbay 644
    put "$tmp/zsh" share/zsh/site-functions/_patchbay 644
    put "$tmp/fish" share/fish/vendor_completions.d/patchbay.fish 644
    example_files >"$tmp/examples"
    while IFS= read -r file; do
        put "$file" "share/patchbay/$file" 644
    done <"$tmp/examples"
    # a module of their own, so that the examples in Go can be built and run where they are
    sed 's/^module .*/module examples/' go.mod >"$tmp/go.mod"
    put "$tmp/go.mod" share/patchbay/examples/go.mod 644
    put go.sum share/patchbay/examples/go.sum 644
    installed >"$tmp/before"
    while IFS= read -r file; do
        grep -qxF -e "$file" "$list" || remove "$file"
    done <"$tmp/before"
    cp "$list" "$prefix/$manifest"
    step "checking: $("$prefix/bin/patchbay" version | sed 1q)"
    closing_words
}

closing_words() {
    case :$PATH: in
    *":$prefix/bin:"*) ;;
    *) say "    $prefix/bin is not in PATH; add it: export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
    say "    zsh reads completions from $prefix/share/zsh/site-functions when fpath has it before compinit runs."
    cat <<WORDS
What this script does not do:
  - fetch models: put them into a folder laid out like ComfyUI's models folder, named by --models or PATCHBAY_MODELS
  - fetch tokenizer vocabularies of CLIP and T5: see docs/comfyui.md
  - start a service: run "patchbay serve", or write a unit for your init system that does
  - install GPU drivers: where NVIDIA's is present, "patchbay serve" takes the GPUs, else the processors
Try it: patchbay demo --out demo.png
WORDS
}

uninstall() {
    step "removing what was installed below $prefix"
    if [ ! -f "$prefix/$manifest" ]; then
        say "    nothing: $prefix/$manifest does not exist"
        return
    fi
    if [ "$dry" = yes ]; then
        installed | sed 's/^/    would remove: /'
        return
    fi
    kept=$(mktemp)
    installed >"$kept"
    while IFS= read -r file; do
        remove "$file"
    done <"$kept"
    rm -f "$kept"
    remove "$manifest"
    if [ -d "$prefix/share/patchbay" ]; then
        say "    kept: $prefix/share/patchbay holds files that this script did not install (job store, outputs)"
    fi
}

prefix=${PREFIX:-${HOME:?is not set, give --prefix DIR}/.local}
go=${GO:-go}
cc=${CC:-gcc}
dry=no
action=install_all
manifest=share/patchbay/installed-files
while [ $# -gt 0 ]; do
    case $1 in
    --prefix)
        [ $# -ge 2 ] || fail "--prefix needs a folder"
        prefix=$2
        shift
        ;;
    --prefix=*) prefix=${1#--prefix=} ;;
    --dry-run) dry=yes ;;
    --uninstall) action=uninstall ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        usage >&2
        fail "unknown option $1"
        ;;
    esac
    shift
done
[ -n "$prefix" ] || fail "--prefix needs a folder"
prefix=$(absolute "$prefix")
cd "$(dirname "$0")"
[ "$(uname -s)" = Linux ] || [ "$action" = uninstall ] || fail "this version runs on Linux only, this is $(uname -s)"
$action
