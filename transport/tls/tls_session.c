/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: one TLS connection. What is sent goes through a stage of one record's size: OpenSSL wants to see the same bytes again
 * after "would block", while the caller may have other ones to send by then.
 */
#include "transport/tls/tls_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- life */

tls_session_t *tls_session_create(const tls_context_t *context, int fd, bool server)
{
    const tls_library_t *library = context->library;
    tls_session_t *session = calloc(1, sizeof *session);
    if (session == NULL) goto no_memory;
    session->context = context;
    session->fd = fd;
    session->server = server;
    library->ERR_clear_error();
    session->ssl = library->SSL_new(context->ssl);
    if (session->ssl == NULL || library->SSL_set_ex_data(session->ssl, 0, session) != 1 || !tls_bio_attach(session)) goto free_session;
    if (server)
        library->SSL_set_accept_state(session->ssl);
    else
        library->SSL_set_connect_state(session->ssl);
    return session;

free_session:
    library->ERR_clear_error();
    tls_session_destroy(session);
no_memory:
    error_set(QUOIT_ERR_NO_MEMORY, "no memory for a TLS connection");
    return NULL;
}

void tls_session_destroy(tls_session_t *session)
{
    if (session == NULL) return;
    session->context->library->SSL_free(session->ssl); /* and its BIO */
    explicit_bzero(session, sizeof *session);
    free(session);
}

/* ---------------------------------------------------------------- what OpenSSL says */

/* After a call that did not succeed: EAGAIN, what the socket said, or EPROTO with its cause. */
static int outcome(tls_session_t *session)
{
    switch (session->context->library->SSL_get_error(session->ssl, 0)) {
    case SSL_ERROR_WANT_READ:
        session->wants_write = false;
        return session->read_error != 0 ? session->read_error : EAGAIN;
    case SSL_ERROR_WANT_WRITE:
        session->wants_write = true;
        return session->write_error != 0 ? session->write_error : EAGAIN;
    case SSL_ERROR_ZERO_RETURN: return ENODATA;
    default: break;
    }
    session->failed = true;
    tls_session_explain(session);
    return EPROTO;
}

static int fail(tls_session_t *session, const char *cause)
{
    session->failed = true;
    snprintf(session->cause, sizeof session->cause, "%s", cause);
    return EPROTO;
}

/* OpenSSL is content. Are we? */
static int check_peer(tls_session_t *session)
{
    const tls_library_t *library = session->context->library;
    if (library->SSL_version(session->ssl) != TLS1_3_VERSION) return fail(session, "TLS: did not settle on TLS 1.3");
    if (session->context->mode == TLS_PSK && library->SSL_session_reused(session->ssl) != 1)
        return fail(session, "TLS: did not use the pre-shared key");
    if (session->context->mode == TLS_CERTIFICATES && library->SSL_get_verify_result(session->ssl) != X509_V_OK)
        return fail(session, "TLS: its certificate was not verified");
    const SSL_CIPHER *cipher = library->SSL_get_current_cipher(session->ssl);
    const char *name = cipher != NULL ? library->SSL_CIPHER_get_name(cipher) : NULL;
    if (name == NULL) return fail(session, "TLS: did not settle on a cipher");
    snprintf(session->description, sizeof session->description, "%s %s (%s)", library->SSL_get_version(session->ssl), name,
             tls_context_mode(session->context));
    return 0;
}

int tls_session_handshake(tls_session_t *session)
{
    if (session->failed) return EPROTO;
    if (session->stands) return 0;
    session->context->library->ERR_clear_error();
    int error = session->context->library->SSL_do_handshake(session->ssl) == 1 ? check_peer(session) : outcome(session);
    session->stands = error == 0;
    return error;
}

bool tls_session_wants_write(const tls_session_t *session) { return session->wants_write; }

/* ---------------------------------------------------------------- sending */

static size_t fill_stage(tls_session_t *session, const struct iovec *iov, int count, int *next, size_t *done)
{
    while (*next < count && session->staged < TLS_STAGE_SIZE) {
        size_t left = iov[*next].iov_len - *done, room = TLS_STAGE_SIZE - session->staged, part = left < room ? left : room;
        memcpy(session->stage + session->staged, (const uint8_t *)iov[*next].iov_base + *done, part);
        session->staged += part;
        *done += part;
        if (part < left) break;
        (*next)++;
        *done = 0;
    }
    return session->staged;
}

/* The key of our direction is changed at the next record; the peer follows by itself. */
static int renew_key(tls_session_t *session)
{
    session->sent = 0;
    if (session->context->library->SSL_key_update(session->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1) return 0;
    session->failed = true;
    tls_session_explain(session);
    return EPROTO;
}

int tls_session_flush(tls_session_t *session)
{
    const tls_library_t *library = session->context->library;
    size_t written = 0;
    if (session->failed) return EPROTO;
    if (session->staged == 0) return 0;
    library->ERR_clear_error();
    if (library->SSL_write_ex(session->ssl, session->stage, session->staged, &written) != 1) {
        int error = outcome(session);
        /* It would have to read first: only after a request that no process of ours makes. */
        return error == EAGAIN && !session->wants_write ? fail(session, "TLS: asked for a change in mid-connection") : error;
    }
    session->staged = 0;
    session->sent += written;
    return session->sent >= session->context->renew_after ? renew_key(session) : 0;
}

int tls_session_send(tls_session_t *session, const struct iovec *iov, int count, size_t *accepted)
{
    size_t total = 0, done = 0;
    int next = 0, error = tls_session_flush(session);
    while (error == 0 && fill_stage(session, iov, count, &next, &done) > 0) {
        total += session->staged;
        error = tls_session_flush(session);
    }
    if (total == 0) return error;
    *accepted = total; /* an error is met again by the next flush */
    return 0;
}

bool tls_session_is_staged(const tls_session_t *session) { return session->staged > 0; }

void tls_session_close(tls_session_t *session)
{
    if (session->failed || !session->stands || session->staged > 0) return;
    session->context->library->ERR_clear_error();
    session->context->library->SSL_shutdown(session->ssl);
    session->context->library->ERR_clear_error();
}

/* ---------------------------------------------------------------- receiving */

int tls_session_receive(tls_session_t *session, const struct iovec *iov, int count, size_t *got, bool *dry)
{
    const tls_library_t *library = session->context->library;
    size_t total = 0;
    int error = session->failed ? EPROTO : 0;
    library->ERR_clear_error();
    for (int i = 0; i < count && error == 0; i++) {
        for (size_t at = 0; at < iov[i].iov_len && error == 0;) {
            size_t part = 0;
            if (library->SSL_read_ex(session->ssl, (uint8_t *)iov[i].iov_base + at, iov[i].iov_len - at, &part) != 1) {
                error = outcome(session);
                if (error == EAGAIN && session->wants_write) error = fail(session, "TLS: asked for a change in mid-connection");
            }
            at += part;
            total += part;
        }
    }
    *dry = error == EAGAIN;
    if (total == 0) return error;
    *got = total;
    return 0;
}

/* ---------------------------------------------------------------- what is known of it */

const char *tls_session_cause(const tls_session_t *session) { return session->cause; }

bool tls_session_is_plain(const tls_session_t *session)
{
    return session->heard >= sizeof session->first && memcmp(session->first, "QtHs", sizeof session->first) == 0;
}

/* A record of a handshake or an alert, of TLS 1.x. */
bool tls_session_is_begun(const tls_session_t *session)
{
    return session->heard >= 2 && (session->first[0] == 0x16 || session->first[0] == 0x15) && session->first[1] == 3;
}

bool tls_session_has_heard(const tls_session_t *session) { return session->heard > 0; }
bool tls_session_has_more(const tls_session_t *session) { return session->context->library->SSL_has_pending(session->ssl) == 1; }
const char *tls_session_description(const tls_session_t *session) { return session->description; }
