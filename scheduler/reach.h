/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Memory of a device that a transport reaches by itself: does it, for this buffer? The answer is asked for once a kind of device, and then
 * for each buffer; whatever goes wrong means that the buffer is staged, with one warning. Only for the engine's owner.
 */
#ifndef QUOIT_SCHEDULER_REACH_H
#define QUOIT_SCHEDULER_REACH_H

#include "quoit/quoit_transport.h"
#include "scheduler/device/device.h"

#include <stdbool.h>

struct engine;

/** A buffer that a transport reaches, while it is held. */
typedef struct reach {
    quoit_transport_t *transport;
    quoit_region_t *region; /* NULL: nothing is held */
} reach_t;

/** False: the buffer is to be staged. `reach` is to be given back. */
bool reach_take(struct engine *engine, quoit_transport_t *transport, quoit_device_t device, const void *pointer, size_t bytes, reach_t *reach);
/** Its transfers have ended. One that holds nothing is left alone. */
void reach_give(reach_t *reach);

#endif
