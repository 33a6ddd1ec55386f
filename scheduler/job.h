/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Job: the processes that were created together in one store. Its roster (who, which host, which secret, which tuning) is fixed
 * once, at bootstrap; every communicator made from it later needs no store.
 */
#ifndef QUOIT_SCHEDULER_JOB_H
#define QUOIT_SCHEDULER_JOB_H

#include "scheduler/engine.h"
#include "scheduler/plan.h"

enum { JOB_SECRET_SIZE = 32, JOB_HOST_CAPACITY = 64 };

typedef struct job_address {
    char transport[16];
    bool optional;   /* joins hosts, and this rank can do without it */
    uint16_t length;
    uint8_t address[QUOIT_ADDRESS_CAPACITY];
} job_address_t;

enum { JOB_ADDRESS_CAPACITY = 8, JOB_LACK_CAPACITY = 2 };

/** A transport that was wanted and that this process goes on without. */
typedef struct job_lack {
    char transport[16];
    char why[160];
} job_lack_t;

/** What a rank says of itself. */
typedef struct job_record {
    quoit_process_id_t process; /* of its engine */
    uint64_t nonce;             /* of this attempt to create the job */
    uint64_t kernel;            /* hash of the boot id: ranks with different ones are not even tried as host mates */
    uint64_t label;             /* hash of setting HOST_LABEL */
    int32_t rank, size, pid;
    uint8_t tls;                /* setting TLS: told to compare it, never to follow it */
    uint32_t user;              /* effective: processes of different users share no memory */
    machine_t machine;
    char host[JOB_HOST_CAPACITY];
    char version[32]; /* of the library, and what its processes must have alike beside that: see bootstrap.c */
    int addresses;
    job_address_t address[JOB_ADDRESS_CAPACITY]; /* most wanted first */
    int lacks;
    job_lack_t lack[JOB_LACK_CAPACITY];
} job_record_t;

/** A pair that cannot use a transport although both have it, and so cannot any of their two hosts: tried at bootstrap (bootstrap_paths.c), and the same on all ranks. */
typedef struct job_ban {
    int one, other; /* one < other */
    char transport[16];
    char why[160];
} job_ban_t;

typedef struct job {
    engine_t *engine;
    int users;           /* communicators */
    uint64_t id;         /* incarnation */
    uint8_t secret[JOB_SECRET_SIZE];
    int size, rank;
    tuning_t tuning;
    int *host;           /* [size] */
    job_record_t *record; /* [size] */
    peer_t **peer;       /* [size] */
    job_ban_t *ban;      /* owned, [bans] */
    int bans;
    bool is_marked;      /* bootstrap_hosts.c has left a mark in the own directory, at */
    int mark;
    table_t *groups;     /* how often a group of a name was created: see comm_create.c */
} job_t;

/** Bootstrap: meet in the store. Blocks within the deadline. Called without owning the engine; enters it as needed. */
quoit_status_t job_create(engine_t *engine, quoit_store_t *store, int rank, int size, uint64_t deadline, job_t **job);
/** A rank that could not even make an engine: tell the others through the store. Returns `status`, with this rank named in the text. */
quoit_status_t job_cannot_begin(quoit_store_t *store, int rank, int size, uint64_t deadline, quoit_status_t status);
/** One user less; the owner of the engine calls. */
void job_release(job_t *job);

/** The endpoint for messages to a rank, begun when there is none yet. */
quoit_status_t job_endpoint(job_t *job, int rank, quoit_endpoint_t **endpoint);
/** The same, with a limit of its own for the connection to stand. */
quoit_status_t job_endpoint_within(job_t *job, int rank, int timeout_ms, quoit_endpoint_t **endpoint);

/** The ban between the hosts of two ranks; `transport` NULL: of any. NULL: there is none. */
const job_ban_t *job_ban(const job_t *job, int a, int b, const char *transport);
/**
 * The transport over which two ranks exchange messages; NULL when they have none in common. A function of what all ranks know alike, and the
 * same for (a, b) as for (b, a): the first of the lower rank's that the other has, too, and that was not found not to work between them.
 * `mates`: they share memory.
 */
const job_address_t *job_transport(const job_t *job, int a, int b, bool mates);
/** The one that would be next, were `address` of the lower rank's not to be had. */
const job_address_t *job_transport_after(const job_t *job, int a, int b, bool mates, const job_address_t *address);
/**
 * What this process exchanges messages with a rank over, as text, and why not over what one of the two would have preferred:
 * "tcp (rank 3 has no verbs: there is no RDMA device)". Returns `text`.
 */
const char *job_explain_transport(const job_t *job, int rank, char *text, size_t capacity);

/** Who shares hosts with whom among `size` ranks of the job, [size] of `job_rank` (NULL: all of them), and who leads there. */
quoit_status_t job_topology(const job_t *job, const int *job_rank, int size, topology_t **topology);

/* Wire form of a record, apart from stores, for tests and fuzzers. */
size_t job_record_encode(const job_record_t *record, uint8_t *bytes, size_t capacity);
/** *used: how many bytes the record took. ERR_PROTOCOL for anything that is none. */
quoit_status_t job_record_decode(const uint8_t *bytes, size_t length, size_t *used, job_record_t *record);

#endif
