#!/bin/bash
# Makes a release for Linux on amd64 and arm64, by zig cc against glibc 2.28: archives, deb, rpm, an OCI image, SBOMs
# and checksums.
#   release.sh make OUT        from the files here; VERSION and EPOCH (its date) are those of the commit
#   release.sh twice OUT       two times from what is committed, in two folders, the second time without caches; all
#                              bits must be equal
#   release.sh install OUT     installs what is in OUT, each package in a root of its own, where there is neither Go
#                              nor a compiler, and draws a picture there; needs root
# Needs Go, zig (pip install ziglang==0.17.1; ZIG says how it is called), and apt-get, which fetches the C library of
# the image; install also debootstrap, rpm and, for the architecture that is not this machine's, qemu-user-static.
# ARCHS: which architectures (default "amd64 arm64").
set -euo pipefail
cd "$(dirname "$0")/.."

GLIBC=2.28
: "${ZIG:=python3 -m ziglang}"
: "${VERSION:=$(git describe --tags --always)}"
: "${EPOCH:=$(git log -1 --format=%ct)}"
: "${ARCHS:=amd64 arm64}"
export SOURCE_DATE_EPOCH=$EPOCH TZ=UTC LC_ALL=C
umask 022

fail() { echo "release.sh: $*" >&2 && exit 1; }

# gnu_name ARCH: how the C world calls an architecture.
gnu_name() {
    case $1 in
    amd64) echo x86_64 ;;
    arm64) echo aarch64 ;;
    *) fail "ARCHS: amd64, arm64" ;;
    esac
}

# package_version: VERSION as packages must have it: it begins with a digit and has no dash.
package_version() {
    case $VERSION in
    v[0-9]*) echo "${VERSION#v}" ;;
    *) echo "0~git.$VERSION" ;;
    esac | tr - +
}

# packed FOLDER NAMES...: a tar of them whose bits depend on names, contents and rights only.
packed() {
    tar -C "$1" --sort=name --mtime="@$EPOCH" --owner=0 --group=0 --numeric-owner --mode='u+rwX,go+rX,go-w' \
        --format=gnu -cf - "${@:2}"
}

# program ARCH FILE: the program itself. Neither paths of this machine nor ids of builds are in it; GOFLAGS of the
# Makefile would be.
program() {
    GOFLAGS='' GOOS=linux GOARCH=$1 CGO_ENABLED=1 CC="$ZIG cc -target $(gnu_name "$1")-linux-gnu.$GLIBC" go build \
        -trimpath -buildvcs=false -ldflags "-s -w -buildid= -extldflags=-Wl,-s -X main.version=$VERSION" -o "$2" .
}

# tree FOLDER: what an archive has besides the program.
tree() {
    mkdir -p "$1/clients/python" "$1/examples"
    cp -r install.sh README.md CHANGELOG.md LICENSE go.mod go.sum docs "$1"
    cp -r clients/python/patchbay "$1/clients/python"
    (cd examples && find . -type f ! -path './demo/train/*' ! -path './demo/reference/*' ! -path './demo/samples/*' \
        ! -path './demo/state/*' ! -name '*.pyc' -exec cp --parents {} "$1/examples" \;)
    find "$1" -name __pycache__ -prune -exec rm -rf {} +
}

# c_library ARCH FOLDER: the C library and the certificates of the image, from Debian's packages.
c_library() {
    local state=$tmp/apt-$1 deb
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/debs" "$2/etc/ssl/certs"
    : >"$state/status"
    local apt=(apt-get -qq -o "APT::Architecture=$1" -o "APT::Architectures=$1" -o "Dir::State::lists=$state/lists"
        -o "Dir::State::status=$state/status" -o "Dir::Cache=$state/cache" -o APT::Sandbox::User=root)
    "${apt[@]}" update
    (cd "$state/debs" && "${apt[@]}" download libc6 ca-certificates)
    for deb in "$state"/debs/*.deb; do dpkg-deb -x "$deb" "$state/root"; done
    cp -a "$state/root/lib" "$2"
    [[ ! -d $state/root/lib64 ]] || cp -a "$state/root/lib64" "$2"
    cat "$state"/root/usr/share/ca-certificates/mozilla/*.crt >"$2/etc/ssl/certs/ca-certificates.crt"
    mkdir -p "$2/usr/share/doc/libc6" && cp "$state/root/usr/share/doc/libc6/copyright" "$2/usr/share/doc/libc6"
}

# package_root ARCH TREE ROOT: what deb and rpm install, laid out by install.sh itself.
package_root() {
    "$2/install.sh" --prefix "$3/usr" >/dev/null
    rm "$3/usr/share/patchbay/installed-files"
    install -m 755 "$tmp/patchbay-$1" "$3/usr/bin/patchbay"
    install -D -m 644 tools/release/package/patchbay.service "$3/usr/lib/systemd/system/patchbay.service"
    install -D -m 644 tools/release/package/patchbay.yaml "$3/etc/patchbay/patchbay.yaml"
    mkdir -p "$3/usr/share/doc/patchbay"
    cp -r README.md CHANGELOG.md docs "$3/usr/share/doc/patchbay"
    cp LICENSE "$3/usr/share/doc/patchbay/copyright"
    find "$3" -exec touch --no-dereference --date "@$EPOCH" {} +
}

# layer ARCH ROOT FILE: the layer of the image of an architecture: program, examples, C library and certificates.
layer() {
    local root=$tmp/image-$1 names
    cp -a "$2" "$root"
    rm -r "$root/usr/lib/systemd" "$root/etc/patchbay" "$root"/usr/share/{bash-completion,fish,zsh}
    c_library "$1" "$root"
    echo 'patchbay:x:65532:65532::/var/lib/patchbay:/nonexistent' >"$root/etc/passwd"
    mkdir -p "$root/tmp" "$root/var/lib/patchbay"
    mapfile -t names < <(cd "$root" && printf '%s\n' etc lib* usr)
    packed "$root" "${names[@]}" >"$3"
    tar -C "$root" -rf "$3" --mtime="@$EPOCH" --owner=65532 --group=65532 --numeric-owner --mode=1777 --format=gnu tmp \
        var/lib/patchbay
}

make_release() {
    local out=$1 arch name root layers=()
    tmp=$(mktemp -d)
    trap 'rm -rf "$tmp"' EXIT
    mkdir -p "$out"
    (cd tools/release && GOFLAGS='' go build -o "$tmp/" tool .)
    for arch in $ARCHS; do program "$arch" "$tmp/patchbay-$arch"; done
    [[ -x $tmp/patchbay-$(go env GOHOSTARCH) ]] || fail "ARCHS lacks that of this machine"
    tree "$tmp/tree"
    mkdir "$tmp/tree/bin"
    for arch in $ARCHS; do
        name=patchbay-$VERSION-linux-$arch
        root=$tmp/root-$arch
        install -m 755 "$tmp/patchbay-$(go env GOHOSTARCH)" "$tmp/tree/bin/patchbay"
        package_root "$arch" "$tmp/tree" "$root"
        install -m 755 "$tmp/patchbay-$arch" "$tmp/tree/bin/patchbay"
        packed "$tmp" --transform "s,^tree,$name," tree | gzip -9n >"$out/$name.tar.gz"
        for kind in deb rpm; do
            ARCH=$arch ROOT=$root PACKAGE_VERSION=$(package_version) "$tmp/nfpm" package --packager $kind \
                --config tools/release/package/nfpm.yaml --target "$out/$name.$kind"
        done
        "$tmp/cyclonedx-gomod" bin -json -noserial -notimestamp -version "$VERSION" -output "$out/$name.cdx.json" \
            "$tmp/patchbay-$arch"
        layer "$arch" "$root" "$tmp/layer-$arch.tar"
        layers+=("$arch=$tmp/layer-$arch.tar")
    done
    "$tmp/release" "$VERSION" "$EPOCH" "$tmp/oci" "${layers[@]}"
    packed "$tmp/oci" blobs index.json oci-layout >"$out/patchbay-$VERSION-oci.tar"
    (cd "$out" && sha256sum -- "patchbay-$VERSION"* >SHA256SUMS)
}

# twice OUT: make the release from what is committed, and again in another folder from nothing that the first has left.
twice() {
    local out=$1
    [[ -z $(git status --porcelain) ]] || fail "there are changes that are not committed"
    work=$(mktemp -d)
    trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
    mkdir "$work/first" "$work/second"
    git archive HEAD | tee >(tar -C "$work/first" -xf -) | tar -C "$work/second" -xf -
    export VERSION EPOCH ARCHS ZIG
    "$work/first/tools/release.sh" make "$out"
    GOCACHE=$work/go ZIG_GLOBAL_CACHE_DIR=$work/zig ZIG_LOCAL_CACHE_DIR=$work/zig \
        "$work/second/tools/release.sh" make "$work/again"
    diff -r "$out" "$work/again"
    echo "equal bits from two builds:"
    cat "$out/SHA256SUMS"
}

# draw WHAT ROOT: draw the demo's picture in a root, and say how long it took.
draw() {
    local began=${EPOCHREALTIME/./} failed=0
    [[ ! -e $2/usr/bin/gcc && ! -e $2/usr/bin/cc && ! -e $2/usr/bin/go && ! -e $2/usr/local/go ]]
    mkdir -p "$2/tmp" "$2/proc" "$2/dev"
    mount -t proc proc "$2/proc"
    mount --bind /dev "$2/dev"
    env -i HOME=/tmp TMPDIR=/tmp "$(command -v chroot)" "$2" /usr/bin/patchbay demo --out /tmp/demo.png \
        >"$work/demo.log" 2>&1 || failed=1
    umount "$2/proc" "$2/dev"
    if [[ $failed == 1 || $(head -c 4 "$2/tmp/demo.png" | tail -c 3) != PNG ]]; then
        cat "$work/demo.log" >&2
        fail "$1: no picture"
    fi
    echo "$1: picture after $(((${EPOCHREALTIME/./} - began) / 1000)) ms, $(sha256sum <"$2/tmp/demo.png" | cut -c1-16)"
}

# foreign ARCH: let the kernel run programs of another architecture by qemu, inside roots too.
foreign() {
    [[ $1 != "$(go env GOHOSTARCH)" ]] || return 0
    [[ $1 == arm64 ]] || fail "install knows qemu for arm64 only"
    local table=/proc/sys/fs/binfmt_misc
    [[ -e $table/register ]] || mount -t binfmt_misc none $table
    # the first bytes of an ELF program for aarch64, and which bits of them count
    local is='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    local counts='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    [[ -e $table/qemu-aarch64 ]] ||
        printf '%s' ":qemu-aarch64:M::$is:$counts:$(command -v qemu-aarch64-static):F" >$table/register
}

install_all() {
    local out=$1 host arch name newest tool
    host=$(go env GOHOSTARCH)
    work=$(mktemp -d)
    trap 'rm -rf --one-file-system "$work"' EXIT
    (cd "$out" && sha256sum --quiet -c SHA256SUMS)
    tar -C "$work" -xf "$out/patchbay-$VERSION-oci.tar" --one-top-level=oci
    (cd "$work/oci/blobs/sha256" && for tool in *; do echo "$tool  $tool"; done | sha256sum --quiet -c)
    for arch in $ARCHS; do
        name=patchbay-$VERSION-linux-$arch
        foreign "$arch"
        tar -C "$work" -xzf "$out/$name.tar.gz"
        newest=$(grep -aoE 'GLIBC_[0-9.]+' "$work/$name/bin/patchbay" | sort -uV | tail -1)
        echo "$arch: needs $newest"
        [[ $(printf 'GLIBC_%s\n%s\n' "$GLIBC" "$newest" | sort -V | tail -1) == "GLIBC_$GLIBC" ]]
        # the image: its only layer of this architecture
        mkdir "$work/image-$arch" "$work/rpm-$arch"
        tar -C "$work/image-$arch" -xzf "$work/oci/blobs/sha256/$(image_layer "$arch")"
        draw "image of $arch" "$work/image-$arch"
        # rpm: into a root with the C library alone
        cp -a "$work/image-$arch"/lib* "$work/rpm-$arch"
        rpm --root "$work/rpm-$arch" --nodeps --ignorearch -i "$out/$name.rpm" 2>/dev/null
        [[ $arch != "$host" ]] || draw "rpm of $arch" "$work/rpm-$arch"
        cmp "$work/rpm-$arch/usr/bin/patchbay" "$work/image-$arch/usr/bin/patchbay"
        rpm --root "$work/rpm-$arch" -e patchbay 2>/dev/null
        [[ ! -e $work/rpm-$arch/usr/bin/patchbay && ! -e $work/rpm-$arch/usr/share/patchbay ]]
        # deb: into the smallest Debian; of another architecture, where a picture takes minutes, only unpacked
        if [[ $arch == "$host" ]]; then
            debootstrap --variant=minbase "${SUITE:-bookworm}" "$work/deb-$arch" >"$work/debootstrap.log"
            cp "$out/$name.deb" "$work/deb-$arch/tmp/patchbay.deb"
            chroot "$work/deb-$arch" dpkg -i /tmp/patchbay.deb >/dev/null
            draw "deb of $arch" "$work/deb-$arch"
            chroot "$work/deb-$arch" dpkg --purge patchbay >/dev/null
            [[ ! -e $work/deb-$arch/usr/bin/patchbay && ! -e $work/deb-$arch/etc/patchbay ]]
            archive "$work/$name"
        else
            dpkg-deb -x "$out/$name.deb" "$work/deb-$arch"
            cmp "$work/deb-$arch/usr/bin/patchbay" "$work/image-$arch/usr/bin/patchbay"
        fi
        rm -rf --one-file-system "$work"/{image,rpm,deb}-"$arch"
    done
}

# image_layer ARCH: the digest of the layer in the image of an architecture.
image_layer() {
    local blobs=$work/oci/blobs/sha256 digest
    for digest in "$blobs"/*; do
        if head -c 1 "$digest" | grep -q '{' && grep -q "\"architecture\":\"$1\".*\"rootfs\"" "$digest"; then
            digest=$(grep -l "sha256:$(basename "$digest")" "$blobs"/*) # the manifest that names this configuration
            grep -o 'tar+gzip[^}]*sha256:[0-9a-f]*' "$digest" | grep -o '[0-9a-f]\{64\}'
        fi
    done
}

# archive FOLDER: install.sh of an unpacked archive, with few tools in PATH, and what it leaves after --uninstall.
archive() {
    local tool
    mkdir "$work/tools"
    for tool in sh sed grep find sort wc tr dirname uname mkdir cp mv chmod rm rmdir mktemp cat; do
        ln -s "$(command -v "$tool")" "$work/tools/$tool"
    done
    env -i PATH="$work/tools" HOME="$work/home" "$1/install.sh" --prefix "$work/prefix" >/dev/null
    env -i PATH=/nonexistent HOME="$work/home" "$work/prefix/bin/patchbay" demo --out "$work/demo.png" >/dev/null 2>&1
    echo "archive: $(sha256sum <"$work/demo.png" | cut -c1-16)"
    env -i PATH="$work/tools" HOME="$work/home" "$1/install.sh" --prefix "$work/prefix" --uninstall >/dev/null
    [[ -z $(find "$work/prefix" -type f) ]]
}

case ${1:-} in
make) make_release "$(realpath -m "${2:?which folder}")" ;;
twice) twice "$(realpath -m "${2:?which folder}")" ;;
install) install_all "$(realpath -m "${2:?which folder}")" ;;
*) sed -n '2,12s/^# *//p' "$0" >&2 && exit 2 ;;
esac
