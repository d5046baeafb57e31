/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A frame of the test traffic: UDP over IPv4, 60 bytes (64 with FCS). For DPDK programs and for BPF.
 *
 * A 64-bit bijection (splitmix64; Steele, Lea and Flood, OOPSLA 2014) maps flow n to its addresses and ports:
 * unordered, like a scan, and all different. Bit 3 of the source address's first octet is 0, so no source is in
 * 76.0.0.0/8 or 136.0.0.0/8, the sources of acl1_1k's UDP rules: no packet matches them.
 */
#ifndef NETVM_BENCH_FRAME_H
#define NETVM_BENCH_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Bytes of a frame, without FCS. */
#define NETVM_BENCH_FRAME 60
/** Bytes of a frame that are not 0: the first ones. */
#define NETVM_BENCH_FRONT 40

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "frames are written as little-endian words"
#endif

static inline uint64_t mix(uint64_t z)
{
	z += 0x9e3779b97f4a7c15;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

#define WORD(a, b, c, d, e, f, g, h)                                                                                   \
	((uint64_t)(a) | (uint64_t)(b) << 8 | (uint64_t)(c) << 16 | (uint64_t)(d) << 24 | (uint64_t)(e) << 32 |       \
	 (uint64_t)(f) << 40 | (uint64_t)(g) << 48 | (uint64_t)(h) << 56)
#define IP_BYTES (NETVM_BENCH_FRAME - 14)
#define UDP_BYTES (IP_BYTES - 20)
#define TCP_BYTES 40

typedef uint64_t __attribute__((may_alias)) frame_word;

/*
 * Writes a word of a frame, which is aligned to 8 bytes. From a register: wider loads of what was just written would
 * wait.
 */
static inline __attribute__((always_inline)) void put(uint8_t *frame, uint32_t n, uint64_t word)
{
	*(frame_word *)(frame + 8 * n) = word;
}

/* The ends of a packet. */
struct frame_ends {
	uint32_t from, to;
	/* Source port and destination port. */
	uint32_t ports;
};

/* The ends of a flow. With a `destination`, in network order, the source is in 10.0.0.0/8. */
static inline __attribute__((always_inline)) struct frame_ends ends_of(uint64_t flow, const uint32_t *destination)
{
	uint64_t tuple = mix(flow);
	struct frame_ends ends = {
		.from = (uint32_t)tuple & ~UINT32_C(0x08),
		.to = (uint32_t)(tuple >> 32),
		/* Above 1023: bit 2 of the first octet is set. */
		.ports = (uint32_t)((tuple * 0xd1342543de82ef95) >> 32) | 0x00040004,
	};

	if (destination != NULL) {
		ends.from = ends.from << 8 | 10;
		ends.to = *destination;
	}
	return ends;
}

/* The ends of the answers. */
static inline __attribute__((always_inline)) struct frame_ends answering(struct frame_ends ends)
{
	return (struct frame_ends){ .from = ends.to, .to = ends.from, .ports = ends.ports >> 16 | ends.ports << 16 };
}

/* The sum of words (RFC 1071), which does not depend on the byte order, if all words have the same. */
static inline __attribute__((always_inline)) uint32_t folded(uint32_t sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/*
 * Writes a frame up to the ports, from 02:00:00:00:00:02 to 02:00:00:00:00:01; TTL 64, do not fragment. `from_mac` is
 * that of its second word, `next` are the two bytes after the ports.
 */
static inline __attribute__((always_inline)) void
write_ends(uint8_t *frame, struct frame_ends ends, uint64_t from_mac, const uint8_t protocol, uint64_t next)
{
	const uint32_t bytes = protocol == 17 ? IP_BYTES : TCP_BYTES;
	const uint32_t fixed = 0x0045 + (bytes << 8) + 0x0040 + ((uint32_t)protocol << 8 | 64);
	uint32_t sum = folded(fixed + (ends.from & 0xffff) + (ends.from >> 16) + (ends.to & 0xffff) + (ends.to >> 16));

	put(frame, 0, WORD(2, 0, 0, 0, 0, 1, 2, 0));
	put(frame, 1, from_mac);
	put(frame, 2, WORD(0, bytes, 0, 0, 0x40, 0, 64, protocol));
	put(frame, 3, (uint16_t)~sum | (uint64_t)ends.from << 16 | (uint64_t)(ends.to & 0xffff) << 48);
	put(frame, 4, ends.to >> 16 | (uint64_t)ends.ports << 16 | next << 48);
}

#define FROM_MAC WORD(0, 0, 0, 2, 0x08, 0x00, 0x45, 0)

/* Writes the front of a flow's frame; no UDP checksum (RFC 768). */
static inline __attribute__((always_inline)) void
write_front(uint8_t *frame, uint64_t flow, const bool new_macs, const uint32_t *destination)
{
	uint64_t from_mac = FROM_MAC;

	if (new_macs)
		from_mac = (from_mac & ~UINT64_C(0xffffffff)) | (uint32_t)((uint32_t)flow * 0x9e3779b1);
	write_ends(frame, ends_of(flow, destination), from_mac, 17, (uint64_t)UDP_BYTES << 8);
}

#endif
