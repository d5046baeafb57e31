#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The part of test.sh that runs in the fresh root, in namespaces of its own, where the packages of /packages are
# installed. Its argument is when their installation began, in seconds since 1970.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive

fail() {
    echo "package-test: FAILED: $*" >&2
    exit 1
}

# until_true SECONDS COMMAND...
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || fail "not within its time: $*"
        sleep 0.1
    done
}

# unit KEY: its value in the installed unit.
unit() {
    cat /usr/lib/systemd/system/netvmd.service /lib/systemd/system/netvmd.service 2>/dev/null | sed -n "s/^$1=//p" | head -n 1
}

# start_service: netvmd as the unit runs it: command, group, capabilities, directories.
start_service() {
    local -a command=()
    local bounding=-all capability
    read -r -a command <<<"$(unit ExecStart)"
    for capability in $(unit CapabilityBoundingSet); do bounding+=",+${capability#CAP_}"; done
    install -d -g "$(unit Group)" -m "$(unit RuntimeDirectoryMode)" "/run/$(unit RuntimeDirectory)"
    install -d -g "$(unit Group)" -m "$(unit StateDirectoryMode)" "/var/lib/$(unit StateDirectory)"
    STATE_DIRECTORY=/var/lib/$(unit StateDirectory) setpriv --regid "$(unit Group)" --clear-groups --no-new-privs \
        --bounding-set "${bounding,,}" "${command[@]}" 2>>/run/netvmd.log &
    service=$!
    until_true 20 netvm status
}

stop_service() {
    kill -TERM "$service"
    wait "$service" || fail "netvmd ended with status $?"
}

# newer_packages: of the same content, one version later, in /tmp.
newer_packages() {
    local deb
    for deb in /packages/*.deb; do
        dpkg-deb --raw-extract "$deb" /tmp/newer
        sed -i -e 's/^Version: .*/&+newer/' -e '/^Depends:/s/(= \([^)]*\))/(= \1+newer)/' /tmp/newer/DEBIAN/control
        dpkg-deb --build --root-owner-group -Znone /tmp/newer "/tmp/${deb##*/}" >/dev/null
        rm -r /tmp/newer
    done
}

talk() {
    until_true 20 ip netns exec a busybox ping -c 1 -W 1 10.0.0.2
    mkdir -p /tmp/www
    seq 1 2000000 >/tmp/www/sent
    ip netns exec b busybox httpd -f -p 7000 -h /tmp/www &
    local server=$!
    until_true 20 ip netns exec a busybox wget -q -O /tmp/received http://10.0.0.2:7000/sent
    kill "$server"
    cmp /tmp/www/sent /tmp/received || fail "TCP from a to b is not intact"
}

trap 'status=$?; ((status == 0)) || { echo "netvmd said:"; tail -n 20 /run/netvmd.log; } >&2' EXIT
ip link set lo up

echo "-- what is there"
for program in netvm netvmd netvm-firewall netvm-monitor; do
    "$program" --version >/dev/null || fail "$program does not run"
done
getent group netvm >/dev/null || fail "there is no group netvm"
for page in man1/netvm.1 man1/netvm-apply.1 man8/netvmd.8 man1/netvm-firewall.1 man1/netvm-extcap.1; do
    [[ -s $(echo /usr/share/man/"$page"*) ]] || fail "no man page $page"
done
[[ -s /usr/share/bash-completion/completions/netvm ]] || fail "no completions"
if command -v systemd-analyze >/dev/null; then systemd-analyze verify --man=no netvmd.service || fail "systemd refuses the unit"; fi

echo "-- the service, with the configuration of the package"
start_service
[[ $(stat -c %G:%a /run/netvm/api.sock) == netvm:660 ]] || fail "the API socket is $(stat -c %G:%a /run/netvm/api.sock), not netvm:660"
netvm check /etc/netvm/host.toml

echo "-- two containers and a chain: the examples of that file"
ip netns add a
ip netns add b
sed -i -e '/A NIC that the kernel/,/^# interface/d' -e '/^# \[engine\]/,/^# cores/d' -e 's/^# \(\[\[\|[a-z]* = \)/\1/' /etc/netvm/host.toml
netvm apply --yes /etc/netvm/host.toml
talk
netvm chain
netvm chain --json | grep -q '"watched"' || fail "there is no chain"
took=$((EPOCHSECONDS - $1))
echo "from apt-get install to TCP through a chain: $took s"
((took < 300)) || fail "a newcomer waits longer than five minutes"

echo "-- an upgrade keeps the changed configuration"
newer_packages
dpkg --install /tmp/*.deb >/tmp/upgrade.log 2>&1 </dev/null || fail "upgrade: $(cat /tmp/upgrade.log)"
[[ $(dpkg-query -W -f '${Version}' netvm) == *+newer ]] || fail "the upgrade did not happen"
grep -q '^namespace = "a"' /etc/netvm/host.toml || fail "the upgrade lost the configuration"
# Where systemd runs, the package restarts the service.
stop_service
start_service
talk

echo "-- removal and purge"
stop_service
dpkg --remove netvm python3-netvm libnetlib-dev libnetlib0.1 >/tmp/remove.log 2>&1 || fail "removal: $(cat /tmp/remove.log)"
[[ -e /etc/netvm/host.toml ]] || fail "removal took the configuration"
[[ ! -e /usr/bin/netvm ]] || fail "removal left netvm"
dpkg --purge netvm python3-netvm libnetlib-dev libnetlib0.1 >/tmp/purge.log 2>&1 || fail "purge: $(cat /tmp/purge.log)"
left=$(find / -xdev \( -path /packages -o -path /tmp -o -path /run -o -path /proc -o -path /sys \) -prune -o \
    \( -name '*netvm*' -o -name 'libnetlib*' -o -name 'netlib.*' \) -print)
[[ -z $left ]] || fail "purge left $left"
echo "-- clean"
