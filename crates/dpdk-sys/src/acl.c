/* SPDX-License-Identifier: Apache-2.0 */
/* See acl.h. */
#include "acl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <rte_cpuflags.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_vect.h>

void
netvm_heap(struct netvm_heap *heap)
{
	unsigned int i;

	memset(heap, 0, sizeof(*heap));
	for (i = 0; i < rte_socket_count(); i++) {
		struct rte_malloc_socket_stats stats;
		int node = rte_socket_id_by_idx(i);

		if (node < 0 || rte_malloc_get_socket_stats(node, &stats) != 0)
			continue;
		heap->used += stats.heap_allocsz_bytes;
		heap->longest_free = RTE_MAX(heap->longest_free, stats.greatest_free_size);
	}
}

void
netvm_acl_quiet(void)
{
	rte_log_set_level_pattern("lib.acl", RTE_LOG_EMERG);
}

/* Adds the rules in portions, converted to the form of rte_acl. */
static int
add_rules(struct rte_acl_ctx *context, const struct netvm_acl_spec *spec)
{
	enum { PORTION = 256 };
	size_t size = RTE_ACL_RULE_SZ(spec->field_count);
	uint8_t *portion = calloc(PORTION, size);
	uint32_t i, field, filled = 0;
	int error = 0;

	if (portion == NULL)
		return -ENOMEM;
	for (i = 0; i < spec->rule_count && error == 0; i++) {
		struct rte_acl_rule *rule = (struct rte_acl_rule *)(portion + filled * size);
		const struct netvm_acl_value *values = spec->values + (size_t)i * spec->field_count;

		rule->data.category_mask = 1;
		rule->data.priority = spec->rules[i].priority;
		rule->data.userdata = spec->rules[i].result;
		for (field = 0; field < spec->field_count; field++) {
			rule->field[field].value.u64 = values[field].value;
			rule->field[field].mask_range.u64 = values[field].mask_range;
		}
		if (++filled == PORTION || i + 1 == spec->rule_count) {
			error = rte_acl_add_rules(context, (struct rte_acl_rule *)portion, filled);
			filled = 0;
		}
	}
	free(portion);
	return error;
}

/*
 * With a limit in its configuration rte_acl tries to do with as few tries as fit, at great expense: 10,000 rules that
 * overlap much (ClassBench acl2) take 40 s and 3.3 GB to compile, and 2 s and 400 MB without. What comes out is about
 * as fast. So there is none here, and the caller looks at how much it was.
 */
int
netvm_acl_create(const struct netvm_acl_spec *spec, struct rte_acl_ctx **context)
{
	struct rte_acl_param param = {
		.name = spec->name,
		.socket_id = spec->node < 0 ? SOCKET_ID_ANY : spec->node,
		.rule_size = RTE_ACL_RULE_SZ(spec->field_count),
		.max_rule_num = spec->rule_count,
	};
	struct rte_acl_config config = { .num_categories = 1, .num_fields = spec->field_count };
	uint32_t i;
	int error;

	*context = NULL;
	/* DPDK multiplies these as 32-bit numbers. */
	if (spec->field_count == 0 || spec->field_count > RTE_ACL_MAX_FIELDS || spec->rule_count == 0 ||
			spec->rule_count > INT32_MAX / param.rule_size)
		return -EINVAL;
	for (i = 0; i < spec->field_count; i++) {
		config.defs[i].type = spec->fields[i].type;
		config.defs[i].size = spec->fields[i].size;
		config.defs[i].field_index = i;
		config.defs[i].input_index = spec->fields[i].input;
		config.defs[i].offset = spec->fields[i].offset;
	}
	rte_errno = 0;
	*context = rte_acl_create(&param);
	if (*context == NULL)
		return rte_errno == EINVAL ? -EINVAL : -ENOMEM;
	error = add_rules(*context, spec);
	if (error == 0)
		error = rte_acl_build(*context, &config);
	if (error != 0) {
		rte_acl_free(*context);
		*context = NULL;
	}
	return error;
}

/*
 * rte_acl_create chooses by the EAL's limit on SIMD, which defaults to 256 bits because older processors lower their
 * clock for wider registers. Recent ones hardly do, and the limit applies to all of DPDK. So 256 counts as no limit
 * here; a smaller limit was configured on purpose, and holds.
 */
uint32_t
netvm_acl_algorithm(const struct rte_acl_ctx *context, size_t key_bytes, uint32_t bits)
{
#ifdef RTE_ARCH_X86
	static const uint8_t nothing[256];
	const uint8_t *key = nothing;
	uint32_t result;

	if (key_bytes > sizeof(nothing))
		return RTE_ACL_CLASSIFY_DEFAULT;
	/* A build of DPDK without the instructions has stubs that fail; so has a processor without them. */
	if (rte_vect_get_max_simd_bitwidth() >= RTE_VECT_SIMD_256) {
		if (bits == 256 && rte_acl_classify_alg(context, &key, &result, 1, 1, RTE_ACL_CLASSIFY_AVX2) == 0)
			return RTE_ACL_CLASSIFY_AVX2;
		if (bits >= 512 && rte_cpu_get_flag_enabled(RTE_CPUFLAG_AVX512F) > 0 &&
				rte_cpu_get_flag_enabled(RTE_CPUFLAG_AVX512VL) > 0 &&
				rte_cpu_get_flag_enabled(RTE_CPUFLAG_AVX512CD) > 0 &&
				rte_cpu_get_flag_enabled(RTE_CPUFLAG_AVX512BW) > 0 &&
				rte_acl_classify_alg(context, &key, &result, 1, 1, RTE_ACL_CLASSIFY_AVX512X32) == 0)
			return RTE_ACL_CLASSIFY_AVX512X32;
	}
	if (bits <= 128 && rte_cpu_get_flag_enabled(RTE_CPUFLAG_SSE4_1) > 0 &&
			rte_acl_classify_alg(context, &key, &result, 1, 1, RTE_ACL_CLASSIFY_SSE) == 0)
		return RTE_ACL_CLASSIFY_SSE;
#else
	(void)context;
	(void)key_bytes;
	(void)bits;
#endif
	return RTE_ACL_CLASSIFY_DEFAULT;
}

int
netvm_acl_classify(const struct rte_acl_ctx *context, const uint8_t *keys, size_t stride, uint32_t *results,
	uint32_t count, uint32_t algorithm)
{
	const uint8_t *data[NETVM_ACL_BURST];
	uint32_t i;

	if (count > NETVM_ACL_BURST)
		return -EINVAL;
	for (i = 0; i < count; i++)
		data[i] = keys + i * stride;
	if (algorithm == RTE_ACL_CLASSIFY_DEFAULT)
		return rte_acl_classify(context, data, results, count, 1);
	return rte_acl_classify_alg(context, data, results, count, 1, algorithm);
}
