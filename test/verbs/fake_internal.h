/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the fake libibverbs: its objects. One lock for everything of the process. */
#ifndef QUOIT_TEST_FAKE_INTERNAL_H
#define QUOIT_TEST_FAKE_INTERNAL_H

#include "base/clock.h"
#include "base/list.h"
#include "fake_verbs.h"

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { FAKE_INLINE = 256, FAKE_PAYLOAD = 32 << 10, FAKE_TIMEOUT_MS = 200, FAKE_RNR_MS = 1, FAKE_HOLD_MS = 120000 };

typedef struct fake_device {
    struct ibv_device base;
    unsigned char width, speed; /* of its port */
    bool cut;                   /* no packet leaves or comes in */
    atomic_bool removed;
    const char *harm;           /* what befalls it when so many packets more have gone; NULL: nothing */
    unsigned harm_after;
    unsigned long bytes;        /* of sends and writes that went out and were answered */
} fake_device_t;

typedef struct fake_context {
    struct ibv_context base;
    list_t link;
    enum ibv_event_type event; /* to be told next */
    unsigned events;           /* how often */
} fake_context_t;

typedef struct fake_mr {
    struct ibv_mr base; /* addr: as the device is told it */
    list_t link;
    int access;
    unsigned char *bytes; /* where they lie in this process: at addr, or where a dma-buf is mapped */
    void *mapped;         /* owned: of a dma-buf */
    size_t mapped_length;
} fake_mr_t;

typedef struct fake_channel {
    struct ibv_comp_channel base;
    list_t cqs; /* those with an event that nobody has got */
} fake_channel_t;

typedef struct fake_cq {
    struct ibv_cq base;
    list_t waiting; /* in channel->cqs */
    fake_channel_t *channel;
    struct ibv_wc *entries; /* owned */
    unsigned first, count, capacity;
    bool armed;
    unsigned got, acknowledged; /* events */
} fake_cq_t;

typedef struct fake_work {
    uint64_t id;
    enum ibv_wr_opcode opcode;
    bool signalled;
    uint64_t address;    /* the caller's, as the device is told it; 0: `copy` */
    uint32_t length, key, immediate;
    uint64_t remote;
    uint32_t remote_key;
    unsigned char copy[FAKE_INLINE];
} fake_work_t;

typedef struct fake_recv {
    uint64_t id;
    unsigned char *data;
    uint32_t length;
} fake_recv_t;

typedef struct fake_answer {
    bool wanted;
    uint8_t status; /* enum ibv_wc_status of the requester; IBV_WC_RNR_RETRY_EXC_ERR: not ready, try again */
    uint32_t psn;
} fake_answer_t;

typedef struct fake_qp {
    struct ibv_qp base;
    list_t link;
    struct ibv_qp_cap cap;
    enum ibv_qp_state state;
    uint32_t peer_qpn, peer_address;
    unsigned retries, rnr_retries;
    /* requester: one message under way */
    fake_work_t *sends; /* owned, cap.max_send_wr */
    unsigned send_first, send_count;
    uint32_t psn, offset;
    bool started, waits; /* the head was begun; it is out, and its answer is awaited */
    uint64_t resend_at;
    unsigned tries_left, rnr_left;
    /* responder */
    fake_recv_t *recvs; /* owned, cap.max_recv_wr */
    unsigned recv_first, recv_count;
    uint32_t expected, received;
    fake_answer_t answer;
} fake_qp_t;

typedef struct fake_state {
    pthread_mutex_t lock;
    list_t contexts, mrs, qps;
    uint32_t next_key, next_qpn;
    unsigned pds;
    atomic_uint delay;
    bool cut;
    atomic_bool removed, destroys_wait, no_dmabuf;
    unsigned full; /* posts to be refused */
    unsigned long locked, lock_limit; /* bytes that are registered, and may be */
    struct {
        char name[32];
        unsigned n, error;
    } failing;
    struct {
        enum ibv_wr_opcode first, second;
        unsigned n, status;
    } failing_work;
} fake_state_t;

extern fake_state_t fake;

/** Count a call; true when it is to fail (errno is set). */
bool fake_call_fails(const char *name);
void fake_count(const char *name, long change);
bool fake_needs_device(const char *name); /* the call fails when its device was taken out */

/* fake_devices.c; the lock is held but for the first */
bool fake_device_call_fails(const char *name, const struct ibv_context *context);
fake_device_t *fake_device_of(const fake_qp_t *qp);
void fake_device_packet(fake_device_t *device); /* one is about to go: an order may come due */
void fake_devices_calm(void);

int fake_post_send(struct ibv_qp *base, struct ibv_send_wr *work, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *base, struct ibv_recv_wr *work, struct ibv_recv_wr **bad);
int fake_poll_cq(struct ibv_cq *base, int count, struct ibv_wc *completions);
int fake_req_notify_cq(struct ibv_cq *base, int solicited);

/* objects; the lock is held */
fake_mr_t *fake_mr_find(uint32_t key);
/** Where the bytes lie; NULL: they are not all covered. */
unsigned char *fake_mr_place(const fake_mr_t *mr, uint64_t address, uint32_t length);
void fake_cq_push(struct ibv_cq *cq, const struct ibv_wc *completion);
/** The queue pair fails: all its work ends in WR_FLUSH_ERR. */
void fake_qp_fail(fake_qp_t *qp);

/* fake_network.c */
uint32_t fake_network_address(void); /* of this process: 24 bits */
int fake_network_start(void);        /* 0 or errno; the lock is not held */
void fake_network_stop(void);
void fake_network_serve(fake_qp_t *qp); /* send what can be sent; the lock is held */
void fake_network_wake(void);

#endif
