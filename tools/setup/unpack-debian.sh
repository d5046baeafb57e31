# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tools that run a program of another Debian release from a folder, without installing it.

# unpack_debian FOLDER "SUITE..." PACKAGE...: unpacks packages, with what they depend on, into FOLDER/root. The last
# suite is the one that they are taken from. Prints what fails.
unpack_debian() {
    local work=$1 architecture=${NETVM_UNPACK_ARCHITECTURE:-amd64} mirror=${NETVM_GUEST_MIRROR:-http://deb.debian.org/debian}
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg
    local -a suites
    read -r -a suites <<<"$2"
    shift 2
    local tool name package
    [[ $architecture != amd64 || $(uname -m) == x86_64 ]] || { echo "Debian's packages for x86-64 are unpacked, and this machine is $(uname -m)"; return 1; }
    for tool in apt-get dpkg-deb; do
        command -v "$tool" >/dev/null || { echo "$tool is missing"; return 1; }
    done
    [[ -r $keys ]] || { echo "$keys is missing: install the package debian-archive-keyring"; return 1; }
    # apt-get's own user reads and writes here, where there is one.
    chmod 755 "$work"
    mkdir -p "$work"/apt/{lists,archives}/partial "$work"/apt/parts
    : >"$work/apt/status"
    for name in "${suites[@]}"; do
        printf 'deb [signed-by=%s] %s %s main\n' "$keys" "$mirror" "$name"
    done | sort -u >"$work/apt/sources.list"
    # A state of its own: this machine's packages and sources have no part in it.
    cat >"$work/apt/apt.conf" <<END
Dir::State "$work/apt";
Dir::State::status "$work/apt/status";
Dir::State::Lists "$work/apt/lists";
Dir::Cache "$work/apt";
Dir::Cache::archives "$work/apt/archives";
Dir::Etc::SourceList "$work/apt/sources.list";
Dir::Etc::SourceParts "$work/apt/parts";
Dir::Etc::Preferences "$work/apt/none";
Dir::Etc::PreferencesParts "$work/apt/parts";
APT::Install-Recommends "false";
APT::Architecture "$architecture";
Acquire::Languages "none";
Debug::NoLocking "true";
END
    export APT_CONFIG=$work/apt/apt.conf
    local log=$work/log
    apt-get update >"$log" 2>&1 || { echo "apt-get update of ${suites[-1]}: $(tail -n 3 "$log")"; return 1; }
    apt-get install -y --download-only -t "${suites[-1]}" "$@" >"$log" 2>&1 ||
        { echo "apt-get download of $* from ${suites[-1]}: $(tail -n 3 "$log")"; return 1; }
    for package in "$work"/apt/archives/*.deb; do
        dpkg-deb --extract "$package" "$work/root" || { echo "cannot unpack $package"; return 1; }
    done
    rm -rf "$work/apt" "$log" "$work"/root/usr/share/{doc,man,locale}
}
