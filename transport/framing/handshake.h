/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Handshake: both ends of a fresh connection prove that they know the job's secret before anything else is read from it.
 *
 *   client  HELLO     magic, version, length; job, client's and server's process id, client's nonce, number and index of the pipe
 *   server  CHALLENGE server's nonce, HMAC(secret, "server" | both HELLO and CHALLENGE fields)
 *   client  PROOF     HMAC(secret, "client" | the same)
 *   server  WELCOME   or REFUSED with a reason (wrong secret, not this process, already connected, version)
 *
 * A state machine over bytes: no sockets in here, nothing blocks, one parser. The server waits in HANDSHAKE_WANTS_SECRET while it does
 * not know the job yet. A HELLO is at most 256 bytes; a connection that sends anything else is refused.
 */
#ifndef QUOIT_TRANSPORT_HANDSHAKE_H
#define QUOIT_TRANSPORT_HANDSHAKE_H

#include "quoit/quoit_transport.h"

enum { HANDSHAKE_CAPACITY = 256, HANDSHAKE_NONCE_SIZE = 16, HANDSHAKE_SECRET_CAPACITY = 64 };

typedef enum handshake_state {
    HANDSHAKE_RUNNING,
    HANDSHAKE_WANTS_SECRET, /* server: `job` is known, give the secret with handshake_secret (or let the deadline end it) */
    HANDSHAKE_WANTS_VERDICT,/* server: the client has proved itself: handshake_accept or handshake_refuse */
    HANDSHAKE_DONE,
    HANDSHAKE_FAILED
} handshake_state_t;

typedef enum handshake_reason {
    HANDSHAKE_REASON_NONE,
    HANDSHAKE_REASON_SECRET,   /* wrong secret */
    HANDSHAKE_REASON_PROCESS,  /* the address belongs to another process by now */
    HANDSHAKE_REASON_TIE,      /* both sides connected at once, and the other connection stays (the one that the lower id began) */
    HANDSHAKE_REASON_VERSION,
    HANDSHAKE_REASON_TLS,      /* one side speaks TLS, the other plain text; told in plain text */
    HANDSHAKE_REASON_OVER,     /* the job has ended on the other side, and will not come again */
    HANDSHAKE_REASON_END
} handshake_reason_t;

typedef struct handshake {
    bool server;
    handshake_state_t state;
    handshake_reason_t reason; /* FAILED: what the other side said, or what was found here */
    uint64_t job;
    quoit_process_id_t self, peer; /* server: peer is known from WANTS_SECRET on, proved from WANTS_VERDICT on */
    uint16_t pipes, pipe;          /* number of pipes of this connection, and which one this is */
    uint8_t client_nonce[HANDSHAKE_NONCE_SIZE], server_nonce[HANDSHAKE_NONCE_SIZE];
    uint8_t secret[HANDSHAKE_SECRET_CAPACITY];
    size_t secret_length;
    uint8_t in[HANDSHAKE_CAPACITY], out[HANDSHAKE_CAPACITY];
    size_t in_length, out_length, out_sent;
    int step;
} handshake_t;

/** The side that connects. ERR_INVALID when the secret is longer than HANDSHAKE_SECRET_CAPACITY. */
quoit_status_t handshake_connect(handshake_t *handshake, uint64_t job, quoit_process_id_t self, quoit_process_id_t peer,
                                 uint16_t pipes, uint16_t pipe, const void *secret, size_t secret_length);
quoit_status_t handshake_listen(handshake_t *handshake, quoit_process_id_t self);
quoit_status_t handshake_secret(handshake_t *handshake, const void *secret, size_t secret_length);
void handshake_accept(handshake_t *handshake);
void handshake_refuse(handshake_t *handshake, handshake_reason_t reason);

/** Part of a message has come, and it begins as one of ours. */
bool handshake_is_begun(const handshake_t *handshake);
/** Bytes the state machine still wants to read at this moment; never reads past the handshake's last byte. 0: none now. */
size_t handshake_wants(const handshake_t *handshake);
/** Received bytes, at most handshake_wants() of them. */
void handshake_received(handshake_t *handshake, const void *bytes, size_t length);
/** Bytes to send: *length of them; tell with handshake_sent how many went out. */
const void *handshake_output(const handshake_t *handshake, size_t *length);
void handshake_sent(handshake_t *handshake, size_t length);
const char *handshake_reason_text(handshake_reason_t reason);

#endif
