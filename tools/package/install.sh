#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what cargo has built: `./dev install` and the packages use it.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: tools/package/install.sh --from DIR [--prefix DIR] [--destdir DIR] [--libdir DIR] [--completions site|vendor]

Installs programs, libnetlib, man pages, completions, the systemd service and /etc/netvm/host.toml (unless it is there)
from DIR, a folder of cargo such as target/release. --prefix is /usr/local unless given; --libdir is lib below it. With
--destdir everything goes below that folder, for a package, without the service, which packages install by themselves.
TEXT
}

fail() {
    echo "install: $1" >&2
    exit 1
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
nfs=(simple-forward l2-switch l3-forward firewall monitor payload-scan load-balancer)
from='' prefix=/usr/local destdir='' libdir=lib completions=site
while (($# > 0)); do
    case $1 in
        -h | --help) usage && exit ;;
        --from | --prefix | --destdir | --libdir | --completions)
            (($# >= 2)) || fail "$1 needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift 2
            ;;
        *) usage >&2 && exit 2 ;;
    esac
done
[[ -n $from ]] || { usage >&2 && exit 2; }
[[ $prefix == /* ]] || fail "--prefix must be an absolute path, not '$prefix'"
[[ $completions == site || $completions == vendor ]] || fail "--completions is site or vendor, not '$completions'"
programs=(netvm netvmd netvm-extcap netvm-cni "${nfs[@]/#/netvm-}")
for program in "${programs[@]}"; do
    [[ -x $from/$program ]] || fail "$from/$program is not there: build it first"
done

to=$destdir$prefix
if ! mkdir -p "$to" 2>/dev/null || [[ ! -w $to ]]; then
    fail "$to cannot be written: run this as root, or choose another --prefix"
fi
# Configuration is where the program's service looks for it.
etc=/etc
[[ $prefix == /usr || $prefix == /usr/local ]] || etc=$prefix/etc

install -d "$to/bin" "$to/share/man/man1" "$to/share/man/man8" "$destdir$etc/netvm"
for program in "${programs[@]}"; do install -m 755 "$from/$program" "$to/bin/$program"; done
"$root/tools/package/install-netlib.sh" "$prefix" --from "$from" --libdir "$libdir" --destdir "$destdir"

"$from/netvm" man "$to/share/man/man1"
"$from/netvmd" man >"$to/share/man/man8/netvmd.8"
"$from/netvm-extcap" --man >"$to/share/man/man1/netvm-extcap.1"
install -m 644 "$root/packaging/netvm-cni.8" "$to/share/man/man8/netvm-cni.8"
for nf in "${nfs[@]}"; do "$from/netvm-$nf" --man >"$to/share/man/man1/netvm-$nf.1"; done

# completion SHELL FILE: below share.
completion() {
    install -d "$to/share/$(dirname "$2")"
    "$from/netvm" completion "$1" >"$to/share/$2"
}
zsh=zsh/site-functions
[[ $completions == site ]] || zsh=zsh/vendor-completions
completion bash bash-completion/completions/netvm
completion zsh "$zsh/_netvm"
completion fish fish/vendor_completions.d/netvm.fish

if [[ ! -e $destdir$etc/netvm/host.toml ]]; then
    install -m 644 "$root/packaging/host.toml" "$destdir$etc/netvm/host.toml"
fi
# netlib's sources, with which NFs in Rust and Go are built (netvm new-nf), and the module for those in Python.
sources=$to/share/netvm/src
install -d "$sources/crates" "$sources/bindings/go"
install -m 644 "$root"/{Cargo.toml,Cargo.lock,LICENSE} "$sources"
for crate in netlib attach region ring text; do
    rm -rf "$sources/crates/$crate"
    cp -r --no-preserve=mode,ownership "$root/crates/$crate" "$sources/crates/$crate"
    rm -rf "$sources/crates/$crate"/{tests,benches}
done
install -m 644 "$root"/bindings/go/*.{go,mod,md} "$sources/bindings/go"
install -d "$to/lib/python3/dist-packages/netvm"
install -m 644 "$root"/bindings/python/netvm/*.py "$to/lib/python3/dist-packages/netvm"

if [[ -n $destdir ]]; then
    install -d "$to/share/doc/libnetlib-dev/examples"
    install -m 644 "$root"/nf/c-sample/{Makefile,README.md,outer-tag.c,ttl-forward.c} "$to/share/doc/libnetlib-dev/examples"
    exit
fi

install -d "$to/lib/systemd/system" "$to/lib/sysusers.d"
sed -e "s|/usr/bin/|$prefix/bin/|g" -e "s|/etc/netvm|$etc/netvm|" "$root/packaging/netvmd.service" >"$to/lib/systemd/system/netvmd.service"
install -m 644 "$root/packaging/netvm.sysusers" "$to/lib/sysusers.d/netvm.conf"
echo "netvm is installed below $prefix; its configuration is $etc/netvm/host.toml"
if ((EUID == 0)) && [[ $etc == /etc ]]; then
    # The loader's list of libraries, and the group that may use the API.
    ldconfig
    getent group netvm >/dev/null || groupadd --system netvm
    [[ ! -d /run/systemd/system ]] || systemctl daemon-reload
    echo "start it with: systemctl enable --now netvmd"
else
    echo "start it with: $prefix/bin/netvmd --config $etc/netvm/host.toml --run-dir DIR"
fi
