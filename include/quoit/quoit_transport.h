/* SPDX-License-Identifier: Apache-2.0 */
/**
 * ABI of a transport: how bytes get from one process to another. A transport is built in, or a shared object named in
 * QUOIT_TRANSPORT_PLUGIN that exports `const quoit_transport_ops_t *quoit_transport_plugin(void)`.
 *
 * A transport knows processes, never ranks or collectives. What it offers is told by flags:
 *   MESSAGE  send/recv by key, notify. Every transport that joins hosts has it.
 *   PUT      a recv's grant carries an address and a key, and send writes there (verbs, UCX); the caller sees no difference from
 *            MESSAGE: the grant is the transport's own business, which is why recv is told the buffer before bytes move.
 *   MAP      memory of the peer becomes a pointer here (shm, CUDA IPC): share_alloc, export_memory, attach, ring.
 *   DEVICE   messages can leave from and land in memory of a device (a GPU) that no processor touches: the calls device_...
 *
 * Who calls: one thread at a time (the engine's owner), so a transport needs no locks. Nothing blocks: what cannot be done now is
 * ERR_AGAIN or stays IN_PROGRESS, and `progress` carries it on. A transport never calls back: transfers change their status, and
 * events are pulled with next_event. Whatever returns an error has set its text before, through environment->error. No call may be NULL, but
 * for those of devices where their flag is not set: what a transport lacks is a function that answers ERR_UNSUPPORTED.
 *
 * Its life: probe, open, listen; for each job trust; for each peer connect, then send, recv and notify in any order, with progress and next_event
 * again and again; arm and disarm around each sleep; cancel when a communicator ends; disconnect, distrust; progress until idle; close.
 *
 * Flow. `recv` announces a buffer for one message of one key; `send` of at most the eager limit goes out at once while the credit
 * of that pair lasts; anything larger, or beyond the credit, moves only after the receiver's recv has been announced (the grant), but for a
 * bounded first part of it that stays in the sender's shared memory until then (shm).
 * So bytes nobody asked for are bounded, and a connection shared by many communicators is never filled by one of them.
 * Messages of one (endpoint, key) match in order; there is no order between keys.
 */
#ifndef QUOIT_TRANSPORT_H
#define QUOIT_TRANSPORT_H

#include "quoit/quoit.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUOIT_TRANSPORT_ABI 2

enum {
    QUOIT_ADDRESS_CAPACITY = 112, /* bytes: fits, with what else is needed, NCCL's 128-byte handle */
    QUOIT_HANDLE_CAPACITY = 80,
    QUOIT_NOTICE_SMALL = 128, /* bytes: notices up to this size are never refused for lack of credit */
    QUOIT_ROOT_SIZE = 65536   /* bytes at the start of a process's shared memory that belong to the caller, zero at first */
};

enum {
    QUOIT_TRANSPORT_MESSAGE = 1u << 0,
    QUOIT_TRANSPORT_PUT = 1u << 1,
    QUOIT_TRANSPORT_MAP = 1u << 2,
    QUOIT_TRANSPORT_SAME_HOST = 1u << 3, /* joins only processes of one host: used between those that share memory through a MAP transport */
    QUOIT_TRANSPORT_TLS = 1u << 4, /* does what QUOIT_TLS asks. One that leaves the host without it is refused where that is on */
    QUOIT_TRANSPORT_DEVICE = 1u << 5 /* has the calls device_...; without it they are not looked at, and struct_size may end before them */
};

/** A process (strictly: an engine): random, made when the engine is. */
typedef struct quoit_process_id {
    uint64_t high, low;
} quoit_process_id_t;

/** What a message is for: the communicator's id, and anything that is unique among the messages in flight between two processes. */
typedef struct quoit_key {
    uint64_t comm, id;
} quoit_key_t;

/** One message under way. The caller owns it and must not move or free it while status is IN_PROGRESS. */
typedef struct quoit_transfer {
    quoit_status_t status; /* IN_PROGRESS, QUOIT_OK, or an error; where the connection is to blame, endpoint_status sets the text */
    uint32_t what;         /* in: hash of the operation; a receive whose sender has another one ends in ERR_MISMATCH; 0 fits all */
    size_t length;         /* recv: bytes that came */
    uint64_t opaque[14];   /* the transport's own while IN_PROGRESS */
} quoit_transfer_t;

typedef struct quoit_transport quoit_transport_t; /* an opened transport */
typedef struct quoit_endpoint quoit_endpoint_t;   /* it and one peer process */

typedef enum quoit_event_type {
    QUOIT_EVENT_NOTICE, /* a peer called notify */
    QUOIT_EVENT_CLOSED, /* the endpoint is of no more use; all its transfers have ended. status OK: the peer said goodbye */
    QUOIT_EVENT_DIED    /* MAP transports: the peer's process is gone, known for certain */
} quoit_event_type_t;

typedef struct quoit_event {
    quoit_event_type_t type;
    quoit_process_id_t peer;
    quoit_endpoint_t *endpoint;
    quoit_status_t status; /* CLOSED: why */
    const char *text;      /* CLOSED, DIED: cause, with the peer's address; valid until the next next_event */
    const void *data;      /* NOTICE: valid until the next next_event */
    size_t length;
} quoit_event_t;

/**
 * A buffer in memory of a device: what device_take is told of it. No processor reads or writes there. All of it is good during the call
 * only.
 */
typedef struct quoit_device_memory {
    size_t struct_size;
    const char *kind;       /* of device, as device_reach was asked: "cuda". Equal addresses of two kinds, and of the host, are different memory */
    const void *pointer;    /* the buffer */
    size_t length;
    const void *block;      /* the allocation that it lies in */
    size_t block_length;
    uint64_t block_id;      /* of this allocation and of no other of the kind, ever: one that is made later at the same address has another */
    /**
     * A dma-buf of [pointer, pointer + length), which lies in the block: a descriptor, the caller's to close, and where in it `pointer`
     * is. What was registered by the descriptor stays good when it is closed. An error (text set): there is none.
     */
    quoit_status_t (*export_dmabuf)(const struct quoit_device_memory *memory, const void *pointer, size_t length, int *descriptor,
                                    uint64_t *offset);
    const void *context; /* for export_dmabuf */
} quoit_device_memory_t;

typedef struct quoit_region quoit_region_t; /* a transport's: device memory that it reaches, until it is given back */

/** What a transport is given when it is opened. The functions may be called at any time between open and the end of close. */
typedef struct quoit_transport_environment {
    size_t struct_size;
    quoit_process_id_t self;
    int doorbell; /* eventfd of this engine; a MAP transport passes it to its peers. Borrowed. */
    const char *host;
    /** Level 0 error .. 3 debug. */
    void (*log)(int level, const char *room, const char *text);
    /** Value of a setting as text ("TCP_SOCKETS"); NULL when there is none of that name. */
    const char *(*setting)(const char *name);
    /** Set the text of quoit_last_error for this thread. */
    void (*error)(const char *text);
} quoit_transport_environment_t;

/** A peer to connect to. */
typedef struct quoit_peer {
    quoit_process_id_t process;
    uint64_t job;        /* whose secret proves the connection: see trust */
    const void *address; /* what the peer's listen gave */
    size_t address_length;
    const char *name; /* for messages: "rank 3 (node7, pid 1234)"; copied */
    int timeout_ms;   /* for the connection to stand, tries included */
} quoit_peer_t;

typedef struct quoit_transport_ops {
    uint32_t abi;         /* QUOIT_TRANSPORT_ABI; another value is refused */
    uint32_t struct_size; /* sizeof this struct, as the transport knows it */
    const char *name;
    uint32_t flags;

    /** Is there anything to use here? No side effects. ERR_NOT_FOUND with why not ("no device under /sys/class/infiniband"). */
    quoit_status_t (*probe)(const quoit_transport_environment_t *environment, char *why, size_t capacity);
    quoit_status_t (*open)(const quoit_transport_environment_t *environment, quoit_transport_t **transport);
    /** Frees all; endpoints and shared memory too. Does not wait for peers: drain with `idle` before. NULL is accepted. */
    void (*close)(quoit_transport_t *transport);

    /* -- connections (never block) */
    /** Accept from now on; *length is the capacity on entry. `address` is what peers need for connect. */
    quoit_status_t (*listen)(quoit_transport_t *transport, void *address, size_t *length);
    /** Connections that name this job must prove that they know the secret. Those that come earlier are kept waiting for it. */
    quoit_status_t (*trust)(quoit_transport_t *transport, uint64_t job, const void *secret, size_t length);
    void (*distrust)(quoit_transport_t *transport, uint64_t job); /* new connections only */
    /** Endpoint for a process: the one that stands or is on its way (whoever began it), else a new one. Counted: see disconnect. */
    quoit_status_t (*connect)(quoit_transport_t *transport, const quoit_peer_t *peer, quoit_endpoint_t **endpoint);
    /** IN_PROGRESS, QUOIT_OK when it stands, or the error it ended with (text set for this thread). */
    quoit_status_t (*endpoint_status)(quoit_endpoint_t *endpoint);
    /** One connect less. At the last one the endpoint says goodbye after its last byte and is gone; its transfers must have ended. */
    void (*disconnect)(quoit_endpoint_t *endpoint);

    /* -- messages */
    /** May be called while the connection is on its way. Sets transfer->status; returns an error only for bad arguments. */
    quoit_status_t (*send)(quoit_endpoint_t *endpoint, quoit_key_t key, const void *buffer, size_t length,
                           quoit_transfer_t *transfer);
    quoit_status_t (*recv)(quoit_endpoint_t *endpoint, quoit_key_t key, void *buffer, size_t length, quoit_transfer_t *transfer);
    /** Forget a communicator: its transfers end in ERR_ABORTED and, once this returns, their buffers are not touched any more. */
    void (*cancel)(quoit_transport_t *transport, uint64_t comm);
    /** A datagram that the peer sees as a NOTICE, in order per endpoint; copied. At most the eager limit. ERR_AGAIN: no credit. */
    quoit_status_t (*notify)(quoit_endpoint_t *endpoint, const void *data, size_t length);
    bool (*next_event)(quoit_transport_t *transport, quoit_event_t *event);
    /** Move what can be moved; number of things done (0: nothing). Bounded work: some 128 KiB. */
    int (*progress)(quoit_transport_t *transport);
    /** True when nothing that peers need is left unsent. */
    bool (*idle)(quoit_transport_t *transport);

    /* -- sleeping */
    int (*descriptor)(quoit_transport_t *transport); /* becomes readable when progress has something to do; -1: none */
    /** About to sleep on descriptor and doorbell: QUOIT_OK, or ERR_AGAIN when there is something to do after all. */
    quoit_status_t (*arm)(quoit_transport_t *transport);
    void (*disarm)(quoit_transport_t *transport);

    /* -- memory: registration (PUT, DMA). Handles live in the transport; absent ones answer QUOIT_OK and do nothing. */
    quoit_status_t (*reg)(quoit_transport_t *transport, const void *pointer, size_t length);
    void (*dereg)(quoit_transport_t *transport, const void *pointer);

    /* -- memory: MAP (others answer ERR_UNSUPPORTED) */
    /** Memory that peers can attach; 64-byte aligned, zero. ERR_NO_MEMORY names the setting that bounds it. */
    quoit_status_t (*share_alloc)(quoit_transport_t *transport, size_t length, void **pointer);
    void (*share_free)(quoit_transport_t *transport, void *pointer);
    /** This process's root: QUOIT_ROOT_SIZE bytes that every peer finds with attach(handle = NULL). */
    quoit_status_t (*share_root)(quoit_transport_t *transport, void **pointer);
    quoit_status_t (*export_memory)(quoit_transport_t *transport, const void *pointer, size_t length, void *handle);
    /**
     * Pointer to a peer's memory, valid while the endpoint is. The handle comes from the peer and is checked against what it shares:
     * *length bytes (what export_memory was given; of the root QUOIT_ROOT_SIZE) can be read and written here, whatever the peer does. Whether
     * they suffice for what is expected there, and what is in them, is the caller's to check. A handle of 0 bytes is as good as any.
     */
    quoit_status_t (*attach)(quoit_endpoint_t *endpoint, const void *handle, void **pointer, size_t *length);
    /** Wake the peer if it sleeps (or is about to). Call after a release store into shared memory; costs one load if it is awake. */
    void (*ring)(quoit_endpoint_t *endpoint);

    /** Text for messages and describe: "tcp 10.0.0.7:41230 via eth0, 2 sockets". Valid until the endpoint is gone. */
    const char *(*describe)(quoit_endpoint_t *endpoint);
    /** Bytes sent and received through this endpoint so far, frames included. For tests and describe. */
    void (*count)(quoit_endpoint_t *endpoint, uint64_t *sent, uint64_t *received);

    /* -- memory of devices (flag DEVICE). Here ends the struct of transports that are older. */
    /** Can messages leave from and land in memory of this kind of device? Asked once a kind; ERR_UNSUPPORTED with why not. */
    quoit_status_t (*device_reach)(quoit_transport_t *transport, const char *kind);
    /** Reach a buffer, until it is given back. What has been registered may be kept and found again. An error (text set): copy it to the host. */
    quoit_status_t (*device_take)(quoit_transport_t *transport, const quoit_device_memory_t *memory, quoit_region_t **region);
    void (*device_give)(quoit_transport_t *transport, quoit_region_t *region); /* its transfers have ended */
    /** Memory of the kind was freed: nothing that is kept of [pointer, pointer + length) is of use any more. */
    void (*device_forget)(quoit_transport_t *transport, const char *kind, const void *pointer, size_t length);
    /**
     * As send and recv, with a buffer in the region; the peer cannot tell them from those. The device must have written what is sent, and be
     * done with what is received into. Where the bytes cannot be moved without a processor (the other side's memory could not be
     * registered; messages up to the eager limit) the transfer stops with status ERR_AGAIN, and device_host goes on with it.
     */
    quoit_status_t (*device_send)(quoit_endpoint_t *endpoint, quoit_key_t key, quoit_region_t *region, const void *buffer, size_t length,
                                  quoit_transfer_t *transfer);
    quoit_status_t (*device_recv)(quoit_endpoint_t *endpoint, quoit_key_t key, quoit_region_t *region, void *buffer, size_t length,
                                  quoit_transfer_t *transfer);
    /**
     * For a transfer that stopped with ERR_AGAIN: memory of the host, `length` bytes. A send goes on from there, IN_PROGRESS again, as if it
     * had been given to send: the caller has copied the bytes. A recv ends in QUOIT_OK with its bytes there: the caller copies them to the
     * device. A transfer that stopped and is cancelled, or whose endpoint ends, gets the status of that.
     */
    quoit_status_t (*device_host)(quoit_endpoint_t *endpoint, quoit_transfer_t *transfer, void *host);
} quoit_transport_ops_t;

/* Every transport's and endpoint's own struct begins with these, so that callers need no other table. */
struct quoit_transport {
    const quoit_transport_ops_t *ops;
};
struct quoit_endpoint {
    quoit_transport_t *transport;
    quoit_process_id_t peer;
    void *user; /* the caller's; NULL at first */
};

typedef const quoit_transport_ops_t *(*quoit_transport_plugin_t)(void);

#ifdef __cplusplus
}
#endif
#endif
