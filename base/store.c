/* SPDX-License-Identifier: Apache-2.0 */
/** The public store calls: they check arguments and hand on to the kind of store. The kind made of a framework's callbacks is here. */
#include "base/settings.h"
#include "base/store_internal.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct callback_store {
    quoit_store_t base;
    quoit_store_callbacks_t callbacks;
} callback_store_t;

const char *store_description(const quoit_store_t *store) { return store->description; }

/* A callback that failed may have set a text (one that is built on Quoit) or not: say at least what failed. */
static quoit_status_t callback_failed(quoit_store_t *store, quoit_status_t status, const char *verb, const char *key, const char *before)
{
    if (strcmp(before, error_text()) != 0) return error_prefix(status, "%s: %s of key \"%s\"", store->description, verb, key);
    return error_set(status, "%s: %s of key \"%s\": %s", store->description, verb, key, quoit_status_text(status));
}

static quoit_status_t callback_set(quoit_store_t *store, const char *key, const void *value, size_t length)
{
    callback_store_t *self = (callback_store_t *)store;
    char before[ERROR_TEXT_CAPACITY];
    strcpy(before, error_text());
    quoit_status_t status = self->callbacks.set(self->callbacks.context, key, value, length);
    return status == QUOIT_OK ? QUOIT_OK : callback_failed(store, status, "set", key, before);
}

static quoit_status_t callback_get(quoit_store_t *store, const char *key, int timeout_ms, void **value, size_t *length)
{
    callback_store_t *self = (callback_store_t *)store;
    char before[ERROR_TEXT_CAPACITY];
    void *data = NULL;
    size_t size = 0;
    strcpy(before, error_text());
    quoit_status_t status = self->callbacks.get(self->callbacks.context, key, timeout_ms, &data, &size);
    if (status == QUOIT_ERR_TIMEOUT && !strcmp(before, error_text()))
        return error_set(status, "%s: key \"%s\" did not appear within %d ms", store->description, key, timeout_ms);
    if (status != QUOIT_OK) return callback_failed(store, status, "get", key, before);
    if (!data && size == 0) data = malloc(1);
    if (!data) return error_set(QUOIT_ERR_INTERNAL, "%s: get of key \"%s\" gave no value", store->description, key);
    *value = data;
    *length = size;
    return QUOIT_OK;
}

static void callback_close(quoit_store_t *store)
{
    callback_store_t *self = (callback_store_t *)store;
    if (self->callbacks.close) self->callbacks.close(self->callbacks.context);
    free(self);
}

static const store_calls_t callback_calls = {.set = callback_set, .get = callback_get, .close = callback_close};

quoit_status_t quoit_store_from_callbacks(const quoit_store_callbacks_t *callbacks, quoit_store_t **store)
{
    if (!callbacks || !store) return error_set(QUOIT_ERR_INVALID, "quoit_store_from_callbacks: callbacks or store is NULL");
    if (callbacks->struct_size < sizeof *callbacks)
        return error_set(QUOIT_ERR_INVALID, "quoit_store_from_callbacks: struct_size is %zu, expected at least %zu",
                         callbacks->struct_size, sizeof *callbacks);
    if (!callbacks->set || !callbacks->get) return error_set(QUOIT_ERR_INVALID, "quoit_store_from_callbacks: set or get is NULL");
    callback_store_t *self = calloc(1, sizeof *self);
    char *description = strdup(callbacks->description ? callbacks->description : "the store of the framework");
    if (!self || !description) {
        free(self);
        free(description);
        return error_set(QUOIT_ERR_NO_MEMORY, "no memory for a store");
    }
    self->base = (quoit_store_t){.calls = &callback_calls, .description = description, .owner = getpid()};
    self->callbacks = *callbacks;
    self->callbacks.description = description;
    *store = &self->base;
    return QUOIT_OK;
}

quoit_status_t quoit_store_open(const char *url, int rank, int size, int timeout_ms, quoit_store_t **store)
{
    store_url_t parsed;
    if (!store) return error_set(QUOIT_ERR_INVALID, "quoit_store_open: store is NULL");
    quoit_status_t status = settings_load();
    if (status != QUOIT_OK) return status;
    if (size < 1 || rank < 0 || rank >= size)
        return error_set(QUOIT_ERR_INVALID, "quoit_store_open: rank %d of %d; expected a rank from 0 to size - 1", rank, size);
    status = store_url_parse(url, &parsed);
    if (status == QUOIT_OK && parsed.scheme == STORE_SCHEME_ENV) status = store_env_resolve(&parsed);
    if (status != QUOIT_OK) return status;
    if (timeout_ms <= 0) timeout_ms = (int)(setting_int(SETTING_TIMEOUT) / 1000);
    if (parsed.scheme == STORE_SCHEME_FILE) return store_file_open(parsed.path, timeout_ms, store);
    return store_tcp_open(parsed.host, parsed.port, rank, size, timeout_ms, store);
}

bool store_key_is_valid(const char *key, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (key[i] < 0x20 || key[i] > 0x7e) return false;
    return length > 0 && length <= STORE_KEY_MAX;
}

static quoit_status_t check_call(const quoit_store_t *store, const char *call, const char *key)
{
    if (!store || !key) return error_set(QUOIT_ERR_INVALID, "%s: store or key is NULL", call);
    if (store->owner != getpid())
        return error_set(QUOIT_ERR_FORKED, "store %s belongs to the parent process, pid %ld; open one of its own in the child",
                         store->description, (long)store->owner);
    size_t length = strnlen(key, STORE_KEY_MAX + 1);
    if (length == 0 || length > STORE_KEY_MAX)
        return error_set(QUOIT_ERR_INVALID, "%s: a key has 1 to %d bytes, this one %s", call, STORE_KEY_MAX, length ? "more" : "none");
    if (!store_key_is_valid(key, length)) return error_set(QUOIT_ERR_INVALID, "%s: the key has a byte that is not printable ASCII", call);
    return QUOIT_OK;
}

quoit_status_t quoit_store_set(quoit_store_t *store, const char *key, const void *value, size_t length)
{
    quoit_status_t status = check_call(store, "quoit_store_set", key);
    if (status != QUOIT_OK) return status;
    if (!value && length > 0) return error_set(QUOIT_ERR_INVALID, "quoit_store_set(\"%s\"): value is NULL", key);
    return store->calls->set(store, key, value, length);
}

quoit_status_t quoit_store_get(quoit_store_t *store, const char *key, int timeout_ms, void **value, size_t *length)
{
    quoit_status_t status = check_call(store, "quoit_store_get", key);
    if (status != QUOIT_OK) return status;
    if (!value || !length) return error_set(QUOIT_ERR_INVALID, "quoit_store_get(\"%s\"): value or length is NULL", key);
    if (timeout_ms < 0) timeout_ms = (int)(setting_int(SETTING_TIMEOUT) / 1000); /* nothing waits for ever */
    return store->calls->get(store, key, timeout_ms, value, length);
}

void quoit_store_close(quoit_store_t *store)
{
    if (!store || store->owner != getpid()) return;
    char *description = store->description;
    store->calls->close(store);
    free(description);
}
