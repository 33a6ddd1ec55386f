/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The direct path: one queue pair whose RDMA writes put granted messages where they belong. The last write of a message carries its
 * token to the receiver (write with immediate), which uses up one of the receives that the peer has posted (`credits`).
 *
 * Stopping. A grant that ends before its bytes came (cancel, mismatch), and a send that ends before they went, must end the device's
 * access at once, without waiting for the peer. Unregistering would not do: the memory may serve other messages, and a write that finds it
 * closed breaks the queue pair anyway. So the queue pair is reset, which the device does before it answers, and both sides begin a new epoch:
 *
 *   whoever stops    ERR, take the last completions, RESET, INIT, receives posted; on the stream: REVOKE for each grant that ended,
 *                    RESET(epoch, first packet number, how many ends of messages it took in the old epoch)
 *   the other side   on RESET of the next epoch: the same, with its own numbers
 *   both             with both RESETs known: of the messages that were under way, the first `count` are done; RTR, RTS; READY on the stream
 *   both             with the peer's READY: what is not done is written anew, from its beginning
 *
 * A message is never written again after its receiver has taken its end, so nobody's buffer is touched once it was given back.
 * A side that leaves says LAST(how many ends it took) before its goodbye.
 * An error of a write is treated likewise: a new epoch, and if the same message fails four times, the connection ends.
 *
 * Completions may be taken while the channel walks its lists (it calls conceal and end), so the channel is told of ends only from
 * verbs_direct_tell.
 */
#include "transport/verbs/verbs.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>

enum { PIECE = 1 << 20, ENDS_APART = 64 << 10, MOST_ATTEMPTS = 4, MOST_ERRORS = 8, PATH_RESET = 1, PATH_READY = 2, PATH_LAST = 3 };

void verbs_direct_init(verbs_direct_t *direct)
{
    list_init(&direct->waiting);
    list_init(&direct->posted);
    list_init(&direct->doubtful);
    list_init(&direct->finished);
    list_init(&direct->free_puts);
    direct->state = VERBS_PATH_DOWN;
}

static int post_recv(verbs_endpoint_t *endpoint)
{
    struct ibv_recv_wr work = {.wr_id = verbs_work_id(endpoint, VERBS_DIRECT_RECV, endpoint->direct.epoch, 0)}, *bad;
    return ibv_post_recv(endpoint->direct.qp, &work, &bad);
}

quoit_status_t verbs_direct_prepare(verbs_endpoint_t *endpoint)
{
    for (int i = 0; i < VERBS_DIRECT_RECVS; i++) {
        int error = post_recv(endpoint);
        if (error != 0) return error_set_errno(QUOIT_ERR_SYSTEM, error, "verbs: %s: cannot post receive %d", endpoint->name, i);
    }
    return QUOIT_OK;
}

void verbs_direct_start(verbs_endpoint_t *endpoint)
{
    endpoint->direct.peer_recvs = endpoint->direct.credits = endpoint->peer_hello.direct_recvs;
    endpoint->direct.state = VERBS_PATH_UP;
}

/* ---------------------------------------------------------------- puts */

static void put_free(verbs_endpoint_t *endpoint, verbs_put_t *put)
{
    for (uint32_t i = 0; i < endpoint->direct.write_count; i++) {
        verbs_write_t *write = &endpoint->direct.writes[(endpoint->direct.write_first + i) % VERBS_DIRECT_SENDS];
        if (write->put == put) write->put = NULL;
    }
    verbs_memory_give(&endpoint->transport->memory, put->region);
    put->region = NULL;
    list_remove(&put->link);
    list_append(&endpoint->direct.free_puts, &put->link);
}

static void put_written(verbs_endpoint_t *endpoint, verbs_put_t *put)
{
    void *send = put->send;
    put_free(endpoint, put);
    channel_written(endpoint->channel, send);
}

/* One warning tells it; the rest is for those who look closer. */
static void tell_unregistered(verbs_transport_t *transport)
{
    log_write(transport->told_unregistered ? LOG_DEBUG : LOG_WARN, "verbs", "%s; its bytes go over the stream, copied on both sides", error_text());
    transport->told_unregistered = true;
}

static void *direct_begin(void *context, const void *buffer, size_t length, uint64_t address, uint32_t key, uint32_t token, void *send)
{
    verbs_endpoint_t *endpoint = context;
    verbs_region_t *region;
    if (endpoint->direct.state == VERBS_PATH_BROKEN) return NULL;
    if (verbs_memory_take(&endpoint->transport->memory, buffer, length, false, &region) != QUOIT_OK) {
        tell_unregistered(endpoint->transport);
        return NULL;
    }
    list_t *link = list_pop(&endpoint->direct.free_puts);
    verbs_put_t *put = link != NULL ? container_of(link, verbs_put_t, link) : malloc(sizeof *put);
    if (put == NULL) {
        verbs_memory_give(&endpoint->transport->memory, region);
        return NULL;
    }
    *put = (verbs_put_t){.buffer = buffer, .length = length, .address = address, .key = key, .token = token, .send = send, .region = region};
    list_append(&endpoint->direct.waiting, &put->link);
    return put;
}

static bool direct_expose(void *context, void *buffer, size_t length, uint64_t *address, uint32_t *key, void **window)
{
    verbs_endpoint_t *endpoint = context;
    verbs_region_t *region;
    if (endpoint->direct.state == VERBS_PATH_BROKEN) return false;
    if (verbs_memory_take(&endpoint->transport->memory, buffer, length, true, &region) != QUOIT_OK) {
        tell_unregistered(endpoint->transport);
        return false;
    }
    *address = (uintptr_t)buffer;
    *key = region->mr->rkey;
    *window = region;
    return true;
}

/* ---------------------------------------------------------------- writing */

static bool post_write(verbs_endpoint_t *endpoint, verbs_put_t *put, int *error)
{
    verbs_direct_t *direct = &endpoint->direct;
    uint64_t left = put->length - put->posted;
    uint32_t length = left < PIECE ? (uint32_t)left : PIECE, index = (direct->write_first + direct->write_count) % VERBS_DIRECT_SENDS;
    bool apart = endpoint->transport->options.adaptive_routing && put->length >= ENDS_APART; /* packets with an immediate go one way only */
    bool last = apart ? left == 0 : length == left, signalled = last || direct->unsignalled + 1 >= VERBS_DIRECT_SENDS / 4;
    struct ibv_sge place = {.addr = (uintptr_t)(put->buffer + put->posted), .length = length, .lkey = put->region->mr->lkey};
    struct ibv_send_wr work = {.wr_id = verbs_work_id(endpoint, VERBS_DIRECT_WRITE, direct->epoch, index),
                               .sg_list = &place,
                               .num_sge = length > 0,
                               .opcode = last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
                               .send_flags = signalled ? IBV_SEND_SIGNALED : 0,
                               .imm_data = htobe32(put->token),
                               .wr.rdma = {.remote_addr = put->address + put->posted, .rkey = put->key}},
                       *bad;
    *error = ibv_post_send(direct->qp, &work, &bad);
    if (*error != 0) return false;
    direct->writes[index] = (verbs_write_t){.put = put, .length = length, .last = last};
    direct->write_count++;
    direct->unsignalled = signalled ? 0 : direct->unsignalled + 1;
    put->posted += length;
    if (last) {
        put->sequence = ++direct->ends_sent;
        direct->credits--;
        list_remove(&put->link);
        list_append(&direct->posted, &put->link);
    }
    return true;
}

static bool can_post(const verbs_direct_t *direct)
{
    return direct->state == VERBS_PATH_UP && direct->write_count < VERBS_DIRECT_SENDS && direct->credits > 0 && !list_is_empty(&direct->waiting);
}

static int post_writes(verbs_endpoint_t *endpoint)
{
    int done = 0, error = 0;
    while (can_post(&endpoint->direct) && post_write(endpoint, container_of(endpoint->direct.waiting.next, verbs_put_t, link), &error)) done++;
    if (error == ENOMEM || error == EAGAIN)
        endpoint->retry = true;
    else if (error != 0)
        verbs_endpoint_break(endpoint, error_set_errno(QUOIT_ERR_SYSTEM, error, "verbs: %s: cannot post a write", endpoint->name));
    return done;
}

/* All writes up to this one are done. */
void verbs_direct_written(verbs_endpoint_t *endpoint, uint32_t index)
{
    verbs_direct_t *direct = &endpoint->direct;
    for (bool found = false; !found && direct->write_count > 0;) {
        verbs_write_t *write = &direct->writes[direct->write_first];
        found = direct->write_first == index;
        direct->write_first = (direct->write_first + 1) % VERBS_DIRECT_SENDS;
        direct->write_count--;
        channel_count_direct(endpoint->channel, write->length, 0);
        if (!write->last || write->put == NULL) continue;
        list_remove(&write->put->link);
        list_append(&direct->finished, &write->put->link);
        write->put = NULL;
        direct->errors = 0;
    }
}

void verbs_direct_end_came(verbs_endpoint_t *endpoint, uint32_t token)
{
    verbs_direct_t *direct = &endpoint->direct;
    if (direct->late_count == sizeof direct->late / sizeof *direct->late) {
        verbs_endpoint_break(endpoint, error_set(QUOIT_ERR_PROTOCOL, "verbs: %s wrote more messages than it may", endpoint->name));
        return;
    }
    direct->late[direct->late_count++] = token;
    direct->ends_taken++;
}

/* ---------------------------------------------------------------- stopping */

/* The queue pair is no more, and so is the peer's access. */
static void path_destroy(verbs_endpoint_t *endpoint)
{
    verbs_direct_t *direct = &endpoint->direct;
    const verbs_library_t *library = endpoint->transport->library;
    direct->state = VERBS_PATH_BROKEN;
    if (direct->qp == NULL) return;
    int error = library->destroy_qp(direct->qp);
    if (error != 0) error = library->destroy_qp(direct->qp);
    if (error == 0) direct->qp = NULL;
    else log_error("verbs", "%s: a queue pair can neither be stopped nor destroyed; the peer may still write into memory", endpoint->name);
    direct->write_count = 0;
}

static void path_broken(verbs_endpoint_t *endpoint, quoit_status_t status)
{
    verbs_endpoint_break(endpoint, status);
    path_destroy(endpoint);
}

/* Back to the waiting ones, in front, in the order in which they were begun. */
static void wait_again(verbs_direct_t *direct, list_t *from)
{
    while (!list_is_empty(from)) {
        verbs_put_t *put = container_of(from->previous, verbs_put_t, link);
        put->posted = 0;
        put->sequence = 0;
        list_remove(&put->link);
        put->link.next = direct->waiting.next;
        put->link.previous = &direct->waiting;
        direct->waiting.next->previous = &put->link;
        direct->waiting.next = &put->link;
    }
}

static quoit_status_t stop_queue(verbs_endpoint_t *endpoint)
{
    verbs_direct_t *direct = &endpoint->direct;
    quoit_status_t status = verbs_queue_stop(endpoint, direct->qp, IBV_QPS_ERR);
    if (status != QUOIT_OK) return status;
    direct->stopping = true;
    verbs_cqs_poll(endpoint->transport); /* what was acknowledged counts */
    direct->stopping = false;
    status = verbs_queue_stop(endpoint, direct->qp, IBV_QPS_RESET);
    if (status == QUOIT_OK) status = verbs_random(&direct->psn);
    return status;
}

static void path_reset(verbs_endpoint_t *endpoint)
{
    verbs_direct_t *direct = &endpoint->direct;
    quoit_status_t status = stop_queue(endpoint);
    uint64_t taken = direct->ends_taken;
    direct->epoch++;
    direct->error = IBV_WC_SUCCESS;
    direct->state = VERBS_PATH_DOWN;
    direct->write_count = direct->write_first = direct->unsignalled = 0;
    direct->ends_sent = direct->ends_taken = 0;
    direct->owed = 0;
    while (!list_is_empty(&direct->posted)) {
        list_t *link = list_pop(&direct->posted);
        list_append(&direct->doubtful, link);
    }
    for (list_t *link = direct->waiting.next; link != &direct->waiting; link = link->next) container_of(link, verbs_put_t, link)->posted = 0;
    if (status == QUOIT_OK) status = verbs_queue_init(endpoint, direct->qp, true);
    if (status == QUOIT_OK) status = verbs_direct_prepare(endpoint);
    if (status == QUOIT_OK) status = channel_path(endpoint->channel, PATH_RESET, direct->epoch, direct->psn, taken);
    if (status != QUOIT_OK) path_broken(endpoint, status);
}

/* May the device be reading or writing for this path? */
static bool is_live(const verbs_direct_t *direct) { return direct->state == VERBS_PATH_UP || direct->state == VERBS_PATH_READY; }

/* When the connection is over, nobody is told, and nothing begins anew. */
static void stop(verbs_endpoint_t *endpoint)
{
    if (!is_live(&endpoint->direct)) return;
    if (endpoint->broken == QUOIT_OK && channel_status(endpoint->channel) == QUOIT_OK)
        path_reset(endpoint);
    else
        path_destroy(endpoint);
}

static void direct_conceal(void *context, void *window, bool revoke)
{
    verbs_endpoint_t *endpoint = context;
    if (revoke) stop(endpoint);
    verbs_memory_give(&endpoint->transport->memory, window);
}

static bool is_under_way(const verbs_direct_t *direct, const verbs_put_t *put)
{
    for (uint32_t i = 0; i < direct->write_count; i++)
        if (direct->writes[(direct->write_first + i) % VERBS_DIRECT_SENDS].put == put) return true;
    return false;
}

static void direct_end(void *context, void *writing)
{
    verbs_endpoint_t *endpoint = context;
    verbs_put_t *put = writing;
    if (is_under_way(&endpoint->direct, put)) stop(endpoint);
    put_free(endpoint, put);
}

/* ---------------------------------------------------------------- beginning anew */

/* Of the messages under way, the first `taken` of the epoch are done, whether the device knows it already or not. */
static void end_taken(verbs_endpoint_t *endpoint, list_t *list, uint64_t taken)
{
    for (list_t *link = list->next, *next; link != list; link = next) {
        next = link->next;
        verbs_put_t *put = container_of(link, verbs_put_t, link);
        if (put->sequence != 0 && put->sequence <= taken) put_written(endpoint, put);
    }
}

static quoit_status_t peer_reset(verbs_endpoint_t *endpoint, uint64_t epoch, uint64_t psn, uint64_t taken)
{
    verbs_direct_t *direct = &endpoint->direct;
    if (is_live(direct) && epoch == direct->epoch + 1) path_reset(endpoint);
    if (direct->state == VERBS_PATH_BROKEN) return QUOIT_OK; /* progress ends the endpoint */
    if (direct->state != VERBS_PATH_DOWN || epoch != direct->epoch || psn >> 24 != 0)
        return error_set(QUOIT_ERR_PROTOCOL, "the direct path is reset to epoch %llu, here it is %llu", (unsigned long long)epoch,
                         (unsigned long long)direct->epoch);
    end_taken(endpoint, &direct->doubtful, taken);
    wait_again(direct, &direct->doubtful);
    quoit_status_t status = verbs_queue_connect(endpoint, direct->qp, &endpoint->peer_hello, endpoint->peer_hello.direct_qpn, direct->psn,
                                                (uint32_t)psn);
    if (status == QUOIT_OK) status = channel_path(endpoint->channel, PATH_READY, direct->epoch, 0, 0);
    if (status == QUOIT_OK) direct->state = VERBS_PATH_READY;
    else path_broken(endpoint, status);
    return QUOIT_OK;
}

/* The two queue pairs know no order between them: the stream's goodbye may overtake the acknowledgement of a write. */
void verbs_direct_say_last(verbs_endpoint_t *endpoint)
{
    verbs_direct_t *direct = &endpoint->direct;
    if (channel_path(endpoint->channel, PATH_LAST, direct->epoch, 0, direct->ends_taken) != QUOIT_OK)
        log_warn("verbs", "%s: %s; its last messages may seem lost to it", endpoint->name, error_text());
}

static quoit_status_t direct_path(void *context, uint32_t kind, uint64_t epoch, uint64_t number, uint64_t count)
{
    verbs_endpoint_t *endpoint = context;
    verbs_direct_t *direct = &endpoint->direct;
    if (kind == PATH_RESET) return peer_reset(endpoint, epoch, number, count);
    if (kind == PATH_LAST && epoch == direct->epoch) end_taken(endpoint, &direct->posted, count);
    if (kind == PATH_LAST) return QUOIT_OK;
    if (kind != PATH_READY) return error_set(QUOIT_ERR_PROTOCOL, "a frame of unknown kind %u for the direct path", kind);
    if (epoch == direct->epoch && direct->state == VERBS_PATH_READY) {
        direct->credits = direct->peer_recvs;
        direct->state = VERBS_PATH_UP;
    }
    return QUOIT_OK;
}

const direct_ops_t verbs_direct_ops = {
    .expose = direct_expose, .conceal = direct_conceal, .begin = direct_begin, .end = direct_end, .path = direct_path};

/* ---------------------------------------------------------------- progress */

/* The receives that the ends used up are posted anew, if the epoch is still the same. */
int verbs_direct_tell(verbs_endpoint_t *endpoint)
{
    verbs_direct_t *direct = &endpoint->direct;
    int done = (int)direct->late_count;
    uint64_t taken = direct->ends_taken;
    for (uint32_t i = 0; i < direct->late_count; i++) {
        uint64_t length = channel_arrived(endpoint->channel, direct->late[i]);
        channel_count_direct(endpoint->channel, 0, length);
    }
    /* Of those in the list, only the epoch's own have taken a receive of it. */
    uint64_t again = taken < direct->late_count ? taken : direct->late_count;
    direct->late_count = 0;
    for (; !list_is_empty(&direct->finished); done++) put_written(endpoint, container_of(direct->finished.next, verbs_put_t, link));
    for (; again > 0 && is_live(direct) && endpoint->broken == QUOIT_OK; again--) {
        int error = post_recv(endpoint);
        if (error != 0)
            verbs_endpoint_break(endpoint, error_set_errno(QUOIT_ERR_SYSTEM, error, "verbs: %s: cannot post a receive", endpoint->name));
        direct->owed++;
    }
    return done;
}

static int handle_error(verbs_endpoint_t *endpoint)
{
    verbs_direct_t *direct = &endpoint->direct;
    list_t *first = !list_is_empty(&direct->posted) ? direct->posted.next : direct->waiting.next;
    verbs_put_t *put = first != &direct->waiting ? container_of(first, verbs_put_t, link) : NULL;
    if ((put != NULL && ++put->attempts >= MOST_ATTEMPTS) || ++direct->errors >= MOST_ERRORS) {
        verbs_endpoint_break(endpoint, error_set(direct->error == IBV_WC_RETRY_EXC_ERR ? QUOIT_ERR_NETWORK : QUOIT_ERR_SYSTEM,
                                                 "verbs: %s (%s): writing into its memory failed again and again: %s (completion status %d)",
                                                 endpoint->name, endpoint->description, verbs_completion_meaning(direct->error), direct->error));
        return 1;
    }
    log_info("verbs", "%s: a write failed (%s); the direct path begins anew", endpoint->name, verbs_completion_meaning(direct->error));
    path_reset(endpoint);
    return 1;
}

int verbs_direct_progress(verbs_endpoint_t *endpoint)
{
    verbs_direct_t *direct = &endpoint->direct;
    int done = 0;
    if (direct->error != IBV_WC_SUCCESS && is_live(direct) && endpoint->broken == QUOIT_OK) done += handle_error(endpoint);
    return done + (endpoint->broken == QUOIT_OK ? post_writes(endpoint) : 0);
}

bool verbs_direct_has_work(const verbs_endpoint_t *endpoint)
{
    const verbs_direct_t *direct = &endpoint->direct;
    return direct->late_count > 0 || !list_is_empty(&direct->finished) || can_post(direct) || (direct->error != IBV_WC_SUCCESS && is_live(direct));
}

void verbs_direct_destroy(verbs_endpoint_t *endpoint)
{
    for (list_t *link; (link = list_pop(&endpoint->direct.free_puts)) != NULL;) free(container_of(link, verbs_put_t, link));
}
