/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The direct path: one queue pair whose RDMA writes put granted messages where they belong. The last write of a message carries its
 * token to the receiver (write with immediate), which uses up one of the receives that the peer has posted (`credits`). Taking back what was
 * granted is verbs_reset.c's.
 *
 * Several links: a message is written in pieces, each with an end of its own; both sides know their number from the message's length.
 * Which link takes the next is verbs_rails.c's. Pieces are made when they are posted, so there are never more of them than the links take at once.
 *
 * Completions may be taken while the channel walks its lists (it calls conceal and end), so the channel is told of ends only from
 * verbs_direct_tell.
 */
#include "transport/verbs/verbs.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>

enum { WRITE_MOST = 1 << 20, ENDS_APART = 64 << 10, MOST_ATTEMPTS = 4, MOST_ERRORS = 8, PIECES = 16, PIECE_LEAST = 32 << 10 };

void verbs_direct_init(verbs_direct_t *direct)
{
    list_init(&direct->waiting);
    list_init(&direct->posted);
    list_init(&direct->doubtful);
    direct->state = VERBS_PATH_DOWN;
}

static int post_recv(verbs_link_t *link)
{
    struct ibv_recv_wr work = {.wr_id = verbs_work_id(link, VERBS_DIRECT_RECV, link->direct.epoch, 0)}, *bad;
    return ibv_post_recv(link->direct.qp, &work, &bad);
}

quoit_status_t verbs_direct_prepare(verbs_link_t *link)
{
    for (int i = 0; i < VERBS_DIRECT_RECVS; i++) {
        int error = post_recv(link);
        if (error != 0) return error_set_errno(QUOIT_ERR_SYSTEM, error, "verbs: %s: cannot post receive %d", link->endpoint->base.name, i);
    }
    return QUOIT_OK;
}

void verbs_direct_start(verbs_link_t *link)
{
    link->direct.peer_recvs = link->direct.credits = link->peer.direct_recvs;
    link->direct.state = VERBS_PATH_UP;
}

/* ---------------------------------------------------------------- puts */

static bool is_split(const verbs_endpoint_t *endpoint) { return endpoint->links > 1; }

/* Enough pieces to come near to the rates, none so small that its end counts. */
static uint64_t direct_piece(void *context, uint64_t length)
{
    if (!is_split(context)) return length;
    uint64_t piece = ((length + PIECES - 1) / PIECES + 4095) & ~(uint64_t)4095;
    return piece < PIECE_LEAST ? PIECE_LEAST : piece > WRITE_MOST ? WRITE_MOST : piece;
}

static verbs_put_t *put_make(verbs_endpoint_t *endpoint)
{
    list_t *link = list_pop(&endpoint->free_puts);
    return link != NULL ? container_of(link, verbs_put_t, link) : malloc(sizeof(verbs_put_t));
}

static void put_free(verbs_endpoint_t *endpoint, verbs_put_t *put)
{
    for (int k = 0; k < endpoint->links; k++) {
        verbs_direct_t *direct = &endpoint->link_of[k].direct;
        for (uint32_t i = 0; i < direct->write_count; i++) {
            verbs_write_t *write = &direct->writes[(direct->write_first + i) % VERBS_DIRECT_SENDS];
            if (write->put == put) write->put = NULL;
        }
    }
    if (put->message == NULL) verbs_memory_give(put->region);
    put->region = NULL;
    list_remove(&put->link);
    list_append(&endpoint->free_puts, &put->link);
}

static void message_free(verbs_endpoint_t *endpoint, verbs_message_t *message)
{
    verbs_memory_give(message->region);
    list_remove(&message->link);
    list_append(&endpoint->free_messages, &message->link);
}

void verbs_put_written(verbs_endpoint_t *endpoint, verbs_put_t *put)
{
    verbs_message_t *message = put->message;
    void *send = put->send;
    if (message != NULL) {
        message->done += put->length;
        put_free(endpoint, put);
        if (message->done < message->length) return;
        message_free(endpoint, message);
    } else {
        put_free(endpoint, put);
    }
    channel_written(endpoint->base.channel, send);
}

/* One warning tells it; the rest is for those who look closer. */
static void tell_unregistered(verbs_transport_t *transport)
{
    log_write(transport->told_unregistered ? LOG_DEBUG : LOG_WARN, "verbs", "%s; its bytes go over the stream, copied on both sides", error_text());
    transport->told_unregistered = true;
}

/* The buffer's registration; of a device's memory it is known already. NULL: it goes over the stream. */
static verbs_region_t *region_of(verbs_endpoint_t *endpoint, const void *buffer, size_t length, void *known, bool writable)
{
    verbs_region_t *region = known;
    if (region != NULL) {
        verbs_memory_hold(region);
    } else if (verbs_memory_take(&endpoint->transport->memory, buffer, length, writable, &region) != QUOIT_OK) {
        tell_unregistered(endpoint->transport);
        return NULL;
    }
    return region;
}

static bool is_broken(const verbs_endpoint_t *endpoint)
{
    for (int i = 0; i < endpoint->links; i++)
        if (endpoint->link_of[i].direct.state == VERBS_PATH_BROKEN) return true;
    return false;
}

static void *begin_pieces(verbs_endpoint_t *endpoint, const verbs_message_t *message)
{
    list_t *link = list_pop(&endpoint->free_messages);
    verbs_message_t *made = link != NULL ? container_of(link, verbs_message_t, link) : malloc(sizeof *made);
    if (made == NULL) return NULL;
    *made = *message;
    list_append(&endpoint->messages, &made->link);
    return made;
}

/* The grant's keys are those of the peer's rails, and link i joins the i-th. */
static void *direct_begin(void *context, const void *buffer, size_t length, void *memory, uint64_t address, const uint32_t *keys, unsigned count,
                          uint32_t token, void *send)
{
    verbs_endpoint_t *endpoint = context;
    void *made = NULL;
    if (is_broken(endpoint) || count < (unsigned)endpoint->links) return NULL;
    verbs_region_t *region = region_of(endpoint, buffer, length, memory, false);
    if (region == NULL) return NULL;
    if (is_split(endpoint)) {
        verbs_message_t message = {.buffer = buffer, .length = length, .address = address, .token = token, .send = send, .region = region};
        for (int i = 0; i < endpoint->links; i++) message.keys[i] = keys[i];
        made = begin_pieces(endpoint, &message);
    } else {
        verbs_put_t *put = put_make(endpoint);
        if (put != NULL) {
            *put = (verbs_put_t){.buffer = buffer, .length = length, .address = address, .key = keys[0], .token = token, .send = send, .region = region};
            list_append(&endpoint->link_of[0].direct.waiting, &put->link);
        }
        made = put;
    }
    if (made == NULL) verbs_memory_give(region);
    return made;
}

static unsigned direct_expose(void *context, void *buffer, size_t length, void *memory, uint64_t *address, uint32_t keys[FRAME_KEYS], void **window)
{
    verbs_endpoint_t *endpoint = context;
    if (is_broken(endpoint)) return 0;
    verbs_region_t *region = region_of(endpoint, buffer, length, memory, true);
    if (region == NULL) return 0;
    *address = (uintptr_t)buffer + region->shift;
    for (int i = 0; i < endpoint->links; i++) keys[i] = region->mr[i] != NULL ? region->mr[i]->rkey : 0;
    *window = region;
    return (unsigned)endpoint->links;
}

/* ---------------------------------------------------------------- writing */

static bool post_write(verbs_link_t *link, verbs_put_t *put, int *error)
{
    verbs_direct_t *direct = &link->direct;
    uint64_t left = put->length - put->posted;
    uint32_t length = left < WRITE_MOST ? (uint32_t)left : WRITE_MOST, index = (direct->write_first + direct->write_count) % VERBS_DIRECT_SENDS;
    bool apart = link->endpoint->transport->options.adaptive_routing && put->length >= ENDS_APART; /* packets with an immediate go one way only */
    bool last = apart ? left == 0 : length == left, signalled = last || direct->unsignalled + 1 >= VERBS_DIRECT_SENDS / 4;
    struct ibv_sge place = {.addr = (uintptr_t)(put->buffer + put->posted) + put->region->shift, .length = length, .lkey = put->region->mr[link->number]->lkey};
    struct ibv_send_wr work = {.wr_id = verbs_work_id(link, VERBS_DIRECT_WRITE, direct->epoch, index),
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
        direct->flying++;
        list_remove(&put->link);
        list_append(&direct->posted, &put->link);
    }
    return true;
}

/* The next of the pieces that no link has yet: bytes of it, 0: none. */
static uint64_t next_piece(verbs_endpoint_t *endpoint)
{
    if (!list_is_empty(&endpoint->again)) return container_of(endpoint->again.next, verbs_put_t, link)->length;
    if (list_is_empty(&endpoint->messages)) return 0;
    const verbs_message_t *message = container_of(endpoint->messages.next, verbs_message_t, link);
    uint64_t piece = direct_piece(endpoint, message->length), left = message->length - message->cut;
    return piece < left ? piece : left;
}

/* It becomes this link's. False: no memory for it. */
static bool take_piece(verbs_link_t *link)
{
    verbs_endpoint_t *endpoint = link->endpoint;
    list_t *again = list_pop(&endpoint->again);
    verbs_put_t *put = again != NULL ? container_of(again, verbs_put_t, link) : put_make(endpoint);
    if (put == NULL) return false;
    if (again == NULL) {
        verbs_message_t *message = container_of(endpoint->messages.next, verbs_message_t, link);
        *put = (verbs_put_t){.buffer = message->buffer + message->cut, .length = next_piece(endpoint), .address = message->address + message->cut,
                             .token = message->token, .send = message->send, .message = message, .region = message->region};
        message->cut += put->length;
        if (message->cut == message->length) list_remove(&message->link);
    }
    put->key = put->message->keys[link->number];
    list_append(&link->direct.waiting, &put->link);
    verbs_rails_took(link, put->length);
    return true;
}

static bool can_post(const verbs_link_t *link)
{
    const verbs_direct_t *direct = &link->direct;
    if (direct->state != VERBS_PATH_UP || direct->write_count == VERBS_DIRECT_SENDS || direct->credits == 0) return false;
    if (!list_is_empty(&direct->waiting)) return true;
    if (!is_split(link->endpoint)) return false;
    uint64_t piece = next_piece(link->endpoint);
    return piece > 0 && verbs_rails_is_next(link, piece);
}

static int post_writes(verbs_link_t *link)
{
    verbs_direct_t *direct = &link->direct;
    int done = 0, error = 0;
    while (error == 0 && can_post(link)) {
        if (list_is_empty(&direct->waiting) && !take_piece(link)) {
            error = ENOMEM;
            break;
        }
        verbs_put_t *put = container_of(direct->waiting.next, verbs_put_t, link);
        if (put->region->mr[link->number] == NULL) error = ENODEV; /* gone, and the event of it is still to come */
        else done += post_write(link, put, &error);
    }
    if (error == ENOMEM || error == EAGAIN)
        link->retry = true;
    else if (error != 0)
        verbs_link_break(link, error_set_errno(QUOIT_ERR_SYSTEM, error, "verbs: %s: cannot post a write", link->endpoint->base.name));
    return done;
}

/* All writes up to this one are done. */
void verbs_direct_written(verbs_link_t *link, uint32_t index)
{
    verbs_direct_t *direct = &link->direct;
    for (bool found = false; !found && direct->write_count > 0;) {
        verbs_write_t *write = &direct->writes[direct->write_first];
        found = direct->write_first == index;
        direct->write_first = (direct->write_first + 1) % VERBS_DIRECT_SENDS;
        direct->write_count--;
        channel_count_direct(link->endpoint->base.channel, write->length, 0);
        if (!write->last) continue;
        direct->ends_done++;
        direct->flying--;
        if (write->put == NULL) continue;
        list_remove(&write->put->link);
        list_append(&link->endpoint->finished, &write->put->link);
        link->endpoint->news = true;
        write->put = NULL;
        direct->errors = 0;
    }
}

void verbs_direct_end_came(verbs_link_t *link, uint32_t token)
{
    verbs_direct_t *direct = &link->direct;
    if (direct->late_count == sizeof direct->late / sizeof *direct->late) {
        verbs_endpoint_break(link->endpoint, error_set(QUOIT_ERR_PROTOCOL, "verbs: %s wrote more messages than it may", link->endpoint->base.name));
        return;
    }
    direct->late[direct->late_count++] = token;
    link->endpoint->news = true;
    direct->ends_taken++;
}

/* ---------------------------------------------------------------- ends */

static void direct_conceal(void *context, void *window, bool revoke)
{
    verbs_endpoint_t *endpoint = context;
    for (int i = 0; i < endpoint->links && revoke; i++) verbs_path_stop(&endpoint->link_of[i]);
    verbs_memory_give(window);
}

static bool is_under_way(const verbs_direct_t *direct, const void *writing)
{
    for (uint32_t i = 0; i < direct->write_count; i++) {
        const verbs_put_t *put = direct->writes[(direct->write_first + i) % VERBS_DIRECT_SENDS].put;
        if (put != NULL && (put == writing || put->message == writing)) return true;
    }
    return false;
}

static void forget_pieces(verbs_endpoint_t *endpoint, list_t *list, const verbs_message_t *message)
{
    for (list_t *link = list->next, *next; link != list; link = next) {
        verbs_put_t *put = container_of(link, verbs_put_t, link);
        next = link->next;
        if (put->message == message) put_free(endpoint, put);
    }
}

static void end_pieces(verbs_endpoint_t *endpoint, verbs_message_t *message)
{
    for (int i = 0; i < endpoint->links; i++) {
        verbs_direct_t *direct = &endpoint->link_of[i].direct;
        forget_pieces(endpoint, &direct->waiting, message);
        forget_pieces(endpoint, &direct->posted, message);
        forget_pieces(endpoint, &direct->doubtful, message);
    }
    forget_pieces(endpoint, &endpoint->again, message);
    forget_pieces(endpoint, &endpoint->finished, message);
    message_free(endpoint, message);
}

static void direct_end(void *context, void *writing)
{
    verbs_endpoint_t *endpoint = context;
    for (int i = 0; i < endpoint->links; i++)
        if (is_under_way(&endpoint->link_of[i].direct, writing)) verbs_path_stop(&endpoint->link_of[i]);
    if (is_split(endpoint)) end_pieces(endpoint, writing);
    else put_free(endpoint, writing);
}

const direct_ops_t verbs_direct_ops = {
    .expose = direct_expose, .conceal = direct_conceal, .begin = direct_begin, .end = direct_end, .path = verbs_path_arrived, .piece = direct_piece};

/* ---------------------------------------------------------------- progress */

/* The receives that the ends used up are posted anew, if the epoch is still the same. */
static int tell_link(verbs_link_t *link)
{
    verbs_endpoint_t *endpoint = link->endpoint;
    verbs_direct_t *direct = &link->direct;
    int done = (int)direct->late_count;
    uint64_t taken = direct->ends_taken;
    for (uint32_t i = 0; i < direct->late_count; i++) {
        uint64_t length = channel_arrived(endpoint->base.channel, direct->late[i]);
        channel_count_direct(endpoint->base.channel, 0, length);
    }
    /* Of those in the list, only the epoch's own have taken a receive of it. */
    uint64_t again = taken < direct->late_count ? taken : direct->late_count;
    direct->late_count = 0;
    for (; again > 0 && verbs_path_is_live(direct) && endpoint->broken == QUOIT_OK && link->broken == QUOIT_OK; again--) {
        int error = post_recv(link);
        if (error != 0) verbs_link_break(link, error_set_errno(QUOIT_ERR_SYSTEM, error, "verbs: %s: cannot post a receive", endpoint->base.name));
        direct->owed++;
    }
    return done;
}

int verbs_direct_tell(verbs_endpoint_t *endpoint)
{
    int done = 0;
    endpoint->news = false;
    for (int i = 0; i < endpoint->links; i++)
        if (endpoint->link_of[i].direct.late_count > 0) done += tell_link(&endpoint->link_of[i]);
    for (; !list_is_empty(&endpoint->finished); done++) verbs_put_written(endpoint, container_of(endpoint->finished.next, verbs_put_t, link));
    return done;
}

/* One of several links whose peer does not answer is left at once: its device has asked often enough. */
static int handle_error(verbs_link_t *link)
{
    verbs_direct_t *direct = &link->direct;
    list_t *first = !list_is_empty(&direct->posted) ? direct->posted.next : direct->waiting.next;
    verbs_put_t *put = first != &direct->waiting ? container_of(first, verbs_put_t, link) : NULL;
    bool silent = is_split(link->endpoint) && (direct->error == IBV_WC_RETRY_EXC_ERR || direct->error == IBV_WC_RESP_TIMEOUT_ERR);
    if (silent || (put != NULL && ++put->attempts >= MOST_ATTEMPTS) || ++direct->errors >= MOST_ERRORS) {
        verbs_link_break(link, error_set(direct->error == IBV_WC_RETRY_EXC_ERR ? QUOIT_ERR_NETWORK : QUOIT_ERR_SYSTEM,
                                         "verbs: %s (%s): writing into its memory failed%s: %s (completion status %d)",
                                         link->endpoint->base.name, link->endpoint->base.description, silent ? "" : " again and again",
                                         verbs_completion_meaning(direct->error), direct->error));
        return 1;
    }
    log_info("verbs", "%s: a write failed (%s); the direct path begins anew", link->endpoint->base.name, verbs_completion_meaning(direct->error));
    verbs_path_reset(link);
    return 1;
}

int verbs_direct_progress(verbs_link_t *link)
{
    verbs_direct_t *direct = &link->direct;
    int done = 0;
    if (direct->error != IBV_WC_SUCCESS && verbs_path_is_live(direct) && link->broken == QUOIT_OK && link->endpoint->broken == QUOIT_OK) done += handle_error(link);
    return done + (link->endpoint->broken == QUOIT_OK && link->broken == QUOIT_OK ? post_writes(link) : 0);
}

bool verbs_direct_has_work(const verbs_link_t *link)
{
    const verbs_direct_t *direct = &link->direct;
    return can_post(link) || (direct->error != IBV_WC_SUCCESS && verbs_path_is_live(direct));
}

void verbs_direct_destroy(verbs_endpoint_t *endpoint)
{
    for (list_t *link; (link = list_pop(&endpoint->free_puts)) != NULL;) free(container_of(link, verbs_put_t, link));
    for (list_t *link; (link = list_pop(&endpoint->free_messages)) != NULL;) free(container_of(link, verbs_message_t, link));
}
