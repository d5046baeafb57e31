/* SPDX-License-Identifier: Apache-2.0 */
// Counts packets, and with MONITOR_FLOW also flows, on an interface; drops every packet.
//
// What the passive network appliance of the paper does as a kernel module (Schultz and Crowley, section III-C). The
// flow table is the kernel's hash map that evicts the least recently used entry.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

// include/uapi/linux/bpf.h
enum { MAP_PERCPU_ARRAY = 6, MAP_LRU_HASH = 9 };
enum { XDP_DROP = 1 };
struct xdp_md {
    u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;

struct counters {
    u64 packets, bytes, flows;
};
struct flow {
    u32 source, destination;
    u16 source_port, destination_port;
    u32 protocol;
};
struct features {
    u64 packets, bytes;
};

struct {
    __uint(type, MAP_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, struct counters);
} COUNTERS SEC(".maps");

struct {
    __uint(type, MAP_LRU_HASH);
    __uint(max_entries, 1 << 16);
    __type(key, struct flow);
    __type(value, struct features);
} FLOWS SEC(".maps");

// Set before the program is loaded.
volatile const u32 MONITOR_FLOW = 0;

struct ethernet {
    u8 destination[6], source[6];
    u16 type;
};
struct ipv4 {
    u8 version_and_length, service;
    u16 length, id, fragment;
    u8 ttl, protocol;
    u16 checksum;
    u32 source, destination;
};
struct ports {
    u16 source, destination;
};

// Enters a packet into the flow table; counts it as a flow if it is the first.
static __attribute__((always_inline)) void monitor(u8 *data, u8 *end, struct counters *counters) {
    struct ethernet *ethernet = (void *)data;
    struct ipv4 *ip = (void *)(ethernet + 1);
    struct ports *ports = (void *)(ip + 1);
    if ((u8 *)(ports + 1) > end || ethernet->type != __builtin_bswap16(0x0800) || ip->version_and_length != 0x45)
        return;
    struct flow flow = {ip->source, ip->destination, ports->source, ports->destination, ip->protocol};
    struct features *features = map_lookup(&FLOWS, &flow);
    if (features) {
        features->packets++;
        features->bytes += end - data;
    } else {
        struct features first = {1, end - data};
        map_update(&FLOWS, &flow, &first, 0);
        counters->flows++;
    }
}

SEC("xdp")
int count(struct xdp_md *context) {
    u8 *data = (void *)(u64)context->data, *end = (void *)(u64)context->data_end;
    u32 only = 0;
    struct counters *counters = map_lookup(&COUNTERS, &only);
    if (!counters)
        return XDP_DROP;
    counters->packets++;
    counters->bytes += end - data;
    if (MONITOR_FLOW)
        monitor(data, end, counters);
    return XDP_DROP;
}

char LICENSE[] SEC("license") = "Apache-2.0";
