/* SPDX-License-Identifier: Apache-2.0 */
/* An NF in C with the burst API: pushes an 802.1ad tag (service VLAN) on every packet, or pops it. */

#include <netlib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADDRESSES = 12, TAG = 4 };

/* Whether the packet got its tag. */
static int put_on(netlib_packet *packet, unsigned vlan) {
    uint8_t *data;
    if (packet->length < ADDRESSES + 2 || netlib_prepend(packet, TAG) != NETLIB_OK)
        return 0;
    data = packet->data;
    memmove(data, data + TAG, ADDRESSES);
    data[ADDRESSES] = 0x88;
    data[ADDRESSES + 1] = 0xa8;
    data[ADDRESSES + 2] = (uint8_t)(vlan >> 8);
    data[ADDRESSES + 3] = (uint8_t)vlan;
    return 1;
}

/* Whether the packet had that tag. */
static int take_off(netlib_packet *packet, unsigned vlan) {
    uint8_t *data = packet->data;
    if (packet->length < ADDRESSES + TAG + 2 || data[ADDRESSES] != 0x88 || data[ADDRESSES + 1] != 0xa8 ||
        ((data[ADDRESSES + 2] & 0x0fu) << 8 | data[ADDRESSES + 3]) != vlan)
        return 0;
    memmove(data + TAG, data, ADDRESSES);
    return netlib_trim_front(packet, TAG) == NETLIB_OK;
}

int main(int argc, char **argv) {
    static const char *const counters[] = {"changed", "dropped"};
    netlib_packet packets[NETLIB_BURST];
    netlib_options options;
    netlib_endpoint *endpoint;
    netlib_t *nf;
    int count, n, put;
    unsigned long vlan;

    if (argc != 3 || (strcmp(argv[1], "push") != 0 && strcmp(argv[1], "pop") != 0)) {
        fprintf(stderr, "usage: netvm-outer-tag push|pop VLAN\n");
        return 2;
    }
    put = strcmp(argv[1], "push") == 0;
    vlan = strtoul(argv[2], NULL, 10);
    if (vlan < 1 || vlan > 4094) {
        fprintf(stderr, "netvm-outer-tag: VLAN %s: must be 1 to 4094\n", argv[2]);
        return 2;
    }
    netlib_options_init(&options);
    options.name = "netvm-outer-tag";
    options.counters = counters;
    options.counter_count = 2;
    options.threads = 1; /* one loop, below */
    if (netlib_attach(&options, &nf) != NETLIB_OK) {
        fprintf(stderr, "netvm-outer-tag: attach: %s\n", netlib_last_error());
        return 1;
    }
    endpoint = netlib_get_endpoint(nf, 0);
    /* An NF with timers would serve them after a second without packets. */
    while ((count = netlib_receive(endpoint, packets, NETLIB_BURST, 1000000)) >= 0) {
        for (n = 0; n < count; n++) {
            int changed = put ? put_on(&packets[n], (unsigned)vlan) : take_off(&packets[n], (unsigned)vlan);
            netlib_set_verdict(&packets[n], changed ? NETLIB_NEXT : NETLIB_DROP);
            netlib_count(endpoint, changed ? 0 : 1, 1);
        }
        netlib_send(endpoint);
    }
    netlib_detach(nf);
    if (count != NETLIB_END) {
        fprintf(stderr, "netvm-outer-tag: receive: %s\n", netlib_strerror(count));
        return 1;
    }
    return 0;
}
