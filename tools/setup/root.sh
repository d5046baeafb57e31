# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Roots of other suites of Debian and Ubuntu, to build and to test in. Sourced by ./dev, which sets target_dir.
# shellcheck disable=SC2154

root_tools=(mmdebstrap debian-archive-keyring)
# The exit status of a command for which no root of the suite can be made.
# shellcheck disable=SC2034
no_root=75

# find_archive SUITE: sets archive, mmdebstrap's options for the archive of SUITE. Debian 12 has no package with
# Ubuntu's keys: they come from Ubuntu's, whose content is known. DPDK is in universe there.
archive=()
find_archive() {
    local file=/usr/share/keyrings/ubuntu-archive-keyring.gpg work=$target_dir/package/keyring
    local name=ubuntu-keyring_2023.11.28.1_all.deb sum=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8
    archive=()
    # A mirror of it may be some weeks old.
    [[ $1 != sid ]] || archive=(--aptopt='Acquire::Check-Valid-Until "false"')
    [[ $1 == noble ]] || return 0
    archive=("--components=main,universe")
    [[ ! -e $file ]] || return 0
    mkdir -p "$work"
    if [[ ! -e $work$file ]]; then
        curl --fail -sS --retry 2 --output "$work/$name" "http://archive.ubuntu.com/ubuntu/pool/main/u/ubuntu-keyring/$name" ||
            die "cannot get the keys of Ubuntu's archive: is there a network?"
        sha256sum --check --quiet <<<"$sum  $work/$name" || die "$work/$name is not what it should be: remove it and try again"
        dpkg-deb --extract "$work/$name" "$work"
    fi
    archive+=(--keyring="$(realpath "$work$file")")
}

# fresh_root SUITE ROOT PACKAGE...: a minimal root with these packages.
fresh_root() {
    local suite=$1 root=$2
    shift 2
    install_missing "${root_tools[@]}"
    find_archive "$suite"
    rm -rf --one-file-system "$root"
    # shellcheck disable=SC2016 # mmdebstrap's shell has the root as $1
    step "fresh root of $suite" mmdebstrap --quiet --variant=apt "${archive[@]}" --aptopt='APT::Install-Recommends "false"' \
        --include="$(IFS=, && echo "$*")" --customize-hook='cp -L /etc/resolv.conf "$1/etc/resolv.conf"' --skip=cleanup/apt \
        "$suite" "$root" </dev/null
}

# in_root ROOT COMMAND...: runs a command in the checkout as it is seen in the root, with this machine's Rust. Its
# target folder is ROOT.target.
in_root() {
    local root=$1 home=${CARGO_HOME:-$HOME/.cargo}
    shift
    mkdir -p "$root"/{src,cargo,rustup,build} "$root.target"
    # The mounts end with the namespace.
    # shellcheck disable=SC2016 # the inner shell's arguments
    unshare --mount --fork sh -c '
        root=$1 && mount --make-rprivate / && mount --rbind "$2" "$root/src" && mount --rbind "$3" "$root/cargo" &&
        mount --rbind "$4" "$root/rustup" && mount --rbind "$5" "$root/build" && mount -t proc proc "$root/proc" &&
        mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" && shift 5 &&
        exec chroot "$root" env -C /src HOME=/root CARGO_HOME=/cargo RUSTUP_HOME=/rustup CARGO_TARGET_DIR=/build PATH=/cargo/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"' sh \
        "$root" "$PWD" "$home" "${RUSTUP_HOME:-$HOME/.rustup}" "$(realpath "$root.target")" "$@"
}
