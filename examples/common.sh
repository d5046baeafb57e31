# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What setup.sh and check.sh of the examples share.

# host NAME ADDRESS [GATEWAY]: a host, that is, a network namespace whose eth0 is the other end of interface NAME0.
host() {
    ip netns add "$1"
    ip link add "${1}0" type veth peer name eth0 netns "$1"
    ip link set "${1}0" up
    ip -n "$1" link set lo up
    ip -n "$1" link set eth0 up
    ip -n "$1" address add "$2" dev eth0
    [[ -z ${3:-} ]] || ip -n "$1" route add default via "$3"
}

# pings FROM ADDRESS [SECONDS]: an answer within 15 s, or so many.
pings() {
    local tries=0
    until ip netns exec "$1" busybox ping -c 1 -W 1 "$2" >/dev/null 2>&1; do
        ((++tries < ${3:-15})) || { echo "no answer from $2 to $1" >&2 && return 1; }
    done
    echo "$1 reaches $2"
}

# serves HOST PORT: a TCP server that says "hello from HOST" to everybody.
serves() {
    ip netns exec "$1" busybox nc -ll -p "$2" -e /bin/echo "hello from $1" </dev/null &
    local tries=0
    until ip netns exec "$1" busybox netstat -ltn | grep -q ":$2 "; do
        ((++tries < 100)) || { echo "no server in $1" >&2 && return 1; }
        sleep 0.1
    done
}

# connects FROM ADDRESS PORT: prints what the server says, within 10 s.
connects() {
    local said tries=0
    until said=$(ip netns exec "$1" busybox nc -w 3 "$2" "$3" </dev/null 2>/dev/null) && [[ -n $said ]]; do
        ((++tries < 4)) || { echo "$1 gets no connection to $2 port $3" >&2 && return 1; }
    done
    echo "$1 connects to $2 port $3: $said"
}

# is_refused FROM ADDRESS PORT
is_refused() {
    if ip netns exec "$1" busybox nc -w 2 "$2" "$3" </dev/null 2>/dev/null | grep -q .; then
        echo "$1 connects to $2 port $3, and should not" >&2
        return 1
    fi
    echo "$1 does not connect to $2 port $3"
}
