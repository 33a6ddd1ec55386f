/* SPDX-License-Identifier: Apache-2.0 */
/* See reach.h. */
#include "scheduler/reach.h"

#include "base/log.h"
#include "scheduler/engine.h"

/* What was freed since the last look is told to those that may have kept it. */
static void tell_freed(engine_t *engine)
{
    device_freed_t freed;
    while (device_freed_next(&engine->freed_seen, &freed)) {
        for (int i = 0; i < engine->transports; i++) {
            engine_transport_t *each = &engine->transport[i];
            for (quoit_device_t device = 0; device < DEVICE_MAX; device++) {
                const device_row_t *row = device_find(device);
                if (!row || each->reaches[device] != REACH_YES || (freed.row && freed.row != row)) continue;
                each->ops->device_forget(each->transport, row->name, freed.pointer, freed.row ? freed.bytes : SIZE_MAX);
            }
        }
    }
}

/* Asked once. */
static bool reaches(engine_transport_t *each, quoit_device_t device, const device_row_t *row)
{
    if (each->reaches[device] != REACH_UNKNOWN) return each->reaches[device] == REACH_YES;
    quoit_status_t status = row->block ? each->ops->device_reach(each->transport, row->name)
                                       : error_set(QUOIT_ERR_UNSUPPORTED, "device %s does not tell its allocations", row->name);
    each->reaches[device] = status == QUOIT_OK ? REACH_YES : REACH_NO;
    if (status == QUOIT_OK) log_info("device", "transport %s reaches memory of device %s by itself", each->ops->name, row->name);
    else log_info("device", "buffers of device %s are copied to the host for transport %s: %s", row->name, each->ops->name, error_text());
    return status == QUOIT_OK;
}

static engine_transport_t *find(engine_t *engine, const quoit_transport_t *transport)
{
    for (int i = 0; i < engine->transports; i++)
        if (engine->transport[i].transport == transport) return &engine->transport[i];
    return NULL;
}

bool reach_take(engine_t *engine, quoit_transport_t *transport, quoit_device_t device, const void *pointer, size_t bytes, reach_t *reach)
{
    quoit_device_memory_t memory;
    if (!(transport->ops->flags & QUOIT_TRANSPORT_DEVICE) || !engine->device_direct) return false;
    const device_row_t *row = device_find(device);
    engine_transport_t *each = find(engine, transport);
    if (!row || !each || !reaches(each, device, row)) return false;
    tell_freed(engine);
    quoit_region_t *region = NULL;
    quoit_status_t status = device_describe(row, pointer, bytes, &memory);
    if (status == QUOIT_OK) status = each->ops->device_take(transport, &memory, &region);
    if (status == QUOIT_OK) {
        *reach = (reach_t){.transport = transport, .region = region};
        return true;
    }
    log_write(each->told_unreached[device] ? LOG_DEBUG : LOG_WARN, "device", "%s; such buffers of device %s are copied to the host and sent from there",
              error_text(), row->name);
    each->told_unreached[device] = true;
    return false;
}

void reach_give(reach_t *reach)
{
    if (!reach->region) return;
    reach->transport->ops->device_give(reach->transport, reach->region);
    reach->region = NULL;
}
