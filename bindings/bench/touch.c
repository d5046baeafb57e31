/* SPDX-License-Identifier: Apache-2.0 */
/* The NF of `./dev bench bindings` in C: reads the first byte of each packet, and sends it on. */
#include <netlib.h>
#include <stdio.h>

static volatile uint8_t seen;

static uint32_t on_packet(netlib_endpoint *endpoint, netlib_packet *packet, void *user) {
    (void)endpoint;
    (void)user;
    seen = packet->data[0];
    return NETLIB_NEXT;
}

int main(void) {
    netlib_options options;
    netlib_options_init(&options);
    options.name = options.role = "touch";
    options.waiting = NETLIB_POLL;
    if (netlib_run(&options, on_packet, NULL) != NETLIB_OK) {
        fprintf(stderr, "touch: %s\n", netlib_last_error());
        return 1;
    }
    return 0;
}
