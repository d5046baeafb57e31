/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rte_acl: the first of many rules that fits a key, for bursts of keys.
 *
 * A key is a few bytes in network order. A rule has a value with a prefix length, mask or upper bound for each field.
 */
#ifndef NETVM_DPDK_ACL_H
#define NETVM_DPDK_ACL_H

#include <stddef.h>
#include <stdint.h>

#include <rte_config.h>

#include <rte_acl.h>

enum netvm_acl_constant {
	NETVM_ACL_MASK = RTE_ACL_FIELD_TYPE_MASK,
	NETVM_ACL_RANGE = RTE_ACL_FIELD_TYPE_RANGE,
	NETVM_ACL_BITMASK = RTE_ACL_FIELD_TYPE_BITMASK,
	NETVM_ACL_MAX_FIELDS = RTE_ACL_MAX_FIELDS,
	NETVM_ACL_MAX_PRIORITY = RTE_ACL_MAX_PRIORITY,
	/** Keys that one call of netvm_acl_classify takes, at most. */
	NETVM_ACL_BURST = 64,
};

struct netvm_acl_field {
	/** NETVM_ACL_MASK, NETVM_ACL_RANGE or NETVM_ACL_BITMASK. */
	uint8_t type;
	/** Bytes: 1, 2, 4 or 8. */
	uint8_t size;
	/** Fields of the same four bytes have the same. */
	uint8_t input;
	/** Where in the key. */
	uint8_t offset;
};

struct netvm_acl_value {
	uint64_t value;
	/** Prefix length, upper bound or mask, by the type of the field. */
	uint64_t mask_range;
};

struct netvm_acl_rule {
	/** The highest wins: 1 to NETVM_ACL_MAX_PRIORITY. */
	int32_t priority;
	/** What classifying gives, not 0. */
	uint32_t result;
};

struct netvm_acl_spec {
	const char *name;
	const struct netvm_acl_field *fields;
	const struct netvm_acl_rule *rules;
	/** One for each field of each rule. */
	const struct netvm_acl_value *values;
	uint32_t field_count;
	uint32_t rule_count;
	/** NUMA node or -1. */
	int32_t node;
};

/** Bytes of the EAL's memory: those in use, and the longest stretch that is free. */
struct netvm_heap {
	size_t used;
	size_t longest_free;
};

void netvm_heap(struct netvm_heap *heap);

/** Switches rte_acl's log off: error numbers describe its failures. */
void netvm_acl_quiet(void);

/**
 * Compiles rules. May be called by several threads at once; the name must not be in use.
 *
 * -ENOMEM: too many tries, or no memory. -EINVAL: fields or rules that are not possible.
 */
int netvm_acl_create(const struct netvm_acl_spec *spec, struct rte_acl_ctx **context);

/**
 * The fastest way to classify with vectors of at most `bits` that this processor, the EAL's limit on SIMD and the build
 * of DPDK allow.
 */
uint32_t netvm_acl_algorithm(const struct rte_acl_ctx *context, size_t key_bytes, uint32_t bits);

/**
 * Writes the result of each of `count` keys that lie `stride` bytes apart, or 0 for those that no rule fits.
 * At most NETVM_ACL_BURST.
 */
int netvm_acl_classify(const struct rte_acl_ctx *context, const uint8_t *keys, size_t stride, uint32_t *results,
	uint32_t count, uint32_t algorithm);

#endif
