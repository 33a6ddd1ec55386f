/* SPDX-License-Identifier: Apache-2.0 */
/* Opening OpenSSL: see tls_library.h. */
#include "transport/tls/tls_library.h"

#include "base/forked.h"
#include "base/log.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

static struct {
    forked_lock_t lock;
    bool open;
    tls_library_t table;
} library = {.lock = {.mutex = PTHREAD_MUTEX_INITIALIZER}};

/* What is looked up in libssl is found in libcrypto, which it needs, too. */
static const char *find_functions(void *handle, tls_library_t *table)
{
    const char *missing = NULL;
    void *symbol;
#define TLS_FUNCTION_FIND(name) \
    symbol = dlsym(handle, #name); \
    if (symbol == NULL) missing = #name; \
    memcpy(&table->name, &symbol, sizeof symbol);
    TLS_FUNCTION_LIST(TLS_FUNCTION_FIND)
#undef TLS_FUNCTION_FIND
    return missing;
}

static quoit_status_t library_load(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return error_set(QUOIT_ERR_INVALID, "OpenSSL was not found: %s; install libssl3, or name it in QUOIT_TLS_LIBRARY", dlerror());
    const char *missing = find_functions(handle, &library.table);
    if (missing != NULL)
        return error_set(QUOIT_ERR_INVALID, "QUOIT_TLS_LIBRARY=%s has no function %s: no OpenSSL 3", path, missing);
    /* No clean-up at exit: a thread of the program may still be sending then. */
    if (library.table.OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL) != 1)
        return error_set(QUOIT_ERR_INVALID, "QUOIT_TLS_LIBRARY=%s cannot start; is the system's openssl.cnf in order?", path);
    log_info("tls", "OpenSSL %lx from %s", library.table.OpenSSL_version_num() >> 12, path);
    return QUOIT_OK;
}

quoit_status_t tls_library_open(const char *path, const tls_library_t **result)
{
    forked_lock(&library.lock);
    quoit_status_t status = library.open ? QUOIT_OK : library_load(path);
    library.open = status == QUOIT_OK;
    forked_unlock(&library.lock);
    if (status == QUOIT_OK) *result = &library.table;
    return status;
}

const tls_library_t *tls_library_get(void) { return &library.table; }
