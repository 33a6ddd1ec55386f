/* SPDX-License-Identifier: Apache-2.0 */
/* The fake libibverbs: see fake_verbs.h. Functions of libibverbs, in the order of its header, and the orders a test can give. */
#include "fake_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_query_port

fake_state_t fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .contexts = {&fake.contexts, &fake.contexts}, .mrs = {&fake.mrs, &fake.mrs},
                     .qps = {&fake.qps, &fake.qps}, .next_key = 100, .next_qpn = 10};

/* ---------------------------------------------------------------- counting and failing */

enum { COUNTERS = 96 };

static struct {
    pthread_mutex_t lock;
    struct {
        char name[32];
        long value;
    } all[COUNTERS];
} counters = {.lock = PTHREAD_MUTEX_INITIALIZER};

static long *counter(const char *name)
{
    int at = 0;
    while (at < COUNTERS - 1 && counters.all[at].name[0] && strcmp(counters.all[at].name, name) != 0) at++;
    snprintf(counters.all[at].name, sizeof counters.all[at].name, "%s", name);
    return &counters.all[at].value;
}

void fake_count(const char *name, long change)
{
    pthread_mutex_lock(&counters.lock);
    *counter(name) += change;
    pthread_mutex_unlock(&counters.lock);
}

/* The newest of a kind. */
static void note(const char *name, long value)
{
    pthread_mutex_lock(&counters.lock);
    *counter(name) = value;
    pthread_mutex_unlock(&counters.lock);
}

unsigned long fake_verbs_count(const char *name)
{
    pthread_mutex_lock(&counters.lock);
    unsigned long value = (unsigned long)*counter(name);
    pthread_mutex_unlock(&counters.lock);
    return value;
}

/* A device that was taken out: what it made can be destroyed, and what is posted goes nowhere. */
bool fake_needs_device(const char *name)
{
    static const char *const others[] = {"destroy_", "dereg_", "dealloc_", "close_", "post_", "poll_", "req_", "get_", "fork_"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strncmp(name, others[i], strlen(others[i])) == 0) return false;
    return true;
}

bool fake_call_fails(const char *name)
{
    pthread_mutex_lock(&counters.lock);
    ++*counter(name);
    bool fails = fake.failing.n > 0 && strcmp(fake.failing.name, name) == 0 && --fake.failing.n == 0;
    int error = (int)fake.failing.error;
    pthread_mutex_unlock(&counters.lock);
    if (!fails && atomic_load(&fake.removed) && fake_needs_device(name)) {
        fails = true;
        error = EIO;
    }
    if (fails) errno = error;
    return fails;
}

static bool is_object(const char *name)
{
    static const char *const objects[] = {"context", "pd", "mr", "dmabuf", "registered", "cq", "qp", "channel"};
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
        if (strcmp(objects[i], name) == 0) return true;
    return false;
}

void fake_verbs_calm(void)
{
    pthread_mutex_lock(&counters.lock);
    fake.failing.n = 0;
    for (int i = 0; i < COUNTERS; i++)
        if (!is_object(counters.all[i].name)) counters.all[i].value = 0;
    pthread_mutex_unlock(&counters.lock);
    pthread_mutex_lock(&fake.lock);
    fake.failing_work.n = 0;
    fake.cut = false;
    fake.lock_limit = 0;
    atomic_store(&fake.no_dmabuf, false);
    fake.full = 0;
    atomic_store(&fake.removed, false);
    atomic_store(&fake.delay, 0);
    atomic_store(&fake.destroys_wait, false);
    fake_devices_calm();
    pthread_mutex_unlock(&fake.lock);
}

void fake_verbs_fail_call(const char *name, unsigned n, int error)
{
    pthread_mutex_lock(&counters.lock);
    snprintf(fake.failing.name, sizeof fake.failing.name, "%s", name);
    fake.failing.error = (unsigned)error;
    fake.failing.n = n;
    pthread_mutex_unlock(&counters.lock);
}

void fake_verbs_fail_work(const char *name, unsigned n, int status)
{
    bool write = strcmp(name, "write") == 0;
    pthread_mutex_lock(&fake.lock);
    fake.failing_work.first = write ? IBV_WR_RDMA_WRITE : IBV_WR_SEND;
    fake.failing_work.second = write ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND_WITH_IMM;
    fake.failing_work.n = n;
    fake.failing_work.status = (unsigned)status;
    pthread_mutex_unlock(&fake.lock);
}

void fake_verbs_delay(unsigned microseconds) { atomic_store(&fake.delay, microseconds); }

void fake_verbs_cut(int cut)
{
    pthread_mutex_lock(&fake.lock);
    fake.cut = cut != 0;
    pthread_mutex_unlock(&fake.lock);
}

void fake_verbs_fill(unsigned n)
{
    pthread_mutex_lock(&fake.lock);
    fake.full = n;
    pthread_mutex_unlock(&fake.lock);
}

void fake_verbs_lock_limit(unsigned long bytes)
{
    pthread_mutex_lock(&fake.lock);
    fake.lock_limit = bytes;
    pthread_mutex_unlock(&fake.lock);
}

/* What was sent stays in its queue until it was answered, so packets need no looking for. */
int fake_verbs_is_quiet(void)
{
    bool quiet = true;
    pthread_mutex_lock(&fake.lock);
    for (list_t *link = fake.qps.next; link != &fake.qps; link = link->next)
        quiet = quiet && container_of(link, fake_qp_t, link)->send_count == 0 && !container_of(link, fake_qp_t, link)->answer.wanted;
    pthread_mutex_unlock(&fake.lock);
    return quiet;
}

/* ---------------------------------------------------------------- fork */

/* Kernels that copy registered pages for a child; with FAKE_VERBS_FORK=old one that does not. */
enum ibv_fork_status ibv_is_fork_initialized(void) { return getenv("FAKE_VERBS_FORK") ? IBV_FORK_DISABLED : IBV_FORK_UNNEEDED; }

int ibv_fork_init(void) { return fake_call_fails("fork_init") ? errno : 0; }

/* ---------------------------------------------------------------- memory */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    if (fake_device_call_fails("alloc_pd", context)) return NULL;
    int error = fake_network_start();
    if (error != 0) {
        errno = error;
        return NULL;
    }
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    fake_count("pd", 1);
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    if (fake_call_fails("dealloc_pd")) return errno;
    fake_network_stop();
    free(pd);
    fake_count("pd", -1);
    return 0;
}

/* A dma-buf's bytes are mapped, and not locked. */
static struct ibv_mr *register_bytes(struct ibv_pd *pd, void *address, size_t length, int access, unsigned char *mapped, size_t mapped_length, size_t inside)
{
    fake_mr_t *mr = calloc(1, sizeof *mr);
    mr->mapped = mapped;
    mr->mapped_length = mapped_length;
    mr->bytes = mapped != NULL ? mapped + inside : address;
    pthread_mutex_lock(&fake.lock);
    if (mapped == NULL && fake.lock_limit > 0 && fake.locked + length > fake.lock_limit) {
        pthread_mutex_unlock(&fake.lock);
        free(mr);
        errno = ENOMEM;
        return NULL;
    }
    if (mapped == NULL) fake.locked += length;
    uint32_t key = ++fake.next_key;
    mr->base = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = address, .length = length, .lkey = key, .rkey = key};
    mr->access = access;
    list_append(&fake.mrs, &mr->link);
    pthread_mutex_unlock(&fake.lock);
    fake_count("mr", 1);
    fake_count("registered", (long)length);
    return &mr->base;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    return fake_device_call_fails("reg_mr", pd->context) ? NULL : register_bytes(pd, address, length, access, NULL, 0, 0);
}

/* With flags that a device may ignore. */
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access)
{
    if (iova != (uintptr_t)address) fake_count("misuse", 1);
    if (access & IBV_ACCESS_RELAXED_ORDERING) fake_count("relaxed", 1);
    return fake_device_call_fails("reg_mr", pd->context) ? NULL : register_bytes(pd, address, length, (int)access, NULL, 0, 0);
}

/*
 * The kernel's rules: descriptor, range within the dma-buf, offset and address at the same place of a page. What it stands for is mapped
 * where only the fake device looks, and stays so until it is unregistered, whoever closes the descriptor.
 */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int descriptor, int access)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct stat status;
    if (fake_device_call_fails("reg_dmabuf_mr", pd->context)) return NULL;
    if (atomic_load(&fake.no_dmabuf)) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    if (offset % page != iova % page) {
        fake_count("misuse", 1);
        errno = EINVAL;
        return NULL;
    }
    if (fstat(descriptor, &status) != 0) return NULL; /* EBADF */
    if (length == 0 || length > (uint64_t)status.st_size || offset > (uint64_t)status.st_size - length) {
        fake_count("misuse", 1);
        errno = EINVAL;
        return NULL;
    }
    size_t inside = (size_t)(offset % page), whole = (inside + length + page - 1) / page * page;
    void *mapped = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, (off_t)(offset - inside));
    if (mapped == MAP_FAILED) return NULL;
    fake_count("dmabuf", 1);
    return register_bytes(pd, (void *)(uintptr_t)iova, length, access, mapped, whole, inside);
}

void fake_verbs_no_dmabuf(int none) { atomic_store(&fake.no_dmabuf, none != 0); }

int ibv_dereg_mr(struct ibv_mr *base)
{
    fake_mr_t *mr = container_of(base, fake_mr_t, base);
    if (fake_call_fails("dereg_mr")) return errno;
    pthread_mutex_lock(&fake.lock);
    list_remove(&mr->link);
    if (mr->mapped == NULL) fake.locked -= base->length;
    if (mr->mapped != NULL) munmap(mr->mapped, mr->mapped_length);
    pthread_mutex_unlock(&fake.lock);
    fake_count("registered", -(long)base->length);
    if (mr->mapped != NULL) fake_count("dmabuf", -1);
    free(mr);
    fake_count("mr", -1);
    return 0;
}

fake_mr_t *fake_mr_find(uint32_t key)
{
    for (list_t *link = fake.mrs.next; link != &fake.mrs; link = link->next)
        if (container_of(link, fake_mr_t, link)->base.lkey == key) return container_of(link, fake_mr_t, link);
    return NULL;
}

unsigned char *fake_mr_place(const fake_mr_t *mr, uint64_t address, uint32_t length)
{
    uint64_t base = (uintptr_t)mr->base.addr;
    bool covered = address >= base && length <= mr->base.length && address - base <= mr->base.length - length;
    return covered ? mr->bytes + (address - base) : NULL;
}

/* ---------------------------------------------------------------- completion queues */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    if (fake_device_call_fails("create_comp_channel", context)) return NULL;
    fake_channel_t *channel = calloc(1, sizeof *channel);
    channel->base.context = context;
    channel->base.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    list_init(&channel->cqs);
    fake_count("channel", 1);
    return &channel->base;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
    if (fake_call_fails("destroy_comp_channel")) return errno;
    if (base->refcnt > 0) {
        fake_count("misuse", 1);
        return EBUSY;
    }
    close(base->fd);
    free(base);
    fake_count("channel", -1);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *user, struct ibv_comp_channel *channel, int vector)
{
    (void)vector;
    if (fake_device_call_fails("create_cq", context)) return NULL;
    fake_cq_t *cq = calloc(1, sizeof *cq);
    cq->base = (struct ibv_cq){.context = context, .channel = channel, .cq_context = user, .cqe = entries};
    cq->channel = container_of(channel, fake_channel_t, base);
    cq->capacity = (unsigned)entries;
    cq->entries = calloc(cq->capacity, sizeof *cq->entries);
    list_init(&cq->waiting);
    channel->refcnt++;
    fake_count("cq", 1);
    return &cq->base;
}

int ibv_destroy_cq(struct ibv_cq *base)
{
    fake_cq_t *cq = container_of(base, fake_cq_t, base);
    uint64_t one;
    if (fake_call_fails("destroy_cq")) return errno;
    pthread_mutex_lock(&fake.lock);
    if (cq->got != cq->acknowledged) fake_count("misuse", 1); /* the real one would wait for ever */
    if (!list_is_empty(&cq->waiting) && read(cq->channel->base.fd, &one, sizeof one) < 0) fake_count("misuse", 1);
    list_remove(&cq->waiting);
    cq->channel->base.refcnt--;
    pthread_mutex_unlock(&fake.lock);
    free(cq->entries);
    free(cq);
    fake_count("cq", -1);
    return 0;
}

void fake_cq_push(struct ibv_cq *base, const struct ibv_wc *completion)
{
    const uint64_t one = 1;
    fake_cq_t *cq = container_of(base, fake_cq_t, base);
    if (cq->count == cq->capacity) {
        fake_count("overflow", 1);
        return;
    }
    cq->entries[(cq->first + cq->count++) % cq->capacity] = *completion;
    if (!cq->armed) return;
    cq->armed = false;
    if (!list_is_empty(&cq->waiting)) return;
    list_append(&cq->channel->cqs, &cq->waiting);
    if (write(cq->channel->base.fd, &one, sizeof one) < 0) fake_count("misuse", 1);
}

int ibv_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **result, void **user)
{
    uint64_t one;
    if (fake_call_fails("get_cq_event") || read(base->fd, &one, sizeof one) != sizeof one) return -1;
    pthread_mutex_lock(&fake.lock);
    list_t *link = list_pop(&container_of(base, fake_channel_t, base)->cqs);
    fake_cq_t *cq = link != NULL ? container_of(link, fake_cq_t, waiting) : NULL;
    if (cq != NULL) cq->got++;
    pthread_mutex_unlock(&fake.lock);
    if (cq == NULL) return -1;
    *result = &cq->base;
    *user = cq->base.cq_context;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *base, unsigned count)
{
    pthread_mutex_lock(&fake.lock);
    container_of(base, fake_cq_t, base)->acknowledged += count;
    pthread_mutex_unlock(&fake.lock);
}

int fake_poll_cq(struct ibv_cq *base, int count, struct ibv_wc *completions)
{
    fake_cq_t *cq = container_of(base, fake_cq_t, base);
    int taken = 0;
    if (fake_call_fails("poll_cq")) return -1;
    pthread_mutex_lock(&fake.lock);
    for (; taken < count && cq->count > 0; taken++) {
        completions[taken] = cq->entries[cq->first];
        cq->first = (cq->first + 1) % cq->capacity;
        cq->count--;
    }
    pthread_mutex_unlock(&fake.lock);
    return taken;
}

int fake_req_notify_cq(struct ibv_cq *base, int solicited)
{
    (void)solicited;
    if (fake_call_fails("req_notify_cq")) return errno;
    pthread_mutex_lock(&fake.lock);
    container_of(base, fake_cq_t, base)->armed = true;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

/* ---------------------------------------------------------------- queue pairs */

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes)
{
    if (fake_device_call_fails("create_qp", pd->context)) return NULL;
    fake_qp_t *qp = calloc(1, sizeof *qp);
    qp->cap = attributes->cap;
    qp->sends = calloc(qp->cap.max_send_wr, sizeof *qp->sends);
    qp->recvs = calloc(qp->cap.max_recv_wr, sizeof *qp->recvs);
    qp->state = IBV_QPS_RESET;
    pthread_mutex_lock(&fake.lock);
    qp->base = (struct ibv_qp){.context = pd->context, .qp_context = attributes->qp_context, .pd = pd, .send_cq = attributes->send_cq,
                               .recv_cq = attributes->recv_cq, .qp_num = ++fake.next_qpn, .qp_type = attributes->qp_type};
    list_append(&fake.qps, &qp->link);
    pthread_mutex_unlock(&fake.lock);
    if (attributes->cap.max_inline_data > FAKE_INLINE) fake_count("misuse", 1);
    fake_count("qp", 1);
    return &qp->base;
}

/* RESET takes the completions along. */
static void forget_completions(struct ibv_cq *base, uint32_t number)
{
    fake_cq_t *cq = container_of(base, fake_cq_t, base);
    unsigned kept = 0;
    for (unsigned i = 0; i < cq->count; i++) {
        struct ibv_wc *entry = &cq->entries[(cq->first + i) % cq->capacity];
        if (entry->qp_num != number) cq->entries[(cq->first + kept++) % cq->capacity] = *entry;
    }
    cq->count = kept;
}

static void clear(fake_qp_t *qp)
{
    qp->send_count = qp->recv_count = 0;
    qp->started = qp->waits = false;
    qp->answer.wanted = false;
    qp->received = 0;
}

static void reset(fake_qp_t *qp)
{
    clear(qp);
    forget_completions(qp->base.send_cq, qp->base.qp_num);
    forget_completions(qp->base.recv_cq, qp->base.qp_num);
}

void fake_qp_fail(fake_qp_t *qp)
{
    qp->state = IBV_QPS_ERR;
    qp->started = qp->waits = false;
    for (; qp->send_count > 0; qp->send_count--) {
        struct ibv_wc completion = {.wr_id = qp->sends[qp->send_first].id, .status = IBV_WC_WR_FLUSH_ERR, .qp_num = qp->base.qp_num};
        fake_cq_push(qp->base.send_cq, &completion);
        qp->send_first = (qp->send_first + 1) % qp->cap.max_send_wr;
    }
    for (; qp->recv_count > 0; qp->recv_count--) {
        struct ibv_wc completion = {.wr_id = qp->recvs[qp->recv_first].id, .status = IBV_WC_WR_FLUSH_ERR, .qp_num = qp->base.qp_num};
        fake_cq_push(qp->base.recv_cq, &completion);
        qp->recv_first = (qp->recv_first + 1) % qp->cap.max_recv_wr;
    }
}

static int change_state(fake_qp_t *qp, const struct ibv_qp_attr *attributes)
{
    switch (attributes->qp_state) {
    case IBV_QPS_RESET: reset(qp); break;
    case IBV_QPS_ERR: fake_qp_fail(qp); break;
    case IBV_QPS_INIT:
        if (qp->state != IBV_QPS_RESET) return EINVAL;
        break;
    case IBV_QPS_RTR:
        if (qp->state != IBV_QPS_INIT) return EINVAL;
        qp->peer_qpn = attributes->dest_qp_num;
        qp->expected = attributes->rq_psn;
        qp->peer_address = 0;
        for (int i = 13; i < 16; i++) qp->peer_address = qp->peer_address << 8 | attributes->ah_attr.grh.dgid.raw[i];
        break;
    case IBV_QPS_RTS:
        if (qp->state != IBV_QPS_RTR) return EINVAL;
        qp->psn = attributes->sq_psn;
        qp->retries = attributes->retry_cnt;
        qp->rnr_retries = attributes->rnr_retry;
        break;
    default: return EINVAL;
    }
    qp->state = attributes->qp_state;
    return 0;
}

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attributes, int mask)
{
    (void)mask;
    if (fake_device_call_fails("modify_qp", base->context)) return errno;
    pthread_mutex_lock(&fake.lock);
    int error = change_state(container_of(base, fake_qp_t, base), attributes);
    pthread_mutex_unlock(&fake.lock);
    if (error != 0) fake_count("misuse", 1);
    if (attributes->qp_state == IBV_QPS_INIT) note("pkey_index", attributes->pkey_index);
    if (attributes->qp_state == IBV_QPS_RTR) note("service_level", attributes->ah_attr.sl);
    if (attributes->qp_state == IBV_QPS_RTR) note("traffic_class", attributes->ah_attr.grh.traffic_class);
    if (attributes->qp_state == IBV_QPS_RTS) note("timeout", attributes->timeout);
    if (attributes->qp_state == IBV_QPS_RTS) note("retry_count", attributes->retry_cnt);
    return error;
}

int ibv_destroy_qp(struct ibv_qp *base)
{
    fake_qp_t *qp = container_of(base, fake_qp_t, base);
    if (fake_call_fails("destroy_qp")) return errno;
    for (uint64_t deadline = clock_deadline(FAKE_HOLD_MS); atomic_load(&fake.destroys_wait) && clock_now() < deadline;) usleep(1000);
    pthread_mutex_lock(&fake.lock);
    clear(qp);
    list_remove(&qp->link);
    pthread_mutex_unlock(&fake.lock);
    free(qp->sends);
    free(qp->recvs);
    free(qp);
    fake_count("qp", -1);
    return 0;
}

int fake_post_send(struct ibv_qp *base, struct ibv_send_wr *work, struct ibv_send_wr **bad)
{
    fake_qp_t *qp = container_of(base, fake_qp_t, base);
    *bad = work;
    if (fake_call_fails("post_send")) return errno;
    pthread_mutex_lock(&fake.lock);
    if (fake.full > 0) {
        fake.full--;
        pthread_mutex_unlock(&fake.lock);
        return ENOMEM;
    }
    bool full = qp->send_count == qp->cap.max_send_wr;
    if (full || (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR)) {
        pthread_mutex_unlock(&fake.lock);
        fake_count("misuse", 1);
        return full ? ENOMEM : EINVAL;
    }
    fake_work_t *entry = &qp->sends[(qp->send_first + qp->send_count++) % qp->cap.max_send_wr];
    uint32_t length = work->num_sge > 0 ? work->sg_list->length : 0;
    *entry = (fake_work_t){.id = work->wr_id, .opcode = work->opcode, .signalled = work->send_flags & IBV_SEND_SIGNALED, .length = length,
                           .immediate = work->imm_data, .remote = work->wr.rdma.remote_addr, .remote_key = work->wr.rdma.rkey,
                           .key = length > 0 ? work->sg_list->lkey : 0,
                           .address = length > 0 ? work->sg_list->addr : 0};
    fake_count("signalled", (work->send_flags & IBV_SEND_SIGNALED) != 0);
    fake_count("inlined", (work->send_flags & IBV_SEND_INLINE) != 0);
    if ((work->send_flags & IBV_SEND_INLINE) && length > 0) {
        memcpy(entry->copy, (const void *)(uintptr_t)entry->address, length);
        entry->address = 0;
    }
    if (qp->state == IBV_QPS_ERR) fake_qp_fail(qp);
    else fake_network_serve(qp);
    pthread_mutex_unlock(&fake.lock);
    fake_network_wake();
    return 0;
}

int fake_post_recv(struct ibv_qp *base, struct ibv_recv_wr *work, struct ibv_recv_wr **bad)
{
    fake_qp_t *qp = container_of(base, fake_qp_t, base);
    *bad = work;
    if (fake_call_fails("post_recv")) return errno;
    pthread_mutex_lock(&fake.lock);
    bool full = qp->recv_count == qp->cap.max_recv_wr;
    if (!full && qp->state != IBV_QPS_RESET) {
        bool place = work->num_sge > 0;
        qp->recvs[(qp->recv_first + qp->recv_count++) % qp->cap.max_recv_wr] =
            (fake_recv_t){.id = work->wr_id, .length = place ? work->sg_list->length : 0,
                          .data = place ? (unsigned char *)(uintptr_t)work->sg_list->addr : NULL};
    }
    if (qp->state == IBV_QPS_ERR) fake_qp_fail(qp);
    bool wrong = full || qp->state == IBV_QPS_RESET;
    pthread_mutex_unlock(&fake.lock);
    if (wrong) fake_count("misuse", 1);
    return wrong ? ENOMEM : 0;
}
