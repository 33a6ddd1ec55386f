/* SPDX-License-Identifier: Apache-2.0 */
/* A shared object that is no good transport, for one reason given when it is compiled. ("older": it is good, and older than device_reach.) */
#include "quoit/quoit_transport.h"

#ifdef FAULT_nothing

QUOIT_API int quoit_not_a_plugin(void);
QUOIT_API int quoit_not_a_plugin(void) { return 0; }

#else

#ifndef FAULT_abi
#define FAULT_abi 0
#endif
#ifndef FAULT_size
#define FAULT_size 0
#endif
#ifdef FAULT_name
#define NAME "tcp"
#else
#define NAME "bad"
#endif
#ifdef FAULT_messages
#define FLAGS QUOIT_TRANSPORT_MAP
#elif defined FAULT_device_size || defined FAULT_device_call
#define FLAGS (QUOIT_TRANSPORT_MESSAGE | QUOIT_TRANSPORT_DEVICE)
#else
#define FLAGS QUOIT_TRANSPORT_MESSAGE
#endif

static void nothing(void) {}

/* Every call is there (never used), except where that is the fault. */
static quoit_transport_ops_t table;

static void fill(void)
{
    void (**call)(void) = (void (**)(void))(void *)&table.probe;
    void (**end)(void) = (void (**)(void))(void *)(&table + 1);
    for (; call < end; call++) *call = nothing;
    table.abi = QUOIT_TRANSPORT_ABI + FAULT_abi;
    table.struct_size = (uint32_t)offsetof(quoit_transport_ops_t, device_reach) - FAULT_size * 8; /* as plug-ins older than device_reach have it */
    table.name = NAME;
    table.flags = FLAGS;
#ifdef FAULT_call
    table.cancel = 0;
#endif
#ifdef FAULT_device_call
    table.struct_size = (uint32_t)sizeof table;
    table.device_host = 0;
#endif
}

QUOIT_API const quoit_transport_ops_t *quoit_transport_plugin(void);
QUOIT_API const quoit_transport_ops_t *quoit_transport_plugin(void)
{
    fill();
    return &table;
}

#endif
