/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion queues, shared by the links of a rail. One is made with room for some links, each counted with everything that its
 * two queue pairs can ever have under way, so none can overflow; when it is full the next is made, for four times as many. So a job of a
 * few hosts has one queue a device to look at, whatever the number of its connections, and one of thousands has a handful.
 *
 * A completion says which endpoint it is for by a number in its wr_id: its place in a table, and a generation, because a device may leave
 * completions of a queue pair that is gone in the queue.
 */
#include "transport/verbs/verbs.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 16, MOST_ROOM = 4096, POLL_AT_ONCE = 16, SLOT_BITS = 16, MOST_SLOTS = 1 << SLOT_BITS };

/* ---------------------------------------------------------------- queues */

/* All that one link can have under way: twice the direct path, because two epochs may meet. */
static unsigned entries_each(const verbs_transport_t *transport)
{
    return 2 * transport->options.depth + 2 * (VERBS_DIRECT_SENDS + VERBS_DIRECT_RECVS);
}

static unsigned room_for(const verbs_transport_t *transport, const verbs_rail_t *rail)
{
    unsigned room = FIRST_ROOM, most = rail->most_entries / entries_each(transport);
    for (const list_t *link = rail->cqs.next; link != &rail->cqs && room < MOST_ROOM; link = link->next) room *= 4;
    return most == 0 ? 1 : room < most ? room : most;
}

static verbs_cq_t *make(verbs_transport_t *transport, verbs_rail_t *rail)
{
    verbs_cq_t *cq = calloc(1, sizeof *cq);
    if (cq == NULL) {
        error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for a completion queue");
        return NULL;
    }
    int entries = 0;
    for (unsigned room = room_for(transport, rail); cq->cq == NULL && room > 0; room /= 2) {
        entries = (int)(room * entries_each(transport));
        cq->cq = transport->library->create_cq(rail->context, entries, cq, rail->events, 0);
        cq->room = room;
    }
    if (cq->cq == NULL) {
        error_set_errno(QUOIT_ERR_SYSTEM, errno, "verbs: cannot make a completion queue of %d entries on %s", entries, rail->chosen.device);
        free(cq);
        return NULL;
    }
    cq->rail = rail;
    list_append(&rail->cqs, &cq->link);
    return cq;
}

static void destroy(verbs_transport_t *transport, verbs_cq_t *cq)
{
    int error = transport->library->destroy_cq(cq->cq);
    if (error != 0) error = transport->library->destroy_cq(cq->cq); /* an interrupted call succeeds the second time */
    if (error != 0) log_warn("verbs", "cannot destroy a completion queue: %s", strerror(error));
    list_remove(&cq->link);
    free(cq);
}

/* ---------------------------------------------------------------- numbers */

static bool make_slots(verbs_transport_t *transport)
{
    unsigned capacity = transport->slot_count > 0 ? 2 * transport->slot_count : 16;
    if (capacity > MOST_SLOTS) return false;
    verbs_slot_t *slots = realloc(transport->slots, capacity * sizeof *slots);
    if (slots == NULL) return false;
    memset(slots + transport->slot_count, 0, (capacity - transport->slot_count) * sizeof *slots);
    transport->slots = slots;
    transport->slot_count = capacity;
    return true;
}

quoit_status_t verbs_number_take(verbs_endpoint_t *endpoint)
{
    verbs_transport_t *transport = endpoint->transport;
    unsigned slot = 0;
    while (slot < transport->slot_count && transport->slots[slot].endpoint != NULL) slot++;
    if (slot == transport->slot_count && !make_slots(transport))
        return error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for one connection more than %u", transport->slot_count);
    if (++transport->slots[slot].generation == 0) transport->slots[slot].generation = 1;
    transport->slots[slot].endpoint = endpoint;
    transport->numbers++;
    endpoint->number = (uint32_t)transport->slots[slot].generation << SLOT_BITS | slot;
    return QUOIT_OK;
}

void verbs_number_give(verbs_endpoint_t *endpoint)
{
    if (endpoint->number == 0) return;
    endpoint->transport->slots[endpoint->number & (MOST_SLOTS - 1)].endpoint = NULL;
    endpoint->number = 0;
    endpoint->transport->numbers--;
}

/* Whose completion it is; NULL: of an endpoint whose queue pairs are gone. */
static verbs_endpoint_t *find(const verbs_transport_t *transport, uint32_t number)
{
    uint32_t slot = number & (MOST_SLOTS - 1);
    verbs_endpoint_t *endpoint = slot < transport->slot_count ? transport->slots[slot].endpoint : NULL;
    return endpoint != NULL && endpoint->number == number ? endpoint : NULL;
}

/* ---------------------------------------------------------------- a link's part */

quoit_status_t verbs_cq_join(verbs_link_t *link)
{
    verbs_cq_t *cq = NULL;
    for (list_t *place = link->rail->cqs.next; place != &link->rail->cqs && cq == NULL; place = place->next) {
        verbs_cq_t *each = container_of(place, verbs_cq_t, link);
        if (each->users < each->room) cq = each;
    }
    if (cq == NULL) cq = make(link->endpoint->transport, link->rail);
    if (cq == NULL) return error_prefix(QUOIT_ERR_SYSTEM, "%s", link->endpoint->base.name);
    cq->users++;
    link->cq = cq;
    return QUOIT_OK;
}

void verbs_cq_leave(verbs_transport_t *transport, verbs_cq_t *cq)
{
    if (cq != NULL && --cq->users == 0) destroy(transport, cq);
}

/* ---------------------------------------------------------------- looking at them */

static void cq_failed(verbs_transport_t *transport, verbs_cq_t *cq)
{
    cq->room = 0; /* nobody joins it any more */
    for (list_t *place = transport->base.all.next; place != &transport->base.all; place = place->next) {
        verbs_endpoint_t *endpoint = container_of(place, verbs_endpoint_t, base.node);
        for (int i = 0; i < endpoint->links; i++)
            if (endpoint->link_of[i].cq == cq)
                verbs_link_break(&endpoint->link_of[i], error_set(QUOIT_ERR_SYSTEM, "verbs: %s: the completion queue of %s failed", endpoint->base.name,
                                                                  cq->rail->chosen.device));
    }
}

static int poll_one(verbs_transport_t *transport, verbs_cq_t *cq)
{
    struct ibv_wc completions[POLL_AT_ONCE];
    int total = 0, count = POLL_AT_ONCE;
    while (count == POLL_AT_ONCE) {
        count = ibv_poll_cq(cq->cq, POLL_AT_ONCE, completions);
        if (count < 0) {
            cq_failed(transport, cq);
            return total + 1;
        }
        for (int i = 0; i < count; i++) {
            verbs_endpoint_t *endpoint = find(transport, verbs_work_number(completions[i].wr_id));
            if (endpoint == NULL) continue;
            verbs_queue_completed(endpoint, &completions[i]);
            verbs_endpoint_wake(endpoint);
        }
        total += count;
    }
    return total;
}

int verbs_cqs_poll(verbs_transport_t *transport)
{
    int total = 0;
    for (int i = 0; i < transport->rails; i++) {
        const list_t *cqs = &transport->rail[i].cqs;
        for (list_t *link = cqs->next; link != cqs; link = link->next) total += poll_one(transport, container_of(link, verbs_cq_t, link));
    }
    return total;
}

bool verbs_cqs_arm(verbs_transport_t *transport)
{
    bool armed = true;
    for (int i = 0; i < transport->rails; i++) {
        for (list_t *link = transport->rail[i].cqs.next; link != &transport->rail[i].cqs; link = link->next) {
            verbs_cq_t *cq = container_of(link, verbs_cq_t, link);
            if (!cq->armed) cq->armed = ibv_req_notify_cq(cq->cq, 0) == 0;
            armed = armed && cq->armed;
        }
    }
    return armed;
}

void verbs_cqs_take_events(verbs_transport_t *transport)
{
    struct ibv_cq *cq;
    void *user;
    for (int i = 0; i < transport->rails; i++) {
        while (transport->library->get_cq_event(transport->rail[i].events, &cq, &user) == 0) {
            transport->library->ack_cq_events(cq, 1);
            ((verbs_cq_t *)user)->armed = false;
        }
    }
}
