/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, ports and GIDs: see verbs_device.h. */
#include "transport/verbs/verbs_device.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_GIDS = 256 };

const char *verbs_gid_type_name(verbs_gid_type_t type)
{
    static const char *const names[] = {[VERBS_GID_IB] = "InfiniBand", [VERBS_GID_ROCE_V1] = "RoCE v1", [VERBS_GID_ROCE_V2] = "RoCE v2"};
    return names[type];
}

bool verbs_gid_is_ipv4(const union ibv_gid *gid)
{
    static const uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return memcmp(gid->raw, prefix, sizeof prefix) == 0;
}

static bool is_link_local(const union ibv_gid *gid) { return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80; }

const char *verbs_gid_text(const union ibv_gid *gid, char text[VERBS_GID_TEXT])
{
    bool ipv4 = verbs_gid_is_ipv4(gid);
    if (inet_ntop(ipv4 ? AF_INET : AF_INET6, gid->raw + (ipv4 ? 12 : 0), text, VERBS_GID_TEXT) == NULL) snprintf(text, VERBS_GID_TEXT, "?");
    return text;
}

const char *verbs_port_text(const verbs_candidate_t *port, char text[VERBS_PORT_TEXT])
{
    int used = snprintf(text, VERBS_PORT_TEXT, "%s port %d", port->device, port->port);
    if (port->numa_node >= 0) snprintf(text + used, VERBS_PORT_TEXT - (size_t)used, " at NUMA node %d", port->numa_node);
    return text;
}

/* ---------------------------------------------------------------- choosing */

static bool is_one_of(const verbs_candidate_t *candidate, const char *list)
{
    for (const char *item = list; *item;) {
        size_t whole = strcspn(item, ","), length = strcspn(item, ":,");
        bool any = length > 0 && item[length - 1] == '*';
        bool port = item[length] != ':' || atoi(item + length + 1) == candidate->port;
        bool same = any ? strncmp(candidate->device, item, length - 1) == 0 : strlen(candidate->device) == length && memcmp(candidate->device, item, length) == 0;
        if (length > 0 && same && port) return true;
        item += whole + (item[whole] == ',');
    }
    return false;
}

static bool names_devices(const verbs_wish_t *wish) { return wish->device != NULL && wish->device[0] != '\0' && wish->device[0] != '^'; }

static bool device_fits(const verbs_candidate_t *candidate, const verbs_wish_t *wish)
{
    if (wish->port != 0 && wish->port != candidate->port) return false;
    if (names_devices(wish)) return is_one_of(candidate, wish->device);
    if (wish->hardware && candidate->software) return false;
    return wish->device == NULL || wish->device[0] != '^' || !is_one_of(candidate, wish->device + 1);
}

/* Less is better. On InfiniBand the GID matters only between subnets: the first one is the port's own. */
static int gid_order(const verbs_candidate_t *candidate)
{
    int type = candidate->type == VERBS_GID_ROCE_V1;
    if (candidate->type == VERBS_GID_IB) return candidate->gid_index;
    return type * 3 + (verbs_gid_is_ipv4(&candidate->gid) ? 0 : is_link_local(&candidate->gid) ? 2 : 1);
}

static bool is_same_port(const verbs_candidate_t *a, const verbs_candidate_t *b) { return strcmp(a->device, b->device) == 0 && a->port == b->port; }

static quoit_status_t nothing_fits(const verbs_candidate_t *all, int count, const verbs_wish_t *wish)
{
    char list[700] = "", gid[VERBS_GID_TEXT], index[32] = "", port[32] = "";
    size_t used = 0;
    bool software = false;
    for (int i = 0; i < count && used < sizeof list - 128; i++) {
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s:%d gid %d %s %s%s%s", i > 0 ? ", " : "", all[i].device, all[i].port,
                                 all[i].gid_index, verbs_gid_type_name(all[i].type), verbs_gid_text(&all[i].gid, gid),
                                 all[i].software ? " (software)" : "", all[i].active ? "" : " (down)");
        software = software || all[i].software;
    }
    if (wish->port != 0) snprintf(port, sizeof port, ", port %d", wish->port);
    if (wish->gid_index >= 0) snprintf(index, sizeof index, ", GID index %d", wish->gid_index);
    return error_set(QUOIT_ERR_NOT_FOUND, "no active port with a GID fits (QUOIT_VERBS_DEVICE=%s%s%s); there is: %s%s", wish->device != NULL ? wish->device : "",
                     port, index, count > 0 ? list : "nothing",
                     software && wish->hardware ? "; devices in software are slower than tcp, and used only when QUOIT_TRANSPORT names verbs or QUOIT_VERBS_DEVICE names them" : "");
}

/* Ports that fit, each with its best GID. */
static int find_ports(const verbs_candidate_t *all, int count, const verbs_wish_t *wish, const verbs_candidate_t **port)
{
    int found = 0;
    for (int i = 0; i < count; i++) {
        int at = 0;
        if (!all[i].active || !device_fits(&all[i], wish) || (wish->gid_index >= 0 && all[i].gid_index != wish->gid_index)) continue;
        while (at < found && !is_same_port(port[at], &all[i])) at++;
        if (at == found || gid_order(&all[i]) < gid_order(port[at])) port[at] = &all[i];
        found += at == found;
    }
    return found;
}

/* Those that carry together; number of them, in front. */
static int keep_alike(const verbs_candidate_t **port, int count)
{
    const verbs_candidate_t *best = port[0];
    int reach = INT_MAX, kept = 0;
    for (int i = 1; i < count; i++)
        if (port[i]->software != best->software ? best->software : port[i]->mbps > best->mbps) best = port[i]; /* the first of equals stays */
    for (int i = 0; i < count; i++)
        if (port[i]->ethernet == best->ethernet && port[i]->software == best->software && 2 * (uint64_t)port[i]->mbps >= best->mbps && port[i]->distance < reach)
            reach = port[i]->distance;
    for (int i = 0; i < count; i++)
        if (port[i]->ethernet == best->ethernet && port[i]->type == best->type && port[i]->software == best->software && port[i]->distance <= reach) port[kept++] = port[i];
    return kept;
}

static int faster_first(const void *a, const void *b)
{
    const verbs_candidate_t *one = *(const verbs_candidate_t *const *)a, *other = *(const verbs_candidate_t *const *)b;
    if (one->mbps != other->mbps) return one->mbps < other->mbps ? 1 : -1;
    return one < other ? -1 : 1;
}

/* As people count: mlx5_2 before mlx5_10. */
static int by_name(const void *a, const void *b)
{
    const verbs_candidate_t *one = a, *other = b;
    size_t length = strlen(one->device), others = strlen(other->device);
    int order = length != others && strcspn(one->device, "_0123456789") == strcspn(other->device, "_0123456789") ? (length < others ? -1 : 1) : strcmp(one->device, other->device);
    return order != 0 ? order : one->port - other->port;
}

quoit_status_t verbs_device_choose(const verbs_candidate_t *all, int count, const verbs_wish_t *wish, verbs_candidate_t chosen[VERBS_MOST_RAILS], int *chosen_count)
{
    const verbs_candidate_t **port = calloc((size_t)count + 1, sizeof(const verbs_candidate_t *));
    if (port == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "no memory for a list of devices");
    int found = find_ports(all, count, wish, port);
    if (found > 0 && !names_devices(wish)) found = keep_alike(port, found);
    qsort(port, (size_t)found, sizeof(const verbs_candidate_t *), faster_first);
    if (found > VERBS_MOST_RAILS) found = VERBS_MOST_RAILS;
    for (int i = 0; i < found; i++) chosen[i] = *port[i];
    free(port);
    if (found == 0) return nothing_fits(all, count, wish);
    qsort(chosen, (size_t)found, sizeof *chosen, by_name);
    *chosen_count = found;
    return QUOIT_OK;
}

/* ---------------------------------------------------------------- this machine */

typedef struct candidates {
    verbs_candidate_t *entries; /* owned */
    int count, capacity;
} candidates_t;

static bool add(candidates_t *list, const verbs_candidate_t *candidate)
{
    if (list->count == list->capacity) {
        int capacity = list->capacity > 0 ? list->capacity * 2 : 16;
        verbs_candidate_t *entries = realloc(list->entries, (size_t)capacity * sizeof *entries);
        if (entries == NULL) return false;
        list->entries = entries;
        list->capacity = capacity;
    }
    list->entries[list->count++] = *candidate;
    return true;
}

/* False: there is no such entry, or it is empty. */
static bool read_gid(const verbs_library_t *library, struct ibv_context *context, verbs_candidate_t *candidate)
{
    static const union ibv_gid nothing;
    struct ibv_gid_entry entry = {0};
    candidate->type = candidate->ethernet ? VERBS_GID_ROCE_V2 : VERBS_GID_IB; /* a library that cannot tell: the usual */
    if (library->query_gid_ex != NULL) {
        if (library->query_gid_ex(context, (uint32_t)candidate->port, (uint32_t)candidate->gid_index, &entry, 0, sizeof entry) != 0) return false;
        candidate->gid = entry.gid;
        candidate->type = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? VERBS_GID_ROCE_V2
                          : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? VERBS_GID_ROCE_V1
                                                                   : VERBS_GID_IB;
    } else if (library->query_gid(context, (uint8_t)candidate->port, candidate->gid_index, &candidate->gid) != 0) {
        return false;
    }
    return memcmp(&candidate->gid, &nothing, sizeof nothing) != 0;
}

/* Mb/s. Fields are those of the InfiniBand architecture's PortInfo: a bit for each width and speed. */
static uint32_t rate_of(const struct ibv_port_attr *port)
{
    static const struct {
        unsigned code, mbps;
    } speeds[] = {{1, 2500}, {2, 5000}, {4, 10000}, {8, 10000}, {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
    unsigned lanes = port->active_width == 2 ? 4 : port->active_width == 4 ? 8 : port->active_width == 8 ? 12 : port->active_width == 16 ? 2 : 1;
    uint32_t mbps = 2500;
    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++)
        if (port->active_speed >= speeds[i].code) mbps = speeds[i].mbps;
    return lanes * mbps;
}

static bool scan_port(const verbs_library_t *library, struct ibv_context *context, const char *name, const place_t *place, int number, candidates_t *list)
{
    struct ibv_port_attr port;
    memset(&port, 0, sizeof port);
    if (library->query_port(context, (uint8_t)number, &port) != 0) return true;
    verbs_candidate_t candidate = {.port = number,
                                   .active = port.state == IBV_PORT_ACTIVE,
                                   .ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET,
                                   .lid = port.lid,
                                   .mtu = port.active_mtu,
                                   .mbps = rate_of(&port),
                                   .distance = place_distance(place),
                                   .numa_node = place->numa_node,
                                   .software = place->software};
    snprintf(candidate.device, sizeof candidate.device, "%s", name);
    for (int i = 0; i < port.gid_tbl_len && i < MAX_GIDS; i++) {
        candidate.gid_index = i;
        if (read_gid(library, context, &candidate) && !add(list, &candidate)) return false;
    }
    return true;
}

static bool scan_device(const verbs_library_t *library, struct ibv_device *device, candidates_t *list)
{
    struct ibv_device_attr attributes;
    bool good = true;
    place_t place;
    struct ibv_context *context = library->open_device(device);
    if (context == NULL) return true;
    place_read(device->ibdev_path, &place);
    if (library->query_device(context, &attributes) == 0)
        for (int port = 1; good && port <= attributes.phys_port_cnt; port++)
            good = scan_port(library, context, library->get_device_name(device), &place, port, list);
    if (library->close_device(context) != 0) library->close_device(context); /* an interrupted one succeeds the second time */
    return good;
}

quoit_status_t verbs_device_scan(const verbs_library_t *library, verbs_candidate_t **all, int *count)
{
    candidates_t list = {0};
    int devices = 0;
    bool good = true;
    struct ibv_device **found = library->get_device_list(&devices);
    if (found == NULL)
        return error_set_errno(QUOIT_ERR_NOT_FOUND, errno, "libibverbs cannot list devices (are the modules ib_core and ib_uverbs loaded?)");
    for (int i = 0; i < devices && good; i++) good = scan_device(library, found[i], &list);
    library->free_device_list(found);
    if (!good) {
        free(list.entries);
        return error_set(QUOIT_ERR_NO_MEMORY, "no memory for a list of devices");
    }
    if (list.count == 0) {
        free(list.entries);
        return error_set(QUOIT_ERR_NOT_FOUND, devices == 0 ? "there is no RDMA device (none under /sys/class/infiniband)"
                                                          : "no RDMA device could be opened, or none has a GID (permissions of /dev/infiniband?)");
    }
    *all = list.entries;
    *count = list.count;
    return QUOIT_OK;
}

struct ibv_context *verbs_device_open(const verbs_library_t *library, const char *name)
{
    int count = 0;
    struct ibv_context *context = NULL;
    struct ibv_device **found = library->get_device_list(&count);
    for (int i = 0; found != NULL && i < count && context == NULL; i++)
        if (strcmp(library->get_device_name(found[i]), name) == 0) context = library->open_device(found[i]);
    if (context == NULL) error_set_errno(QUOIT_ERR_SYSTEM, errno, "cannot open the device %s", name);
    if (found != NULL) library->free_device_list(found);
    return context;
}
