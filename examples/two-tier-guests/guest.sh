# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# What the guests run: `tier` comes from the kernel's command line.
ip link set lo up
ip link set eth0 up
if [ "${tier:?}" = db ]; then
    ip address add 10.0.0.3/24 dev eth0
    nc -ll -p 5432 -e /bin/echo "three rows"
else
    ip address add 10.0.0.2/24 dev eth0
    # shellcheck disable=SC2016 # the guest's shell, for each client
    echo 'echo "the shop has $(nc -w 5 10.0.0.3 5432)"' >/shop.sh
    nc -ll -p 80 -e /bin/sh /shop.sh
fi
