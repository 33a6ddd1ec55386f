/* SPDX-License-Identifier: Apache-2.0 */
/* The fake libibverbs' devices: what there is, and what befalls them. */
#include "fake_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#undef ibv_query_port

enum { DEVICES = 4 };

#define DEVICE(device_name, device_speed) \
    {.base = {.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = device_name}, .width = 1, .speed = device_speed}
static fake_device_t devices[DEVICES] = {DEVICE("fake0", 1), DEVICE("fake1", 4), DEVICE("fake2", 1), DEVICE("fake3", 1)};
static atomic_int device_count; /* 0: what the environment says */
static char sysfs[200];

static fake_device_t *device_of(const struct ibv_context *context) { return container_of(context->device, fake_device_t, base); }

fake_device_t *fake_device_of(const fake_qp_t *qp) { return device_of(qp->base.context); }

bool fake_device_call_fails(const char *name, const struct ibv_context *context)
{
    if (fake_call_fails(name)) return true;
    if (!atomic_load(&device_of(context)->removed) || !fake_needs_device(name)) return false;
    errno = EIO;
    return true;
}

/* ---------------------------------------------------------------- orders */

void fake_verbs_devices(int count) { atomic_store(&device_count, count < 1 ? 1 : count > DEVICES ? DEVICES : count); }

void fake_verbs_sysfs(const char *root)
{
    pthread_mutex_lock(&fake.lock);
    snprintf(sysfs, sizeof sysfs, "%s", root);
    pthread_mutex_unlock(&fake.lock);
}

/* All contexts of the device, or of all, are told. The lock is held. */
static void tell(const fake_device_t *device, enum ibv_event_type event)
{
    const uint64_t one = 1;
    for (list_t *link = fake.contexts.next; link != &fake.contexts; link = link->next) {
        fake_context_t *context = container_of(link, fake_context_t, link);
        if (device != NULL && device_of(&context->base) != device) continue;
        context->event = event;
        context->events++;
        if (write(context->base.async_fd, &one, sizeof one) < 0) fake_count("misuse", 1);
    }
}

/* The lock is held. */
static void befall(fake_device_t *device, const char *what)
{
    if (strcmp(what, "fatal") != 0) device->cut = true;
    if (strcmp(what, "removed") == 0) atomic_store(&device->removed, true);
    if (strcmp(what, "port") == 0) tell(device, IBV_EVENT_PORT_ERR);
    if (strcmp(what, "fatal") == 0 || strcmp(what, "removed") == 0) tell(device, IBV_EVENT_DEVICE_FATAL);
}

void fake_device_packet(fake_device_t *device)
{
    const char *what = device->harm;
    if (what == NULL || device->harm_after-- > 0) return;
    device->harm = NULL;
    befall(device, what);
}

void fake_verbs_harm(int number, const char *what, unsigned after)
{
    static const char *const known[] = {"cut", "port", "fatal", "removed"};
    pthread_mutex_lock(&fake.lock);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i], what) != 0) continue;
        devices[number].harm = after > 0 ? known[i] : NULL;
        devices[number].harm_after = after;
        if (after == 0) befall(&devices[number], what);
    }
    pthread_mutex_unlock(&fake.lock);
}

unsigned long fake_verbs_bytes(int number)
{
    pthread_mutex_lock(&fake.lock);
    unsigned long bytes = devices[number].bytes;
    pthread_mutex_unlock(&fake.lock);
    return bytes;
}

void fake_devices_calm(void)
{
    for (int i = 0; i < DEVICES; i++) {
        devices[i].cut = false;
        devices[i].harm = NULL;
        devices[i].bytes = 0;
        atomic_store(&devices[i].removed, false);
    }
    atomic_store(&device_count, 0);
    sysfs[0] = '\0';
}

void fake_verbs_break_device(void)
{
    pthread_mutex_lock(&fake.lock);
    tell(NULL, IBV_EVENT_DEVICE_FATAL);
    pthread_mutex_unlock(&fake.lock);
}

void fake_verbs_remove_device(void)
{
    fake_verbs_cut(1);
    atomic_store(&fake.removed, true);
    fake_verbs_break_device();
}

void fake_verbs_hold_destroy(int held) { atomic_store(&fake.destroys_wait, held != 0); }

/* ---------------------------------------------------------------- the functions of libibverbs */

/* Under the lock. As a real list is, a device that was given before is left as it is: other threads read it without the lock. */
static void name_path(fake_device_t *device, int number, const char *root)
{
    char path[sizeof device->base.ibdev_path];
    snprintf(path, sizeof path, "%s/class/infiniband/fake%d", root, number);
    if (strcmp(path, device->base.ibdev_path) != 0) memcpy(device->base.ibdev_path, path, sizeof path);
}

struct ibv_device **ibv_get_device_list(int *count)
{
    if (fake_call_fails("get_device_list")) return NULL;
    struct ibv_device **list = calloc(DEVICES + 1, sizeof *list);
    const char *number = getenv("FAKE_VERBS_DEVICES"), *root = getenv("FAKE_VERBS_SYSFS");
    int wanted = atomic_load(&device_count), found = 0;
    if (wanted == 0) wanted = number != NULL ? atoi(number) : 1;
    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < wanted && i < DEVICES && !atomic_load(&fake.removed); i++) {
        if (atomic_load(&devices[i].removed)) continue;
        name_path(&devices[i], i, sysfs[0] ? sysfs : root ? root : "/nowhere");
        list[found++] = &devices[i].base;
    }
    pthread_mutex_unlock(&fake.lock);
    if (count != NULL) *count = found;
    return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *one) { return one->name; }

struct ibv_context *ibv_open_device(struct ibv_device *one)
{
    if (fake_call_fails("open_device")) return NULL;
    fake_context_t *context = calloc(1, sizeof *context);
    context->base.device = one;
    context->base.ops.post_send = fake_post_send;
    context->base.ops.post_recv = fake_post_recv;
    context->base.ops.poll_cq = fake_poll_cq;
    context->base.ops.req_notify_cq = fake_req_notify_cq;
    context->base.async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    context->base.cmd_fd = -1;
    pthread_mutex_lock(&fake.lock);
    list_append(&fake.contexts, &context->link);
    pthread_mutex_unlock(&fake.lock);
    fake_count("context", 1);
    return &context->base;
}

int ibv_close_device(struct ibv_context *base)
{
    if (fake_call_fails("close_device")) return errno;
    pthread_mutex_lock(&fake.lock);
    list_remove(&container_of(base, fake_context_t, base)->link);
    pthread_mutex_unlock(&fake.lock);
    close(base->async_fd);
    free(base);
    fake_count("context", -1);
    return 0;
}

int ibv_get_async_event(struct ibv_context *base, struct ibv_async_event *event)
{
    uint64_t one;
    if (fake_call_fails("get_async_event") || read(base->async_fd, &one, sizeof one) != sizeof one) return -1;
    fake_context_t *context = container_of(base, fake_context_t, base);
    pthread_mutex_lock(&fake.lock);
    context->events--;
    *event = (struct ibv_async_event){.event_type = context->event, .element.port_num = 1};
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes)
{
    if (fake_device_call_fails("query_device", context)) return errno;
    memset(attributes, 0, sizeof *attributes);
    attributes->phys_port_cnt = 1;
    attributes->max_qp = 1000;
    attributes->max_qp_wr = 4096;
    attributes->max_cqe = 65536;
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *compatible)
{
    struct ibv_port_attr *attributes = (struct ibv_port_attr *)(void *)compatible;
    if (fake_device_call_fails("query_port", context) || port != 1) return port == 1 ? errno : EINVAL;
    attributes->state = IBV_PORT_ACTIVE;
    attributes->max_mtu = attributes->active_mtu = IBV_MTU_1024;
    attributes->gid_tbl_len = 8;
    attributes->max_msg_sz = 1u << 30;
    attributes->active_width = device_of(context)->width;
    attributes->active_speed = device_of(context)->speed;
    attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
    return 0;
}

/* 0 and 1: link-local, RoCE v1 and v2; 2 and 3: 10.x.x.x (fake1: 11.x.x.x, ...), likewise; the others are empty. */
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    uint32_t address = fake_network_address();
    (void)port;
    if (fake_device_call_fails("query_gid", context)) return -1;
    memset(gid, 0, sizeof *gid);
    if (index > 3) return 0;
    if (index < 2) gid->raw[0] = 0xfe, gid->raw[1] = 0x80;
    else gid->raw[10] = gid->raw[11] = 0xff;
    gid->raw[12] = (uint8_t)(10 + (device_of(context) - devices));
    for (int i = 0; i < 3; i++) gid->raw[13 + i] = (uint8_t)(address >> (16 - 8 * i));
    return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
    (void)flags, (void)size;
    if (index > 3) return ENODATA;
    if (ibv_query_gid(context, (uint8_t)port, (int)index, &entry->gid) != 0) return errno;
    entry->gid_index = index;
    entry->port_num = port;
    entry->gid_type = index % 2 == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
    return 0;
}
