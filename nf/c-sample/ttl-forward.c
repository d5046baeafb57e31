/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An NF in C with the callback API: decrements the TTL of IPv4 packets and drops expired ones. With the names of two
 * ports, it forwards from each to the other; without, packets go to the next hop.
 */

#include <netlib.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { FORWARDED, EXPIRED, OTHER, COUNTERS };
static const char *const counter_names[COUNTERS] = {"forwarded", "expired", "other"};

struct ports {
    const char *names[2]; /* NULL: to the next hop */
};

static netlib_t *nf;

static void on_signal(int number) {
    (void)number;
    netlib_stop(nf);
}

/* Offset of the IPv4 header, after at most one VLAN tag; 0 if there is none. */
static size_t ipv4_offset(const uint8_t *frame, size_t length) {
    size_t at = 12;
    if (length >= at + 6 && frame[at] == 0x81 && frame[at + 1] == 0x00)
        at += 4;
    if (length < at + 2 + 20 || frame[at] != 0x08 || frame[at + 1] != 0x00 || frame[at + 2] >> 4 != 4)
        return 0;
    return at + 2;
}

/* RFC 1624, equation 3: HC' = ~(~HC + ~m + m'), where m is the word of TTL and protocol. */
static void decrement_ttl(uint8_t *ip) {
    uint32_t before = (uint32_t)ip[8] << 8 | ip[9];
    uint32_t sum = (uint32_t)ip[10] << 8 | ip[11];
    ip[8]--;
    sum = (~sum & 0xffff) + (~before & 0xffff) + ((uint32_t)ip[8] << 8 | ip[9]);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    ip[10] = (uint8_t)(~sum >> 8);
    ip[11] = (uint8_t)~sum;
}

/*
 * The other of the two ports. Looked up for each packet: simple, and right if port ids change; a fast NF caches the ids
 * until netlib_epoch() changes.
 */
static uint32_t verdict(netlib_endpoint *endpoint, const netlib_packet *packet, const struct ports *ports) {
    uint16_t a, b;
    if (ports->names[0] == NULL)
        return NETLIB_NEXT;
    if (netlib_port(endpoint, ports->names[0], &a) != NETLIB_OK ||
        netlib_port(endpoint, ports->names[1], &b) != NETLIB_OK)
        return NETLIB_DROP;
    return NETLIB_TO_PORT(packet->ingress == a ? b : a);
}

static uint32_t on_packet(netlib_endpoint *endpoint, netlib_packet *packet, void *user) {
    size_t ip = ipv4_offset(packet->data, packet->length);
    if (ip == 0) {
        netlib_count(endpoint, OTHER, 1);
    } else if (packet->data[ip + 8] <= 1) {
        netlib_count(endpoint, EXPIRED, 1);
        return NETLIB_DROP;
    } else {
        decrement_ttl(packet->data + ip);
        netlib_count(endpoint, FORWARDED, 1);
    }
    return verdict(endpoint, packet, user);
}

static int failed(const char *what) {
    fprintf(stderr, "netvm-ttl-forward: %s: %s\n", what, netlib_last_error());
    return 1;
}

int main(int argc, char **argv) {
    struct ports ports = {{NULL, NULL}};
    netlib_options options;
    struct sigaction action;

    if (argc == 3) {
        ports.names[0] = argv[1];
        ports.names[1] = argv[2];
    } else if (argc != 1) {
        fprintf(stderr, "usage: netvm-ttl-forward [PORT PORT]\n");
        return 2;
    }
    netlib_options_init(&options);
    options.name = "netvm-ttl-forward";
    options.counters = counter_names;
    options.counter_count = COUNTERS;
    if (netlib_attach(&options, &nf) != NETLIB_OK)
        return failed("attach");

    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (netlib_serve(nf, on_packet, &ports) != NETLIB_OK)
        return failed("serve");
    netlib_detach(nf);
    return 0;
}
