/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry: one line for each transport that is built in, and the loading of those that are shared objects. A new built-in
 * transport is added to `built_in`; its place there is its rank in "auto", after all plug-ins.
 */
#include "transport/registry.h"

#include "base/forked.h"
#include "base/log.h"
#include "base/settings.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const quoit_transport_ops_t *const built_in[] = {&transport_shm, &transport_verbs, &transport_tcp, &transport_ucx, &transport_self};

/*
 * Not in "auto". UCX starts threads, reads an environment of its own, and joins nothing that TCP does not. verbs cannot do TLS, and who
 * asks for that asks for no other.
 */
static bool only_by_name(const quoit_transport_ops_t *ops)
{
    return ops == &transport_ucx || (ops == &transport_verbs && setting_int(SETTING_TLS) != 0);
}

enum { BUILT_IN_COUNT = sizeof built_in / sizeof built_in[0], PATH_CAPACITY = 4096, NAME_CAPACITY = 64 };

/* Plug-ins first, then built_in. Filled once, under the lock; shared objects stay loaded for the life of the process. */
static struct {
    forked_lock_t lock;
    bool loaded;
    int count;
    const quoit_transport_ops_t *all[REGISTRY_CAPACITY];
} registry = {.lock = {.mutex = PTHREAD_MUTEX_INITIALIZER}};

static const quoit_transport_ops_t *find(const quoit_transport_ops_t *const *list, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(list[i]->name, name) == 0) return list[i];
    return NULL;
}

/* ---------------------------------------------------------------- plug-ins */

static bool name_is_good(const char *name)
{
    size_t length = name ? strlen(name) : 0;
    if (length == 0 || length >= NAME_CAPACITY || strcmp(name, "auto") == 0) return false;
    for (; *name; name++)
        if (!isalnum((unsigned char)*name) && *name != '_' && *name != '-') return false;
    return true;
}

static bool calls_are_whole(const quoit_transport_ops_t *ops)
{
    return ops->probe && ops->open && ops->close && ops->listen && ops->trust && ops->distrust && ops->connect &&
           ops->endpoint_status && ops->disconnect && ops->send && ops->recv && ops->cancel && ops->notify && ops->next_event &&
           ops->progress && ops->idle && ops->descriptor && ops->arm && ops->disarm && ops->reg && ops->dereg &&
           ops->share_alloc && ops->share_free && ops->share_root && ops->export_memory && ops->attach && ops->ring &&
           ops->describe && ops->count &&
           (!(ops->flags & QUOIT_TRANSPORT_DEVICE) || (ops->device_reach && ops->device_take && ops->device_give && ops->device_forget &&
                                                       ops->device_send && ops->device_recv && ops->device_host));
}

/* Calls came at the end of the table; a transport that has no use for the newer ones may have been built before them. */
static size_t size_needed(const quoit_transport_ops_t *ops)
{
    return ops->flags & QUOIT_TRANSPORT_DEVICE ? sizeof *ops : offsetof(quoit_transport_ops_t, device_reach);
}

static quoit_status_t ops_check(const char *path, const quoit_transport_ops_t *ops)
{
    const char *setting = setting_name(SETTING_TRANSPORT_PLUGIN);
    if (!ops) return error_set(QUOIT_ERR_INVALID, "%s: %s: quoit_transport_plugin() returned nothing", setting, path);
    if (ops->abi != QUOIT_TRANSPORT_ABI)
        return error_set(QUOIT_ERR_INVALID, "%s: %s: built for transport ABI %u, this library has %d; build the plug-in anew with its headers",
                         setting, path, ops->abi, QUOIT_TRANSPORT_ABI);
    if (ops->struct_size < size_needed(ops))
        return error_set(QUOIT_ERR_INVALID, "%s: %s: its table of calls has %u bytes, this library needs %zu; build the plug-in anew with its headers",
                         setting, path, ops->struct_size, size_needed(ops));
    if (!name_is_good(ops->name))
        return error_set(QUOIT_ERR_INVALID, "%s: %s: the transport's name \"%s\" is not made of letters, digits, - and _ (or is \"auto\")",
                         setting, path, ops->name ? ops->name : "");
    if (!calls_are_whole(ops))
        return error_set(QUOIT_ERR_INVALID, "%s: %s: transport %s lacks a call; one that it does not support must say so, not be NULL",
                         setting, path, ops->name);
    if (!(ops->flags & QUOIT_TRANSPORT_MESSAGE))
        return error_set(QUOIT_ERR_INVALID, "%s: %s: transport %s has no messages (flag MESSAGE)", setting, path, ops->name);
    return QUOIT_OK;
}

static quoit_status_t plugin_load(const char *path, const quoit_transport_ops_t **list, int *count)
{
    const char *setting = setting_name(SETTING_TRANSPORT_PLUGIN);
    if (*count + BUILT_IN_COUNT >= REGISTRY_CAPACITY)
        return error_set(QUOIT_ERR_INVALID, "%s: more than %d transports", setting, REGISTRY_CAPACITY - BUILT_IN_COUNT);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return error_set(QUOIT_ERR_INVALID, "%s: cannot load: %s", setting, dlerror());
    quoit_transport_plugin_t entry;
    void *symbol = dlsym(handle, "quoit_transport_plugin");
    quoit_status_t status;
    if (!symbol) {
        status = error_set(QUOIT_ERR_INVALID, "%s: %s is no transport: it has no function quoit_transport_plugin", setting, path);
        goto close_handle;
    }
    memcpy(&entry, &symbol, sizeof entry);
    const quoit_transport_ops_t *ops = entry();
    status = ops_check(path, ops);
    if (status != QUOIT_OK) goto close_handle;
    if (find(list, *count, ops->name) || find(built_in, BUILT_IN_COUNT, ops->name)) {
        status = error_set(QUOIT_ERR_INVALID, "%s: %s: there is a transport named %s already", setting, path, ops->name);
        goto close_handle;
    }
    list[(*count)++] = ops;
    log_info("registry", "transport %s loaded from %s", ops->name, path);
    return QUOIT_OK;

close_handle:
    dlclose(handle);
    return status;
}

static quoit_status_t plugins_load(const char *paths, const quoit_transport_ops_t **list, int *count)
{
    for (const char *start = paths; start && *start;) {
        size_t length = strcspn(start, ":");
        char path[PATH_CAPACITY];
        if (length >= sizeof path)
            return error_set(QUOIT_ERR_INVALID, "%s: a path of %zu bytes is too long", setting_name(SETTING_TRANSPORT_PLUGIN), length);
        memcpy(path, start, length);
        path[length] = 0;
        quoit_status_t status = length > 0 ? plugin_load(path, list, count) : QUOIT_OK;
        if (status != QUOIT_OK) return status;
        start += length + (start[length] == ':');
    }
    return QUOIT_OK;
}

/* The lock is held. */
static quoit_status_t registry_load(void)
{
    if (registry.loaded) return QUOIT_OK;
    quoit_status_t status = settings_load();
    if (status != QUOIT_OK) return status;
    const quoit_transport_ops_t *list[REGISTRY_CAPACITY];
    int count = 0;
    status = plugins_load(setting_string(SETTING_TRANSPORT_PLUGIN), list, &count);
    if (status != QUOIT_OK) return status;
    for (int i = 0; i < BUILT_IN_COUNT; i++) list[count++] = built_in[i];
    memcpy(registry.all, list, (size_t)count * sizeof list[0]);
    registry.count = count;
    registry.loaded = true;
    return QUOIT_OK;
}

/* ---------------------------------------------------------------- the list */

static quoit_status_t unknown_name(const char *name)
{
    char names[REGISTRY_CAPACITY * (NAME_CAPACITY + 2)] = "";
    size_t used = 0;
    for (int i = 0; i < registry.count; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", registry.all[i]->name);
    return error_set(QUOIT_ERR_INVALID, "%s: there is no transport \"%s\"; there are: auto, %s", setting_name(SETTING_TRANSPORT),
                     name, names);
}

/* "tcp", or "verbs?": one that may be missing. */
static quoit_status_t parse_names(const char *names, const quoit_transport_ops_t **list, bool *optional, int *count)
{
    for (const char *start = names; *start;) {
        size_t whole = strcspn(start, ","), length = whole, skip = 0;
        while (skip < length && isspace((unsigned char)start[skip])) skip++;
        while (length > skip && isspace((unsigned char)start[length - 1])) length--;
        char name[NAME_CAPACITY];
        bool may_lack = length > skip && start[length - 1] == '?';
        length -= may_lack;
        snprintf(name, sizeof name, "%.*s", (int)(length - skip), start + skip);
        const quoit_transport_ops_t *ops = length - skip < sizeof name ? find(registry.all, registry.count, name) : NULL;
        if (!ops) return unknown_name(name);
        if (!find(list, *count, name)) {
            optional[*count] = may_lack;
            list[(*count)++] = ops;
        }
        start += whole + (start[whole] == ',');
    }
    return QUOIT_OK;
}

quoit_status_t transport_registry_list(const quoit_transport_ops_t *list[REGISTRY_CAPACITY], bool *optional, int *count)
{
    const quoit_transport_ops_t *wanted[REGISTRY_CAPACITY];
    bool may_lack[REGISTRY_CAPACITY] = {false};
    int wanted_count = 0;
    forked_lock(&registry.lock);
    quoit_status_t status = registry_load();
    if (status != QUOIT_OK) goto unlock;
    const char *names = setting_string(SETTING_TRANSPORT);
    if (!*names || strcmp(names, "auto") == 0) {
        for (int i = 0; i < registry.count; i++)
            if (!only_by_name(registry.all[i])) {
                may_lack[wanted_count] = true;
                wanted[wanted_count++] = registry.all[i];
            }
    } else {
        status = parse_names(names, wanted, may_lack, &wanted_count);
        if (status != QUOIT_OK) goto unlock;
    }
    int kept = 0;
    for (int i = 0; i < wanted_count; i++) {
        if (wanted[i] == &transport_self) continue;
        if (optional) optional[kept] = may_lack[i];
        list[kept++] = wanted[i];
    }
    if (optional) optional[kept] = false;
    list[kept++] = &transport_self;
    *count = kept;
unlock:
    forked_unlock(&registry.lock);
    return status;
}

const quoit_transport_ops_t *transport_registry_find(const char *name)
{
    forked_lock(&registry.lock);
    const quoit_transport_ops_t *found = NULL;
    if (registry_load() == QUOIT_OK) found = find(registry.all, registry.count, name);
    forked_unlock(&registry.lock);
    return found;
}

void transport_registry_reset(void)
{
    forked_lock(&registry.lock);
    registry.loaded = false;
    registry.count = 0;
    forked_unlock(&registry.lock);
}

/* ---------------------------------------------------------------- environment */

static void environment_log(int level, const char *room, const char *text)
{
    log_level_t known = level < LOG_ERROR ? LOG_ERROR : level > LOG_DEBUG ? LOG_DEBUG : (log_level_t)level;
    if (log_enabled(known)) log_write(known, room, "%s", text);
}

static const char *environment_setting(const char *name)
{
    const char *value;
    return quoit_setting_get(name, &value) == QUOIT_OK ? value : NULL;
}

static void environment_error(const char *text) { error_set(QUOIT_ERR_INTERNAL, "%s", text); }

void transport_environment_init(quoit_transport_environment_t *environment, quoit_process_id_t self, int doorbell, const char *host)
{
    *environment = (quoit_transport_environment_t){
        .struct_size = sizeof *environment,
        .self = self,
        .doorbell = doorbell,
        .host = host,
        .log = environment_log,
        .setting = environment_setting,
        .error = environment_error,
    };
}
