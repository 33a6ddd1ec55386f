/* SPDX-License-Identifier: Apache-2.0 */
/** What the kinds of store share: the head of each object, its table of calls, limits, and the parser of URLs. */
#ifndef QUOIT_BASE_STORE_INTERNAL_H
#define QUOIT_BASE_STORE_INTERNAL_H

#include "base/store.h"

#include <stdbool.h>
#include <sys/types.h>

enum {
    STORE_KEY_MAX = 255,       /* bytes, printable ASCII */
    STORE_VALUE_MAX = 1 << 24, /* bytes; of Quoit's own stores */
    STORE_HOST_CAPACITY = 256
};

typedef struct store_calls {
    quoit_status_t (*set)(quoit_store_t *store, const char *key, const void *value, size_t length);
    quoit_status_t (*get)(quoit_store_t *store, const char *key, int timeout_ms, void **value, size_t *length); /* timeout_ms >= 0 */
    void (*close)(quoit_store_t *store); /* frees all but the description; not called in a forked child */
} store_calls_t;

/** First member of every kind. */
struct quoit_store {
    const store_calls_t *calls;
    char *description; /* owned; freed by quoit_store_close */
    pid_t owner;       /* process that opened it */
};

/** May the bytes be a key? 1 to STORE_KEY_MAX of printable ASCII. */
bool store_key_is_valid(const char *key, size_t length);

typedef enum store_scheme { STORE_SCHEME_TCP, STORE_SCHEME_FILE, STORE_SCHEME_ENV } store_scheme_t;

typedef struct store_url {
    store_scheme_t scheme;
    char host[STORE_HOST_CAPACITY]; /* TCP; without brackets */
    int port;                       /* TCP */
    const char *path;               /* FILE; points into the URL */
} store_url_t;

/** ERR_INVALID with a text that names the URL and what is wrong. */
quoit_status_t store_url_parse(const char *url, store_url_t *parsed);
/** What env:// stands for, by the environment: a tcp or file URL. `path` of the result lives as long as the settings. */
quoit_status_t store_env_resolve(store_url_t *parsed);

#endif
