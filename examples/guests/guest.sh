# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# What the guest runs: two servers.
ip link set lo up
ip link set eth0 up
ip address add 10.0.0.2/24 dev eth0
nc -ll -p 23 -e /bin/echo "hello from guest" &
nc -ll -p 80 -e /bin/echo "hello from guest"
