/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails: several ports of this host, each with a link to the peer's port in the same place of its list.
 *
 * Pieces of messages go to the links in proportion to their rates: who would be the first to have delivered the next, had all of them kept to
 * their rates since the beginning, takes it. A link has a few under way at a time, so one that is slower than its rate says gets what
 * it can carry, and one that falls silent no more. All else, and messages whose memory cannot be registered, are shared out by
 * framing/channel_rails.c.
 *
 * A link is left when its device fails, its port goes down, or a queue pair of its has failed: by progress, which stops the direct path
 * (verbs_reset.c), tells the channel, and buries the queue pairs. The channel's word of it makes the other side leave it, too. The
 * last one that is left is the end of the connection. Nothing comes back: a later connection tries all rails anew.
 */
#include "transport/verbs/verbs.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>

enum { FLYING_MOST = 24 };

/* The cause without what the reader knows already: "verbs: rank 3 (node7, pid 1): ", or with the description behind the name. */
static const char *without_name(const verbs_endpoint_t *endpoint, const char *text)
{
    const char *at = text;
    size_t name = strlen(endpoint->base.name), description = strlen(endpoint->base.description);
    if (strncmp(at, "verbs: ", 7) == 0) at += 7;
    if (strncmp(at, endpoint->base.name, name) != 0) return at;
    const char *rest = at + name;
    if (rest[0] == ' ' && rest[1] == '(' && strncmp(rest + 2, endpoint->base.description, description) == 0 && rest[2 + description] == ')') rest += description + 3;
    return strncmp(rest, ": ", 2) == 0 ? rest + 2 : at;
}

static void mark(verbs_link_t *link, quoit_status_t status, const char *cause)
{
    if (link->broken != QUOIT_OK) return;
    link->broken = status;
    snprintf(link->cause, sizeof link->cause, "%s", cause);
}

void verbs_link_break(verbs_link_t *link, quoit_status_t status)
{
    verbs_endpoint_t *endpoint = link->endpoint;
    if (endpoint->links == 1) {
        verbs_endpoint_break(endpoint, status);
        return;
    }
    verbs_endpoint_wake(endpoint);
    mark(link, status, without_name(endpoint, error_text()));
}

static void leave(verbs_link_t *link)
{
    verbs_path_leave(link);
    link->left = true;
    error_set(link->broken, "%s", link->cause);
    channel_lose(link->endpoint->base.channel, link->number, link->broken);
    verbs_queues_bury(link);
}

/* Once for a link; as a warning once for a rail, for a cable takes many connections with it. */
static void tell(verbs_link_t *link)
{
    log_write(link->rail->told ? LOG_INFO : LOG_WARN, "verbs", "rail %s of %s is left: %s; the others carry its part", link->route,
              link->endpoint->base.name, link->cause);
    link->told = link->rail->told = true;
}

int verbs_rails_look(verbs_endpoint_t *endpoint)
{
    int done = 0;
    for (int i = 0; i < endpoint->links; i++) {
        verbs_link_t *link = &endpoint->link_of[i];
        const char *cause = "";
        channel_pipe_state_t state = channel_pipe_state(endpoint->base.channel, i, &cause);
        if (state != CHANNEL_PIPE_GOOD) mark(link, QUOIT_ERR_NETWORK, cause);
        if (link->broken != QUOIT_OK && !link->left) {
            leave(link);
            done++;
        }
        /* When the peer's process has died all rails end, one after the other: only its answer tells that it was the rail. */
        if (state == CHANNEL_PIPE_LOST && !link->told && channel_status(endpoint->base.channel) == QUOIT_OK) tell(link);
    }
    return done;
}

static uint64_t cost(const verbs_link_t *link, uint64_t bytes) { return (bytes << 16) / link->weight; }

static bool takes_more(const verbs_link_t *link)
{
    const verbs_direct_t *direct = &link->direct;
    return verbs_link_carries(link) && direct->flying < FLYING_MOST && direct->credits > 0 && list_is_empty(&direct->waiting);
}

bool verbs_rails_is_next(const verbs_link_t *link, uint64_t bytes)
{
    const verbs_endpoint_t *endpoint = link->endpoint;
    if (!takes_more(link)) return false;
    uint64_t mine = link->turn + cost(link, bytes);
    for (int i = 0; i < endpoint->links; i++) {
        const verbs_link_t *other = &endpoint->link_of[i];
        if (other == link || !takes_more(other)) continue;
        uint64_t others = other->turn + cost(other, bytes);
        if (mine > others || (mine == others && i < link->number)) return false;
    }
    return true;
}

/* One that takes no more keeps no claim to what it missed. */
void verbs_rails_took(verbs_link_t *link, uint64_t bytes)
{
    const verbs_endpoint_t *endpoint = link->endpoint;
    for (int i = 0; i < endpoint->links; i++) {
        verbs_link_t *other = &endpoint->link_of[i];
        if (other != link && other->turn < link->turn && !takes_more(other)) other->turn = link->turn;
    }
    link->turn += cost(link, bytes);
}

void verbs_rails_describe(verbs_endpoint_t *endpoint)
{
    size_t used, capacity = sizeof endpoint->base.description;
    for (int i = 0; i < endpoint->links; i++) {
        verbs_link_t *link = &endpoint->link_of[i];
        const verbs_candidate_t *port = &link->rail->chosen;
        char own[VERBS_GID_TEXT], theirs[VERBS_GID_TEXT], name[VERBS_PORT_TEXT];
        union ibv_gid gid;
        memcpy(gid.raw, link->peer.gid, sizeof gid.raw);
        snprintf(link->route, sizeof link->route, "%s, %s %s -> %s", verbs_port_text(port, name), verbs_gid_type_name(port->type),
                 verbs_gid_text(&port->gid, own), verbs_gid_text(&gid, theirs));
    }
    const verbs_link_t *only = &endpoint->link_of[0];
    if (endpoint->links == 1) {
        snprintf(endpoint->base.description, capacity, "verbs %s, queue pairs %u and %u", only->route, only->stream.qp->qp_num, only->direct.qp->qp_num);
        return;
    }
    used = (size_t)snprintf(endpoint->base.description, capacity, "verbs, %d rails", endpoint->links);
    for (int i = 0; i < endpoint->links && used < capacity; i++)
        used += (size_t)snprintf(endpoint->base.description + used, capacity - used, "%s %s, %u Mb/s", i > 0 ? ";" : ":", endpoint->link_of[i].route,
                                 endpoint->link_of[i].weight);
}
