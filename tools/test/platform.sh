# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev platform [NAME]: netvm with another DPDK, and on another processor. Sourced by ./dev, which sets target_dir.
# shellcheck disable=SC2154

platforms=(dpdk-25.11 aarch64)

platform() {
    local -a chosen=("$@")
    local name status=0
    ((${#chosen[@]} > 0)) || chosen=("${platforms[@]}")
    setup
    for name in "${chosen[@]}"; do
        case $name in
            dpdk-25.11) newer_dpdk || status=1 ;;
            aarch64) aarch64 || status=1 ;;
            *) die "platform takes one of: ${platforms[*]}; not '$name'" ;;
        esac
    done
    return "$status"
}

# newer_dpdk: builds and tests what uses DPDK in a root of Debian's sid.
newer_dpdk() {
    local root=$target_dir/platform/sid.root
    ((EUID == 0)) || die "platform dpdk-25.11 makes a root of its own, which takes root"
    mkdir -p "$target_dir/platform"
    fresh_root sid "$root" gcc libc6-dev pkg-config libdpdk-dev dpdk libpcap-dev libclang-dev iproute2 ethtool git ca-certificates ||
        { printf 'SKIP: DPDK 25.11: no root of sid can be made here\n' && return; }
    # shellcheck disable=SC2016 # the inner shell's
    step "the crates of DPDK" in_root "$root" sh -c '
        pkg-config --atleast-version=25.11 libdpdk || { echo "DPDK of sid is $(pkg-config --modversion libdpdk)" && exit 1; }
        cargo test --no-fail-fast --package dpdk-sys --package dpdk' </dev/null || return
    step "netvmd and its benchmarks" in_root "$root" cargo check --package netvmd --package netvm-bench </dev/null || return
    rm -rf --one-file-system "$root" "$root.target"
}

# aarch64: tests of crates that need neither DPDK nor calls of the kernel that qemu's user mode lacks; the rest is
# checked.
aarch64() {
    local triple=aarch64-unknown-linux-gnu
    local -a tested=() skipped=()
    local name root libraries
    # apt takes no relative paths.
    root=$(realpath -m "$target_dir/platform/arm64")
    libraries=$root/root/usr/lib/aarch64-linux-gnu
    install_missing gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
    step "Rust for $triple" rustup target add "$triple" </dev/null || return
    if [[ ! -e $libraries/pkgconfig/libdpdk.pc ]]; then
        mkdir -p "$root"
        # shellcheck disable=SC2016 # the inner shell's argument
        step "DPDK for arm64" env NETVM_UNPACK_ARCHITECTURE=arm64 bash -c '
            source tools/setup/unpack-debian.sh && unpack_debian "$1" bookworm libdpdk-dev libpcap-dev' sh "$root" || return
    fi
    for name in "${aarch64_packages[@]}"; do tested+=(--package "$name"); done
    for name in "${aarch64_skipped[@]}"; do skipped+=(--skip "$name"); done
    (
        export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
        export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
        export PKG_CONFIG_ALLOW_CROSS=1 PKG_CONFIG_SYSROOT_DIR=$root/root PKG_CONFIG_LIBDIR=$libraries/pkgconfig
        status=0
        step "tests for $triple" cargo test --no-fail-fast --target "$triple" --lib "${tested[@]}" -- "${skipped[@]}" </dev/null || status=1
        step "everything else for $triple" cargo check --workspace --target "$triple" </dev/null || status=1
        exit "$status"
    )
}

# Crates whose tests need no kernel but memory, files and threads.
aarch64_packages=(
    netvm-capture netvm-clock netvm-counters netvm-cpu netvm-flow netvm-flow-table netvm-flowmon netvm-lacp netvm-model
    netvm-policy netvm-region netvm-ring netvm-router netvm-switch netvm-text netvm-wire
)
# qemu's user mode does not punch holes into files, and tells other blocks.
aarch64_skipped=(map::tests::empty_memory_gets_its_pages_later map::tests::holes_that_a_peer_punches_are_found)
