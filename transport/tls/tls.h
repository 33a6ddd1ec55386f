/* SPDX-License-Identifier: Apache-2.0 */
/**
 * TLS 1.3 over a non-blocking socket, for transports between hosts; docs/tls.md says what it promises. A context is what the settings
 * QUOIT_TLS... say, read and checked once; a session is one connection. One thread at a time, as transports are called.
 *
 * Errors of a session are numbers: EAGAIN (see tls_session_wants_write), an errno of the socket, ENODATA for the end of the stream, and
 * EPROTO for what TLS itself complains of; then tls_session_cause says what, and the session is of no more use.
 * Nothing here puts a key into a text, and nothing is allocated once a session's handshake is done.
 */
#ifndef QUOIT_TRANSPORT_TLS_H
#define QUOIT_TRANSPORT_TLS_H

#include "base/status.h"
#include "quoit/quoit_transport.h"

#include <sys/uio.h>

typedef struct tls_context tls_context_t;
typedef struct tls_session tls_session_t;

/**
 * Read the settings TLS, TLS_KEY_FILE, TLS_CERTIFICATE, TLS_PRIVATE_KEY, TLS_CA, TLS_LIBRARY. `room` begins the texts ("tcp").
 * *context is NULL where TLS is off. ERR_INVALID for all that keeps the user from the TLS that was asked for.
 */
quoit_status_t tls_context_create(const quoit_transport_environment_t *environment, const char *room, tls_context_t **context);
void tls_context_destroy(tls_context_t *context); /* wipes the keys; its sessions are gone. NULL is accepted */
const char *tls_context_mode(const tls_context_t *context); /* "psk", "certificates" */

/** The descriptor stays the caller's and must outlive the session. NULL with a text. */
tls_session_t *tls_session_create(const tls_context_t *context, int fd, bool server);
void tls_session_destroy(tls_session_t *session); /* says nothing to the peer; NULL is accepted */
/** 0: it stands, and the peer has proved itself; EAGAIN; or why it never will. */
int tls_session_handshake(tls_session_t *session);
/** After EAGAIN of the handshake: it waits for room to write, else for something to read. */
bool tls_session_wants_write(const tls_session_t *session);

/** Take bytes to send: 0, with *accepted of them (some may be kept until a flush), or EAGAIN, or what broke. */
int tls_session_send(tls_session_t *session, const struct iovec *iov, int count, size_t *accepted);
/** Bytes were accepted that the socket has not taken. */
bool tls_session_is_staged(const tls_session_t *session);
/** 0: nothing is staged any more. */
int tls_session_flush(tls_session_t *session);
/**
 * 0: *got bytes came. *dry: all that has arrived was read, so the descriptor tells when there is more. While it is false more may lie
 * here, unseen by whoever polls the descriptor.
 */
int tls_session_receive(tls_session_t *session, const struct iovec *iov, int count, size_t *got, bool *dry);
/** Say that nothing more follows (close_notify), if that goes without waiting. */
void tls_session_close(tls_session_t *session);

/** EPROTO: what is wrong, to follow the peer's name and a colon. */
const char *tls_session_cause(const tls_session_t *session);
/** The first bytes were those of Quoit's handshake in plain text. */
bool tls_session_is_plain(const tls_session_t *session);
/** Bytes have come, and they began as TLS does. */
bool tls_session_is_begun(const tls_session_t *session);
bool tls_session_has_heard(const tls_session_t *session); /* any bytes */
bool tls_session_has_more(const tls_session_t *session);  /* bytes that came lie here, not received yet */
/** "TLSv1.3 TLS_AES_128_GCM_SHA256 (psk)" */
const char *tls_session_description(const tls_session_t *session);

#endif
