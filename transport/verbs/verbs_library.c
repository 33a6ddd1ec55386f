/* SPDX-License-Identifier: Apache-2.0 */
/* Opening libibverbs: see verbs_library.h. */
#include "transport/verbs/verbs_library.h"

#include "base/forked.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

static struct {
    forked_lock_t lock;
    bool open;
    verbs_library_t table;
} library = {.lock = {.mutex = PTHREAD_MUTEX_INITIALIZER}};

/* A function's address into the table; POSIX lets dlsym's result be copied so. */
static bool find(void *handle, const char *name, void *place)
{
    void *symbol = dlsym(handle, name);
    memcpy(place, &symbol, sizeof symbol);
    return symbol != NULL;
}

static quoit_status_t fill(void *handle, const char *path, verbs_library_t *table)
{
    const char *missing = NULL;
#define VERBS_CALL(result, name, arguments) \
    if (!find(handle, "ibv_" #name, &table->name)) missing = "ibv_" #name;
    VERBS_CALL_LIST
#undef VERBS_CALL
    if (missing != NULL) return error_set(QUOIT_ERR_NOT_FOUND, "%s has no function %s", path, missing);
    find(handle, "_ibv_query_gid_ex", &table->query_gid_ex);
    find(handle, "ibv_is_fork_initialized", &table->is_fork_initialized);
    find(handle, "ibv_reg_mr_iova2", &table->reg_mr_iova2);
    find(handle, "ibv_reg_dmabuf_mr", &table->reg_dmabuf_mr);
    return QUOIT_OK;
}

quoit_status_t verbs_library_open(const char *path, const verbs_library_t **result)
{
    quoit_status_t status = QUOIT_OK;
    forked_lock(&library.lock);
    if (!library.open) {
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (handle == NULL)
            status = error_set(QUOIT_ERR_NOT_FOUND, "%s was not found: %s", path, dlerror());
        else
            status = fill(handle, path, &library.table);
        if (status != QUOIT_OK && handle != NULL) dlclose(handle);
        library.open = status == QUOIT_OK;
    }
    forked_unlock(&library.lock);
    if (status == QUOIT_OK) *result = &library.table;
    return status;
}
