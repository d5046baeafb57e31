/* SPDX-License-Identifier: Apache-2.0 */
// Writes the test traffic into packets, and passes them to the kernel's network stack as if an interface had received
// them.
//
// Run by BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES (Documentation/bpf/bpf_prog_run.rst; Linux 5.18).

#include "../peer/traffic/frame.h"

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

// include/uapi/linux/bpf.h
enum { MAP_ARRAY = 2 };
enum { XDP_ABORTED = 0, XDP_PASS = 2 };
struct xdp_md {
    uint32_t data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;

// In network order.
struct {
    __uint(type, MAP_ARRAY);
    __uint(max_entries, 1);
    __type(key, uint32_t);
    __type(value, uint32_t);
} DESTINATIONS SEC(".maps");

// Entries of DESTINATIONS; set before the program is loaded.
volatile const uint32_t COUNT = 0;

static uint32_t next;

SEC("xdp") int frames(struct xdp_md *ctx)
{
    uint8_t *frame = (uint8_t *)(uintptr_t)ctx->data;
    uint32_t flow = next;
    const uint32_t *destination = map_lookup(&DESTINATIONS, &flow);

    if (!destination || frame + NETVM_BENCH_FRONT > (uint8_t *)(uintptr_t)ctx->data_end)
        return XDP_ABORTED;
    write_front(frame, flow, false, destination);
    next = flow + 1 < COUNT ? flow + 1 : 0;
    return XDP_PASS;
}
