/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The life of an endpoint that talks through a channel, told once for tcp, ucx and verbs. A transport embeds endpoints_t as its first
 * member and endpoint_t as that of its endpoints, and brings what differs (endpoint_ops_t): how a connection is made, and how it is taken down.
 *
 *   endpoint_create: a connect, or    endpoint_stand                  endpoint_part: the
 *   a peer's call  ----->  COMING  --------------------->  STANDING  --------------------->  PARTED
 *                             |                              |   |     peer's goodbye          |  its last message was received
 *                             |  endpoint_end: deadline,     |   |  endpoint_end: something    |
 *                             |  nobody is there             |   |  broke                      v
 *                             '------------------------------|---'-------------------------> ENDED, told by one event
 *                                                            |                                 ^
 *                                                            |  endpoint_leave: the last       |
 *                                                            v  disconnect here                |
 *                                                         LEAVING -----------------------------'
 *                                                                  endpoint_left: the rest and the goodbye are out
 *
 * PARTED: nothing more can come or go, but messages that came before wait to be received. An endpoint that is disconnected while COMING, with
 * something unsent, leaves once it stands; without, it is freed at once.
 *
 * The transport's table finds an endpoint of a process while it is COMING or STANDING; who connects after that gets another. It is
 * freed by endpoint_reap, when nobody has it (count) and it is ENDED and that was told, or is not wanted.
 */
#ifndef QUOIT_TRANSPORT_FRAMING_ENDPOINT_H
#define QUOIT_TRANSPORT_FRAMING_ENDPOINT_H

#include "base/list.h"
#include "base/table.h"
#include "quoit/quoit_transport.h"
#include "transport/framing/channel.h"
#include "transport/framing/secrets.h"

enum { ENDPOINT_TEXT_CAPACITY = 256, ENDPOINT_DESCRIPTION_CAPACITY = 640 };

typedef enum endpoint_life { ENDPOINT_COMING, ENDPOINT_STANDING, ENDPOINT_PARTED, ENDPOINT_LEAVING, ENDPOINT_ENDED } endpoint_life_t;

typedef struct endpoint endpoint_t;

/** What differs. None of them may free the endpoint. */
typedef struct endpoint_ops {
    const char *name;                  /* the transport's, in texts */
    void (*touch)(endpoint_t *);       /* its channel may have something to write */
    void (*leaving)(endpoint_t *);     /* before the channel's goodbye is queued */
    void (*parted)(endpoint_t *);      /* the peer has said goodbye: what the connection was made of goes, as far as it is not needed for an answer */
    void (*released)(endpoint_t *);    /* all of it goes, calls on their way, too; from now on nobody reads or writes the memory of transfers. May come again */
    void (*forgotten)(endpoint_t *);   /* new connections with its peer get another endpoint */
    void (*freed)(endpoint_t *);       /* what it owns besides; the channel is gone already */
} endpoint_ops_t;

void endpoint_nothing(endpoint_t *endpoint); /* for calls that have nothing to do */

typedef struct endpoints {
    quoit_transport_t handle; /* what callers hold */
    const endpoint_ops_t *ops;
    quoit_process_id_t self;
    table_t *peers;     /* owned; process -> the endpoint that is COMING or STANDING */
    list_t all, eventful;
    unsigned coming;    /* endpoints that are COMING */
    endpoint_t *last;   /* whose event was handed out last; may go at the next call */
} endpoints_t;

struct endpoint {
    quoit_endpoint_t handle; /* what callers hold */
    endpoints_t *home;
    list_t node, eventful; /* home->all; home->eventful: something to tell */
    endpoint_life_t life;
    int count;             /* connects less disconnects; 0: the peer began, nobody asked yet */
    bool told;             /* the CLOSED event was handed out, or is not wanted */
    bool left_early;       /* disconnected while COMING, with something unsent */
    quoit_status_t status; /* ENDED: why; OK: a goodbye */
    char text[ERROR_TEXT_CAPACITY];
    char name[ENDPOINT_TEXT_CAPACITY], description[ENDPOINT_DESCRIPTION_CAPACITY];
    channel_t *channel;    /* owned; NULL until the limits are known */
};

quoit_status_t endpoints_open(endpoints_t *home, const quoit_transport_ops_t *table, const endpoint_ops_t *ops, quoit_process_id_t self);
/** Frees all endpoints, wherever they are in their lives. One that was never opened is accepted. */
void endpoints_close(endpoints_t *home);
/** COMING or STANDING; NULL: none. */
endpoint_t *endpoint_find(const endpoints_t *home, quoit_process_id_t peer);

/** Begins its life: `endpoint` is all zero but for what the transport has set, and whoever called frees it on failure. */
quoit_status_t endpoint_create(endpoint_t *endpoint, endpoints_t *home, quoit_process_id_t peer, const char *name);
/** May this process connect to the peer: is it another one, and of a job whose secret is known? */
quoit_status_t endpoint_check_peer(const endpoints_t *home, const secrets_t *jobs, const quoit_peer_t *peer);
/** One more connect for one that is there. */
void endpoint_join(endpoint_t *endpoint, const quoit_peer_t *peer, quoit_endpoint_t **result);
/** The channel is open. Leaves at once if it was left early. */
void endpoint_stand(endpoint_t *endpoint);
void endpoint_leave(endpoint_t *endpoint);
/** LEAVING is over. The endpoint may be gone afterwards. */
void endpoint_left(endpoint_t *endpoint);
void endpoint_part(endpoint_t *endpoint);
/** PARTED, and the last message was taken: then it ends. */
void endpoint_check_parted(endpoint_t *endpoint);
/** It ends with this thread's error text (status OK: goodbye of the peer). */
void endpoint_end(endpoint_t *endpoint, quoit_status_t status);
void endpoint_eventful(endpoint_t *endpoint); /* something to tell */
void endpoint_reap(endpoint_t *endpoint);     /* free it if nobody needs it any more */
void endpoint_destroy(endpoint_t *endpoint);  /* NULL is accepted */

/* Calls of the transport's table. */
quoit_status_t endpoint_status(quoit_endpoint_t *handle);
quoit_status_t endpoint_send(quoit_endpoint_t *handle, quoit_key_t key, const void *buffer, size_t length, quoit_transfer_t *transfer);
quoit_status_t endpoint_recv(quoit_endpoint_t *handle, quoit_key_t key, void *buffer, size_t length, quoit_transfer_t *transfer);
quoit_status_t endpoint_notify(quoit_endpoint_t *handle, const void *data, size_t length);
void endpoint_disconnect(quoit_endpoint_t *handle);
void endpoints_cancel(quoit_transport_t *handle, uint64_t comm);
bool endpoints_next_event(quoit_transport_t *handle, quoit_event_t *event);
const char *endpoint_describe(quoit_endpoint_t *handle);
void endpoint_count(quoit_endpoint_t *handle, uint64_t *sent, uint64_t *received);

#endif
