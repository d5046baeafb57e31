/* SPDX-License-Identifier: Apache-2.0 */
/* See vhost.h. Copies are in vring/. */
#include "vhost.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <linux/vhost_types.h>

#include "record.h"
#include "vring/copy.h"

struct device *netvm_vhost_devices[NETVM_VHOST_MAX_DEVICES];
__thread int netvm_vhost_call_wanted;

int
netvm_vhost_create(int device)
{
	struct device *created = aligned_alloc(_Alignof(struct device), sizeof(*created));

	if (created == NULL)
		return -ENOMEM;
	memset(created, 0, sizeof(*created));
	netvm_vhost_devices[device] = created;
	return 0;
}

void
netvm_vhost_remove(int device)
{
	free(netvm_vhost_devices[device]);
	netvm_vhost_devices[device] = NULL;
}

static void
note_recorded(const struct device *guest, struct vring_state *state)
{
	state->is_recorded = guest->log != NULL || state->inflight != NULL;
}

/* Logs writes, or no longer, as features and front-end want. */
static void
choose_log(struct device *guest)
{
	bool is_wanted = (guest->features & BIT(VHOST_F_LOG_ALL)) && guest->given_log.bits != NULL;
	uint16_t vring;

	guest->log = is_wanted ? &guest->given_log : NULL;
	for (vring = 0; vring < 2 * NETVM_VHOST_MAX_PAIRS; vring++)
		note_recorded(guest, &guest->vrings[vring]);
}

void
netvm_vhost_set_features(int device, uint64_t features)
{
	netvm_vhost_devices[device]->features = features;
	choose_log(netvm_vhost_devices[device]);
}

void
netvm_vhost_set_log(int device, void *bits, uint64_t bytes)
{
	netvm_vhost_devices[device]->given_log = (struct dirty_log){ bits, 8 * bytes };
	choose_log(netvm_vhost_devices[device]);
}

void
netvm_vhost_log_used(int device, uint16_t vring, int logs, uint64_t guest)
{
	struct vring_state *state = &netvm_vhost_devices[device]->vrings[vring];

	state->logs_used = logs;
	state->log_guest = guest;
}

void
netvm_vhost_set_memory(int device, const struct netvm_vhost_region *regions, uint32_t count)
{
	struct memory *memory = &netvm_vhost_devices[device]->memory;

	memset(memory, 0, sizeof(*memory));
	memory->count = RTE_MIN(count, (uint32_t)NETVM_VHOST_MAX_REGIONS);
	memcpy(memory->regions, regions, memory->count * sizeof(*regions));
}

int
netvm_vhost_start(int device, uint16_t vring, const struct netvm_vhost_ring_addresses *addresses, uint16_t size,
	uint16_t position, void *inflight)
{
	struct device *guest = netvm_vhost_devices[device];
	struct vring_state *state = &guest->vrings[vring];
	struct vring_state started = { .avail = position, .inflight = inflight };
	struct ring ring;
	bool packed = is_packed(guest);

	started.at.desc = addresses->descriptors;
	started.at.avail = addresses->driver;
	started.at.used = addresses->device;
	started.at.size = size;
	if (packed) {
		started.avail = position & 0x7fff;
		started.avail_wrap = started.used_wrap = position >> 15;
	}
	started.used = started.avail;
	begin_burst(&ring, guest, &started);
	if (size < NETVM_VHOST_MIN_ENTRIES || size > NETVM_VHOST_MAX_ENTRIES ||
	    !(packed ? is_sound_packed(&ring) : is_sound_split(&ring)))
		return -EINVAL;
	/* Where an earlier back end did not say where it stopped, the guest's memory does. */
	if (!packed)
		started.avail = started.used = READ(started.at.used->idx);
	netvm_inflight_begin(guest, &started);
	note_recorded(guest, &started);
	*state = started;
	return 0;
}

uint16_t
netvm_vhost_stop(int device, uint16_t vring)
{
	struct device *guest = netvm_vhost_devices[device];
	struct vring_state *state = &guest->vrings[vring];
	/* What a DMA channel has not copied was not given back. */
	uint16_t position = is_packed(guest) ? state->used | state->used_wrap << 15 : state->used;

	memset(state, 0, sizeof(*state));
	return position;
}

int
netvm_vhost_take_call(void)
{
	int wanted = netvm_vhost_call_wanted;

	netvm_vhost_call_wanted = 0;
	return wanted;
}

void
netvm_vhost_notify(int device, uint16_t vring, int enable)
{
	struct device *guest = find_device(device);
	struct vring_state *state = find_vring(guest, vring);
	struct ring ring;

	if (state == NULL)
		return;
	begin_burst(&ring, guest, state);
	if (is_packed(guest))
		notify_packed(&ring, enable);
	else
		notify_split(&ring, enable);
	if (ring.log != NULL)
		netvm_log_notify(&ring, state, is_packed(guest));
}
