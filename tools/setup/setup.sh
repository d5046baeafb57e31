# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What building, testing and the demo need on Debian 12, Debian 13 and Ubuntu 24.04. Sourced by ./dev, which sets
# target_dir.
# shellcheck disable=SC2154

# "a|b" is met by either package, and a is what gets installed.
# What netvm is built with, and what the demo runs.
demo_packages=(
    gcc
    libc6-dev
    pkg-config
    libdpdk-dev
    libpcap-dev # compiles the filters of captures
    iproute2
    'busybox-static|busybox' # ping, httpd and wget
    curl
    ca-certificates
    util-linux
)
# What tests, lint and benchmarks need besides. Add libclang (see libclang_packages).
test_packages=(
    build-essential
    dpdk-dev # dpdk-testpmd, which the benchmarks compare with
    clang    # compiles the XDP programs of netvm-bench and netvm-bench-receive
    ethtool
    git
    qemu-system-x86 # guests: the tests boot some
    cpio            # and their images,
    syslinux        # on disks of their own
    ipxe            # boots one of them from the network
    mtools
    qemu-utils
    shellcheck
    tcpdump # read captures
    tshark
    nfdump # a collector that the tests export flows to
    bind9-dnsutils # dig, which asks the DNS responder of an example
    python3 # ./dev lint looks for module cycles with it
    frr     # routing daemons, which the tests of virtual routers run in namespaces; where systemd runs, both packages
    bird2   # start a service that netvm has no use for: systemctl disable --now frr bird
    nftables # a test makes NAT in a router's namespace
    tayga # NAT64, which the tests compare with
    containernetworking-plugins # host-local, which gives containers their addresses
    iptables # iptables-restore checks what the import of rules is tested with
)
# What `./dev bench policy`, `conn`, `vhost`, `container`, `vxlan` and `latency` compare with; nothing else needs it.
# Where systemd runs, Debian's package starts a service of its own that the benchmark has no use for: systemctl disable
# --now openvswitch-switch.
switch_peers=(openvswitch-switch-dpdk)
# Readers of IPFIX, which not every distribution has.
ipfix_readers=(libfixbuf-tools)
# What the tests of metrics and of the web page use if it is there (`./dev check-release` installs it).
# shellcheck disable=SC2034
watch_peers=(prometheus chromium)
# Clients and servers of the tests of NAT. Where systemd runs, coturn starts a service: systemctl disable --now coturn.
# shellcheck disable=SC2034
nat_clients=(coturn stun-client dnsutils iperf3 curl)
# Runtimes that the tests of the CNI plug-in use if they are there (`./dev check-release` installs them). Where systemd
# runs, two start services: systemctl disable --now docker containerd.
# shellcheck disable=SC2034
container_runtimes=(podman runc docker.io containerd)
crictl_version=v1.34.0
cnitool_version=v1.3.0
# Programs of others that tests make hops of chains of, the switch of the tests of bonds, and the etcd of the tests of
# fleets. They are unpacked, not installed: Debian's packages start services.
test_peers=(haproxy suricata openvswitch etcd)
min_dpdk=22.11
# What the first build of the demo takes: seconds of one core, and downloads (`./dev demo` says so first).
demo_build_seconds=400
demo_crates='25 MB'
rust_cost='110 MB'
rust_version=$(awk -F'"' '/^rust-version/ { print $2; exit }' Cargo.toml)

setup() {
    case ${1:-} in
        '' | --nightly | --guests | --peers | --release) ;;
        *) die "setup takes --nightly, --guests, --peers, --release or nothing, not '$1'" ;;
    esac
    setup_packages "${demo_packages[@]}" "${test_packages[@]}"
    install_available "${ipfix_readers[@]}"
    setup_libclang
    setup_rust
    setup_lint_tools
    case ${1:-} in
        --nightly) setup_nightly miri rust-src ;;
        --guests) setup_guests || die "guests with e1000 cards need a QEMU of 10.1 or later" ;;
        --peers) setup_peers grout openvswitch-dpdk "${test_peers[@]}" ;;
        --release) setup_cargo_tools cargo-deny cargo-cyclonedx || die "no cargo-deny or cargo-cyclonedx: is there a network?" ;;
    esac
}

# setup_guests: a QEMU with a vfio-user client, where the machine's has none; some 40 MB, unpacked below the target
# folder.
setup_guests() {
    if qemu-system-x86_64 -device vfio-user-pci,help 2>/dev/null </dev/null | grep -q socket=; then return; fi
    step "QEMU with a vfio-user client" tools/guest/qemu.sh "$target_dir/guest/qemu" </dev/null
}

# setup_cni_clients: the clients of CRI and CNI, which Debian does not have, for the tests of pods and of the plug-in;
# some 65 MB, below the target folder.
setup_cni_clients() {
    setup_go_program crictl "sigs.k8s.io/cri-tools/cmd/crictl@$crictl_version"
    setup_go_program cnitool "github.com/containernetworking/cni/cnitool@$cnitool_version"
}

# setup_go_program NAME PACKAGE: builds it below the target folder, where there is Go.
setup_go_program() {
    local bin
    bin=$(realpath -m "$target_dir/guest/$1/bin")
    if [[ -x $bin/$1 ]] || ! command -v go >/dev/null; then return; fi
    step "$1" env GOBIN="$bin" go install "$2" </dev/null || note "without $1, some tests of runtimes do nothing"
}

# setup_demo: what the demo needs, after saying what that costs.
setup_demo() {
    say_cost
    setup_packages "${demo_packages[@]}"
    setup_rust
}

# say_cost: what the demo will download, and how long its build takes here.
say_cost() {
    local -a missing=()
    local rust
    if has_apt; then
        mapfile -t missing < <(missing_packages "${demo_packages[@]}")
        if ((${#missing[@]} > 0)); then
            apt_update
            note "packages: $(apt_cost "${missing[@]}")"
        fi
    fi
    if ! rust_is_new_enough && ! rust_is_new_enough +stable; then rust=", after $rust_cost for Rust"; fi
    if [[ ! -x $target_dir/demo/netvm-demo ]]; then
        note "first build: about $((demo_build_seconds / $(nproc) / 60 + 1)) min on $(nproc) idle cores${rust:-}," \
            "and libraries of about $demo_crates"
    fi
}

# apt_cost PACKAGE...: what apt-get says about the size of their installation, on one line.
apt_cost() {
    LC_ALL=C apt-get install --assume-no --no-install-recommends "$@" 2>/dev/null </dev/null |
        awk '/^Need to get/ { printf "%s %s to download", $4, $5 } /^After this operation/ { printf ", %s %s on disk", $4, $5 }'
}

# setup_bench NAME [ARGUMENTS]: what this benchmark needs besides.
setup_bench() {
    case $1 in container | vxlan) install_missing iperf3 ;; esac
    if [[ $1 == router && " $* " != *" --skip-peers "* ]]; then
        step "grout" tools/setup/peer.sh grout </dev/null || die "this benchmark needs grout: --skip-peers leaves it out"
    fi
    [[ $1 != e1000 ]] || setup_guests || die "guests with e1000 cards need a QEMU of 10.1 or later"
    case $1 in
        policy | conn | vhost | container | latency | vxlan)
            if [[ " $* " != *" --skip-peers "* ]]; then
                # The tools are this release's. Without the later switch, that of the package is measured.
                install_missing "${switch_peers[@]}"
                step "Open vSwitch of Debian 13" tools/setup/peer.sh openvswitch-dpdk </dev/null || true
            fi
            ;;
    esac
}

# setup_peers NAME...: unpacks programs of newer Debian releases.
setup_peers() {
    local name status=0
    for name in "$@"; do step "$name" tools/setup/peer.sh "$name" </dev/null || status=1; done
    return "$status"
}

# install_available PACKAGE...: those that this distribution has.
install_available() {
    local name
    has_apt || return 0
    for name in "$@"; do
        if [[ -n $(apt-cache show --no-all-versions "$name" 2>/dev/null) ]]; then install_missing "$name"; fi
    done
}

# missing_packages ENTRY...: those that are not installed, one a line.
missing_packages() {
    local -A installed=()
    local entry name met
    local -a names
    IFS='|' read -r -d '' -a names < <(printf '%s|' "$@") || true
    while read -r name; do
        installed[$name]=1
    done < <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${names[@]}" 2>/dev/null | sed -n 's/^installed //p')
    for entry in "$@"; do
        met=no
        IFS='|' read -r -a names <<<"$entry"
        for name in "${names[@]}"; do
            [[ -z ${installed[$name]:-} ]] || met=yes
        done
        [[ $met == yes ]] || printf '%s\n' "${names[0]}"
    done
}

has_apt() {
    command -v dpkg-query >/dev/null && command -v apt-get >/dev/null
}

# install_missing ENTRY...: where there is apt-get; elsewhere what needs them says so.
install_missing() {
    local -a missing=()
    has_apt || return 0
    mapfile -t missing < <(missing_packages "$@")
    if ((${#missing[@]} > 0)); then apt_install "${missing[@]}"; fi
}

# libclang_packages: what bindgen lacks, with which a test compares the bindings to DPDK, one a line: libclang and the
# headers of its version. libclang-dev has both, and 240 MB of static libraries.
libclang_packages() {
    local version
    [[ -n $(missing_packages libclang-dev) ]] || return 0
    version=$(apt-cache depends --important libclang1 2>/dev/null | sed -n 's/^ *Depends: libclang1-\([0-9]*\)$/\1/p' | head -n 1)
    if [[ -z $version ]]; then
        printf 'libclang-dev\n'
    else
        missing_packages "libclang1-$version" "libclang-common-$version-dev"
    fi
}

setup_libclang() {
    local -a libclang=()
    if ! has_apt || [[ -z $(libclang_packages) ]]; then return; fi
    # Which version it is, the lists of packages say.
    [[ -n $(apt-cache show --no-all-versions libclang1 2>/dev/null) ]] || apt_update
    mapfile -t libclang < <(libclang_packages)
    install_missing "${libclang[@]}"
}

# setup_packages ENTRY...: those, and checks of what no package manager did.
setup_packages() {
    install_missing "$@"
    command -v pkg-config >/dev/null ||
        die "pkg-config is missing; ./dev installs packages on Debian and Ubuntu only:" \
            "install it, and these: $*"
    pkg-config --atleast-version="$min_dpdk" libdpdk ||
        die "DPDK $min_dpdk or later is needed, and pkg-config finds" \
            "'$(pkg-config --modversion libdpdk 2>/dev/null || echo none)':" \
            "use Debian 12, Ubuntu 24.04 or later, or set PKG_CONFIG_PATH to a DPDK of your own"
}

# as_root: how to run apt-get as root, into `run`; the error names what is to be installed.
as_root() {
    local name
    run=(env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1)
    # sudo clears the environment: hand the proxies on by name.
    for name in http_proxy https_proxy ftp_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
        [[ -z ${!name:-} ]] || run+=("$name=${!name}")
    done
    if ((EUID != 0)); then
        command -v sudo >/dev/null ||
            die "packages are missing, and there is neither root nor sudo: ask root to run 'apt-get install $*'"
        run=(sudo "${run[@]}")
    fi
    # At a terminal apt-get shows its progress.
    apt_quiet=()
    if [[ ${CI:-} == true ]]; then apt_quiet=(-qq); elif [[ ! -t 1 ]]; then apt_quiet=(-q); fi
}

# apt_update: refresh the lists, once in a run.
apt_update() {
    local -a run apt_quiet
    [[ -z ${apt_is_fresh:-} ]] || return 0
    apt_is_fresh=yes
    as_root "$@"
    # A foreign package source that is down must not stop us, so only the install decides.
    step "apt-get update" "${run[@]}" apt-get update "${apt_quiet[@]}" </dev/null || true
}

# apt_install PACKAGE...: refresh the lists and install, as root or through sudo, asking nothing.
apt_install() {
    local -a run apt_quiet options=(-y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
    local name
    note "installing packages: $*"
    apt_update "$@"
    as_root "$@"
    for name in "$@"; do
        [[ -n $(apt-cache show --no-all-versions "$name" 2>/dev/null) ]] ||
            die "apt-get knows no package '$name': is there a network, is this Debian 12, Ubuntu 24.04 or later," \
                "and are its 'main' (Debian) or 'universe' (Ubuntu) sources enabled?"
    done
    step "apt-get install" "${run[@]}" \
        apt-get install "${apt_quiet[@]}" --no-install-recommends "${options[@]}" "$@" </dev/null ||
        die "apt-get could not install $*: its messages above say why (no network? another apt-get at work?)"
}

# rust_is_new_enough [+TOOLCHAIN]: does that cargo run, and is it what the workspace asks for?
rust_is_new_enough() {
    local have
    have=$(cargo "$@" --version 2>/dev/null </dev/null | awk '{ print $2 }') || return 1
    [[ -n $have && $(printf '%s\n' "$rust_version" "${have%%-*}" | sort -V | head -n 1) == "$rust_version" ]]
}

has_toolchain() {
    command -v rustup >/dev/null && rustup toolchain list 2>/dev/null </dev/null | grep -q "^$1"
}

setup_rust() {
    if ! rust_is_new_enough; then
        if ! has_toolchain stable || ! rust_is_new_enough +stable; then install_rust; fi
        # The user's default toolchain stays what it is; this run builds with stable.
        if ! rust_is_new_enough; then export RUSTUP_TOOLCHAIN=stable; fi
        rust_is_new_enough || die "cargo $rust_version or later is needed, and stable is still older:" \
            "'cargo --version' says '$(cargo --version 2>&1 || true)'"
    fi
}

setup_lint_tools() {
    if ! cargo clippy --version >/dev/null 2>&1 || ! cargo fmt --version >/dev/null 2>&1; then
        command -v rustup >/dev/null || die "this cargo has no clippy or no rustfmt: install them (rust-clippy, rustfmt)"
        step "rustup: clippy and rustfmt" rustup component add clippy rustfmt </dev/null ||
            die "rustup could not install clippy and rustfmt: is there a network?"
    fi
}

# setup_cargo_tools NAME...: builds programs of crates.io that are not on the path, below the target folder.
setup_cargo_tools() {
    local name
    for name in "$@"; do
        command -v "$name" >/dev/null || step "$name" cargo install --quiet --locked --root "$target_dir/tools" "$name" </dev/null || return
    done
}

install_rust() {
    if ! command -v rustup >/dev/null; then install_rustup; fi
    step "rustup: Rust stable ($rust_version or later)" rustup toolchain install stable --profile minimal \
        --no-self-update </dev/null ||
        die "rustup could not install Rust stable: is there a network?" \
            "RUSTUP_DIST_SERVER and https_proxy are honoured"
}

install_rustup() {
    # The distribution's rustup (Debian 13, Ubuntu 24.04) unless it would push out the distribution's cargo.
    if command -v apt-cache >/dev/null && [[ -n $(apt-cache show --no-all-versions rustup 2>/dev/null) ]] &&
        [[ $(dpkg-query -W -f '${db:Status-Status}\n' cargo rustc 2>/dev/null) != *installed* ]]; then
        apt_install rustup
        hash -r
        return
    fi
    local script url got=no
    script=$(mktemp)
    for url in "${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}/rustup-init.sh" https://sh.rustup.rs; do
        note "rustup: from $url"
        if curl --fail -sS --location --proto-redir =https --retry 2 --output "$script" "$url"; then
            got=yes
            break
        fi
    done
    [[ $got == yes ]] || die "rustup could not be downloaded: is there a network?" \
        "RUSTUP_UPDATE_ROOT and https_proxy are honoured"
    step "rustup" env RUSTUP_INIT_SKIP_PATH_CHECK=yes \
        sh "$script" -y --no-modify-path --profile minimal --default-toolchain none </dev/null ||
        die "the rustup installer failed: its messages above say why"
    rm -f "$script"
    hash -r
    local home=${CARGO_HOME:-$HOME/.cargo}
    note "cargo is in $home/bin: ./dev finds it there, and your shell does after '. $home/env'"
}

# has_nightly COMPONENT...: is there a nightly toolchain with these? Asks no network.
has_nightly() {
    local have name
    has_toolchain nightly || return 1
    have=$(rustup component list --toolchain nightly --installed 2>/dev/null </dev/null) || return 1
    for name in "$@"; do
        grep -q "^$name" <<<"$have" || return 1
    done
}

setup_nightly() {
    if has_nightly "$@"; then return; fi
    command -v rustup >/dev/null || die "a nightly compiler takes rustup, and this cargo is not rustup's: install rustup"
    if has_toolchain nightly; then
        step "rustup: nightly components $*" rustup component add --toolchain nightly "$@" </dev/null
    else
        step "rustup: nightly with $*" rustup toolchain install nightly --profile minimal --no-self-update \
            "${@/#/--component=}" </dev/null
    fi || die "rustup could not install nightly with $*: is there a network?"
}
