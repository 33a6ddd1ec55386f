/* SPDX-License-Identifier: Apache-2.0 */
/* In place of TLS where OpenSSL's headers were missing when the library was built: asking for it is an error that says so. */
#include "transport/tls/tls.h"

#include <errno.h>
#include <string.h>

quoit_status_t tls_context_create(const quoit_transport_environment_t *environment, const char *room, tls_context_t **context)
{
    const char *mode = environment->setting("TLS");
    if (mode != NULL && mode[0] != 0 && strcmp(mode, "off") != 0)
        return error_set(QUOIT_ERR_INVALID,
                         "%s: QUOIT_TLS=%s, but TLS is not built in: this library was built without OpenSSL's headers (openssl/ssl.h of version 3, "
                         "Debian's libssl-dev)",
                         room, mode);
    *context = NULL;
    return QUOIT_OK;
}

/* The rest is never called: there is no context. */
void tls_context_destroy(tls_context_t *context) { (void)context; }
const char *tls_context_mode(const tls_context_t *context) { return (void)context, "off"; }
tls_session_t *tls_session_create(const tls_context_t *context, int fd, bool server) { return (void)context, (void)fd, (void)server, NULL; }
void tls_session_destroy(tls_session_t *session) { (void)session; }
int tls_session_handshake(tls_session_t *session) { return (void)session, EPROTO; }
bool tls_session_wants_write(const tls_session_t *session) { return (void)session, false; }
bool tls_session_is_staged(const tls_session_t *session) { return (void)session, false; }
int tls_session_flush(tls_session_t *session) { return (void)session, EPROTO; }
void tls_session_close(tls_session_t *session) { (void)session; }
const char *tls_session_cause(const tls_session_t *session) { return (void)session, ""; }
bool tls_session_is_plain(const tls_session_t *session) { return (void)session, false; }
bool tls_session_is_begun(const tls_session_t *session) { return (void)session, false; }
bool tls_session_has_heard(const tls_session_t *session) { return (void)session, false; }
bool tls_session_has_more(const tls_session_t *session) { return (void)session, false; }
const char *tls_session_description(const tls_session_t *session) { return (void)session, ""; }

int tls_session_send(tls_session_t *session, const struct iovec *iov, int count, size_t *accepted)
{
    return (void)session, (void)iov, (void)count, (void)accepted, EPROTO;
}

int tls_session_receive(tls_session_t *session, const struct iovec *iov, int count, size_t *got, bool *dry)
{
    return (void)session, (void)iov, (void)count, (void)got, (void)dry, EPROTO;
}
