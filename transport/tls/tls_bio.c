/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What OpenSSL reads and writes through: the session's socket, without SIGPIPE. An end or a failure of the socket is kept in the session
 * and looks like "not yet" to OpenSSL: its state stays whole, and after a failed write what the peer said before it left can still be read.
 */
#include "transport/tls/tls_internal.h"

#include <errno.h>
#include <sys/socket.h>

static void retry(const tls_session_t *session, BIO *bio, int direction)
{
    session->context->library->BIO_set_flags(bio, direction | BIO_FLAGS_SHOULD_RETRY);
}

static tls_session_t *session_of(BIO *bio) { return tls_library_get()->BIO_get_data(bio); }

static int bio_write(BIO *bio, const char *bytes, size_t length, size_t *written)
{
    tls_session_t *session = session_of(bio);
    ssize_t sent = -1;
    session->context->library->BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    while (session->write_error == 0 && sent < 0) {
        sent = send(session->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0 || errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) break;
        session->write_error = errno;
    }
    if (sent < 0) {
        retry(session, bio, BIO_FLAGS_WRITE);
        return 0;
    }
    *written = (size_t)sent;
    return 1;
}

static void keep_first(tls_session_t *session, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length && session->heard + i < sizeof session->first; i++)
        session->first[session->heard + i] = (uint8_t)bytes[i];
    session->heard += length;
}

static int bio_read(BIO *bio, char *bytes, size_t length, size_t *got)
{
    tls_session_t *session = session_of(bio);
    ssize_t received = -1;
    session->context->library->BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
    while (session->read_error == 0 && received < 0) {
        received = recv(session->fd, bytes, length, MSG_DONTWAIT);
        if (received == 0) session->read_error = ENODATA;
        if (received >= 0 || errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) break;
        session->read_error = errno;
    }
    if (received <= 0) {
        retry(session, bio, BIO_FLAGS_READ);
        return 0;
    }
    keep_first(session, bytes, (size_t)received);
    *got = (size_t)received;
    return 1;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH; /* nothing is kept here */
}

BIO_METHOD *tls_bio_method(const tls_library_t *library)
{
    BIO_METHOD *method = library->BIO_meth_new(BIO_TYPE_SOURCE_SINK, "quoit socket");
    if (method == NULL) return NULL;
    if (library->BIO_meth_set_write_ex(method, bio_write) == 1 && library->BIO_meth_set_read_ex(method, bio_read) == 1 &&
        library->BIO_meth_set_ctrl(method, bio_control) == 1)
        return method;
    library->BIO_meth_free(method);
    return NULL;
}

bool tls_bio_attach(tls_session_t *session)
{
    const tls_library_t *library = session->context->library;
    BIO *bio = library->BIO_new(session->context->method);
    if (bio == NULL) return false;
    library->BIO_set_data(bio, session);
    library->BIO_set_init(bio, 1);
    library->SSL_set_bio(session->ssl, bio, bio);
    return true;
}
