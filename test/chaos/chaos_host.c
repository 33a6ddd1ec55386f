/* SPDX-License-Identifier: Apache-2.0 */
/* What the program hands to the plug-in: its built-in transports, by name. Exported from the executable. */
#include "transport/registry.h"

#include <string.h>

__attribute__((visibility("default"))) const quoit_transport_ops_t *chaos_wrapped(const char *name);

const quoit_transport_ops_t *chaos_wrapped(const char *name)
{
    static const quoit_transport_ops_t *const all[] = {&transport_tcp, &transport_shm, &transport_verbs, &transport_ucx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i]->name, name) == 0) return all[i];
    return NULL;
}
