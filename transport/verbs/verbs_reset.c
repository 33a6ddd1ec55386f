/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stopping a direct path. A grant that ends before its bytes came (cancel, mismatch), and a send that ends before they went, must end the device's
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
 * An error of a write is treated likewise: a new epoch, and if the same message fails four times, the connection ends. So it does where the queue pair
 * cannot begin anew; of several links only that one ends (below), and where it cannot even be reset, RESET is said nevertheless, for its count.
 *
 * Several links have each a path with its own epochs; a frame names the link beside its kind. One that is lost is stopped likewise by both sides,
 * each says LOST(epoch, how many ends it took), and what is behind that number goes over the others. Of an epoch in which messages were under way
 * the peer's count comes once: by the RESET that follows it, or by LOST.
 */
#include "transport/verbs/verbs.h"

#include "base/log.h"

enum { PATH_RESET = 1, PATH_READY = 2, PATH_LAST = 3, PATH_LOST = 4, PATH_LINK_SHIFT = 8 };

static quoit_status_t say(verbs_link_t *link, unsigned kind, uint64_t number, uint64_t count)
{
    return channel_path(link->endpoint->base.channel, kind | (unsigned)link->number << PATH_LINK_SHIFT, link->direct.epoch, number, count);
}

bool verbs_path_is_live(const verbs_direct_t *direct) { return direct->state == VERBS_PATH_UP || direct->state == VERBS_PATH_READY; }

/* ---------------------------------------------------------------- stopping */

/* The queue pair is of no more use, and neither is the peer's access; where it cannot be reset, it is no more. */
static void path_close(verbs_link_t *link, verbs_path_t state)
{
    verbs_direct_t *direct = &link->direct;
    direct->state = state;
    if (verbs_queue_rest(link, &direct->qp) != 0)
        log_error("verbs", "%s: a queue pair can neither be stopped nor destroyed; the peer may still write into memory", link->endpoint->base.name);
    direct->write_count = 0;
    direct->flying = 0;
}

/* In front of a list, in the order in which they were begun. */
static void put_in_front(list_t *list, list_t *from)
{
    while (!list_is_empty(from)) {
        verbs_put_t *put = container_of(from->previous, verbs_put_t, link);
        put->posted = 0;
        put->sequence = 0;
        list_remove(&put->link);
        put->link.next = list->next;
        put->link.previous = list;
        list->next->previous = &put->link;
        list->next = &put->link;
    }
}

/* What was acknowledged counts. */
static quoit_status_t take_last(verbs_link_t *link)
{
    quoit_status_t status = verbs_queue_stop(link, link->direct.qp, IBV_QPS_ERR);
    link->direct.stopping = true;
    verbs_cqs_poll(link->endpoint->transport);
    link->direct.stopping = false;
    return status;
}

/* What is posted, and not known to have arrived, is in doubt until the peer has told. */
static void doubt(verbs_direct_t *direct)
{
    if (!list_is_empty(&direct->posted)) direct->doubtful_epoch = direct->epoch;
    for (list_t *link; (link = list_pop(&direct->posted)) != NULL;) list_append(&direct->doubtful, link);
    direct->write_count = direct->write_first = direct->unsignalled = 0;
    direct->flying = 0;
    direct->error = IBV_WC_SUCCESS;
}

/* It cannot begin anew: the end of the rail, and of the connection where there is no other. */
static void path_broken(verbs_link_t *link, quoit_status_t status)
{
    verbs_link_break(link, status);
    if (link->endpoint->links > 1) verbs_path_leave(link);
    else path_close(link, VERBS_PATH_BROKEN);
}

/* The same before the peer was told of the new epoch: by that it learns how many ends were taken in the old one. */
static void path_broken_before(verbs_link_t *link, quoit_status_t status, uint64_t taken)
{
    verbs_link_break(link, status); /* while the text is there */
    if (link->endpoint->links > 1 && say(link, PATH_RESET, 0, taken) != QUOIT_OK) verbs_endpoint_break(link->endpoint, QUOIT_ERR_NO_MEMORY);
    path_broken(link, status);
}

void verbs_path_reset(verbs_link_t *link)
{
    verbs_direct_t *direct = &link->direct;
    quoit_status_t status = take_last(link);
    if (status == QUOIT_OK) status = verbs_queue_stop(link, direct->qp, IBV_QPS_RESET);
    if (status == QUOIT_OK) status = verbs_random(&direct->psn);
    uint64_t taken = direct->ends_taken;
    doubt(direct);
    direct->epoch++;
    direct->state = VERBS_PATH_DOWN;
    direct->ends_before = direct->ends_done;
    direct->ends_sent = direct->ends_done = direct->ends_taken = 0;
    direct->owed = 0;
    for (list_t *place = direct->waiting.next; place != &direct->waiting; place = place->next) container_of(place, verbs_put_t, link)->posted = 0;
    if (status == QUOIT_OK) status = verbs_queue_init(link, direct->qp, true);
    if (status == QUOIT_OK) status = verbs_direct_prepare(link);
    if (status != QUOIT_OK) path_broken_before(link, status, taken);
    else if ((status = say(link, PATH_RESET, direct->psn, taken)) != QUOIT_OK) path_broken(link, status);
}

/* When the connection is over, nobody is told, and nothing begins anew. */
void verbs_path_stop(verbs_link_t *link)
{
    const verbs_endpoint_t *endpoint = link->endpoint;
    if (!verbs_path_is_live(&link->direct)) return;
    if (endpoint->broken != QUOIT_OK || channel_status(endpoint->base.channel) != QUOIT_OK)
        path_close(link, VERBS_PATH_BROKEN);
    else if (link->broken != QUOIT_OK)
        verbs_path_leave(link); /* what progress would do */
    else
        verbs_path_reset(link);
}

void verbs_path_leave(verbs_link_t *link)
{
    verbs_direct_t *direct = &link->direct;
    if (direct->state == VERBS_PATH_LOST || direct->state == VERBS_PATH_BROKEN) return;
    if (verbs_path_is_live(direct) && direct->qp != NULL) (void)take_last(link); /* a device that fails says nothing more */
    path_close(link, VERBS_PATH_LOST);
    doubt(direct);
    put_in_front(&link->endpoint->again, &direct->waiting);
    if (say(link, PATH_LOST, 0, direct->ends_taken) != QUOIT_OK) verbs_endpoint_break(link->endpoint, QUOIT_ERR_NO_MEMORY);
    verbs_endpoint_wake(link->endpoint);
}

/* ---------------------------------------------------------------- beginning anew */

/* Its device may have failed between the two, and its queue pair could not be stopped in time: what it did not see is lost. */
static quoit_status_t check_taken(uint64_t acknowledged, uint64_t taken)
{
    if (taken >= acknowledged) return QUOIT_OK;
    return error_set(QUOIT_ERR_NETWORK, "its device acknowledged %llu messages, of which it saw %llu before the device failed",
                     (unsigned long long)acknowledged, (unsigned long long)taken);
}

/* Of the messages under way, the first `taken` of the epoch are done, whether the device knows it already or not. */
static void end_taken(verbs_endpoint_t *endpoint, list_t *list, uint64_t taken)
{
    for (list_t *link = list->next, *next; link != list; link = next) {
        next = link->next;
        verbs_put_t *put = container_of(link, verbs_put_t, link);
        if (put->sequence != 0 && put->sequence <= taken) verbs_put_written(endpoint, put);
    }
}

static quoit_status_t peer_reset(verbs_link_t *link, uint64_t epoch, uint64_t psn, uint64_t taken)
{
    verbs_direct_t *direct = &link->direct;
    quoit_status_t status = QUOIT_OK;
    if (verbs_path_is_live(direct) && epoch == direct->epoch + 1) {
        if (link->broken == QUOIT_OK) verbs_path_reset(link);
        else verbs_path_leave(link);
    }
    if (direct->state == VERBS_PATH_BROKEN) return QUOIT_OK; /* progress ends the endpoint */
    if (direct->state == VERBS_PATH_LOST) {
        if (epoch == direct->epoch + 1) status = check_taken(direct->ends_done, taken);
        if (epoch == direct->epoch) status = check_taken(direct->ends_before, taken);
        if (status != QUOIT_OK || epoch != direct->doubtful_epoch + 1) return status;
        end_taken(link->endpoint, &direct->doubtful, taken);
        put_in_front(&link->endpoint->again, &direct->doubtful);
        return QUOIT_OK;
    }
    if (direct->state != VERBS_PATH_DOWN || epoch != direct->epoch || psn >> 24 != 0)
        return error_set(QUOIT_ERR_PROTOCOL, "the direct path is reset to epoch %llu, here it is %llu", (unsigned long long)epoch,
                         (unsigned long long)direct->epoch);
    if ((status = check_taken(direct->ends_before, taken)) != QUOIT_OK) return status;
    end_taken(link->endpoint, &direct->doubtful, taken);
    put_in_front(&direct->waiting, &direct->doubtful);
    status = verbs_queue_connect(link, direct->qp, link->peer.direct_qpn, direct->psn, (uint32_t)psn);
    if (status == QUOIT_OK) status = say(link, PATH_READY, 0, 0);
    if (status == QUOIT_OK) direct->state = VERBS_PATH_READY;
    else path_broken(link, status);
    return QUOIT_OK;
}

/* The peer has left the rail, so it is left here, too; then what it did not take is known. */
static quoit_status_t peer_lost(verbs_link_t *link, uint64_t epoch, uint64_t taken)
{
    verbs_direct_t *direct = &link->direct;
    if (link->endpoint->links == 1) return error_set(QUOIT_ERR_PROTOCOL, "the loss of a rail where there is only one");
    if (link->broken == QUOIT_OK && !link->left) verbs_link_break(link, error_set(QUOIT_ERR_NETWORK, "the other side gave it up"));
    verbs_path_leave(link);
    if (direct->state != VERBS_PATH_LOST) return QUOIT_OK;
    quoit_status_t status = epoch == direct->epoch ? check_taken(direct->ends_done, taken) : QUOIT_OK;
    if (status != QUOIT_OK || epoch != direct->doubtful_epoch) return status;
    end_taken(link->endpoint, &direct->doubtful, taken);
    put_in_front(&link->endpoint->again, &direct->doubtful);
    return QUOIT_OK;
}

/* The two queue pairs know no order between them: the stream's goodbye may overtake the acknowledgement of a write. */
void verbs_path_say_last(verbs_link_t *link)
{
    if (link->direct.state == VERBS_PATH_LOST) return;
    if (say(link, PATH_LAST, 0, link->direct.ends_taken) != QUOIT_OK)
        log_warn("verbs", "%s: %s; its last messages may seem lost to it", link->endpoint->base.name, error_text());
}

quoit_status_t verbs_path_arrived(void *context, uint32_t kind, uint64_t epoch, uint64_t number, uint64_t count)
{
    verbs_endpoint_t *endpoint = context;
    uint32_t which = kind >> PATH_LINK_SHIFT;
    kind &= (1u << PATH_LINK_SHIFT) - 1;
    if (which >= (uint32_t)endpoint->links || kind < PATH_RESET || kind > PATH_LOST)
        return error_set(QUOIT_ERR_PROTOCOL, "a frame of unknown kind %u for the direct path %u", kind, which);
    verbs_link_t *link = &endpoint->link_of[which];
    verbs_direct_t *direct = &link->direct;
    if (kind == PATH_RESET) return peer_reset(link, epoch, number, count);
    if (kind == PATH_LOST) return peer_lost(link, epoch, count);
    if (kind == PATH_LAST && epoch == direct->epoch) end_taken(endpoint, &direct->posted, count);
    if (kind == PATH_READY && epoch == direct->epoch && direct->state == VERBS_PATH_READY) {
        direct->credits = direct->peer_recvs;
        direct->state = VERBS_PATH_UP;
    }
    return QUOIT_OK;
}
