/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What others learn of a device besides its rings: which pages it has written, for live migrations (vhost-user,
 * "Migration"), and where its rings are, for a back-end after a crash ("Inflight I/O tracking"). For this folder and
 * vring/.
 *
 * Nothing here is called while neither is asked for, but for one branch a burst.
 */
#ifndef NETVM_DPDK_VHOST_RECORD_H
#define NETVM_DPDK_VHOST_RECORD_H

#include "vring/vring.h"

/*
 * The state of a ring for a back-end after a crash, in memory that the front-end keeps: the parts of QueueRegionSplit
 * and QueueRegionPacked that a device needs which returns buffers in order, a burst at a time. Nothing is in flight
 * between two bursts, so that no descriptor is ever marked.
 */
struct inflight_split {
	uint64_t features;
	uint16_t version, desc_num, last_batch_head, used_idx;
};

struct inflight_packed {
	uint64_t features;
	uint16_t version, desc_num, free_head, old_free_head, used_idx, old_used_idx;
	uint8_t used_wrap_counter, old_used_wrap_counter, padding[7];
};

/* Marks pages of the guest as written. Those that the log does not have are left out. */
void netvm_log_pages(const struct dirty_log *log, uint64_t guest, uint64_t bytes);

/* Marks the pages at an address of ours in the guest's memory. */
void netvm_log_at(const struct ring *ring, const void *at, uint64_t bytes);

/* Marks what netvm_vhost_notify() has written. */
void netvm_log_notify(const struct ring *ring, const struct vring_state *state, bool packed);

/* Publishes the used buffers, as publish() does, and records that. */
void netvm_publish_recorded(struct ring *ring, const struct vring_state *state, bool packed);

/* Continues a ring where an earlier back-end was, or begins its record. */
void netvm_inflight_begin(const struct device *device, struct vring_state *state);

#endif
