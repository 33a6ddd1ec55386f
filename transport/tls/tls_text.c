/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What went wrong with a session, for people: OpenSSL's reasons and the alerts of the other side, in words of Quoit's settings. A text
 * follows the peer's name and a colon. Nothing of keys, and nothing that the peer wrote, goes into it.
 */
#include "transport/tls/tls_internal.h"

#include <stdio.h>

/* The other side has ended the handshake with an alert. */
static const char *alert_text(const tls_session_t *session, int alert)
{
    bool psk = session->context->mode == TLS_PSK;
    switch (alert) {
    case SSL3_AD_ILLEGAL_PARAMETER:
    case TLS1_AD_DECRYPT_ERROR:
    case TLS1_AD_UNKNOWN_PSK_IDENTITY: return psk ? "does not accept our key: its QUOIT_TLS_KEY_FILE holds another one" : NULL;
    case SSL3_AD_HANDSHAKE_FAILURE:
        return psk ? "does not take our pre-shared key; is QUOIT_TLS set to something else there?"
                   : "finds nothing in common with us; is QUOIT_TLS set to something else there?";
    case SSL3_AD_BAD_CERTIFICATE:
    case SSL3_AD_UNSUPPORTED_CERTIFICATE: return "does not accept our certificate (QUOIT_TLS_CERTIFICATE): bad, or not made for this use";
    case SSL3_AD_CERTIFICATE_REVOKED: return "does not accept our certificate (QUOIT_TLS_CERTIFICATE): revoked";
    case SSL3_AD_CERTIFICATE_EXPIRED: return "does not accept our certificate (QUOIT_TLS_CERTIFICATE): it has expired, or is not valid yet";
    case TLS1_AD_UNKNOWN_CA:
        return psk ? "shows no pre-shared key and expects certificates; is QUOIT_TLS set to something else there?"
                   : "does not accept our certificate: it does not come from the CA that QUOIT_TLS_CA names there, or QUOIT_TLS is psk there";
    case TLS13_AD_CERTIFICATE_REQUIRED: return "wants a certificate of us; is QUOIT_TLS=certificates there?";
    case TLS1_AD_PROTOCOL_VERSION: return "does not speak TLS 1.3";
    default: return NULL;
    }
}

static const char *verify_text(const tls_session_t *session, char *buffer, size_t capacity)
{
    const tls_library_t *library = session->context->library;
    long result = library->SSL_get_verify_result(session->ssl);
    if (session->context->mode == TLS_PSK) return "shows a certificate instead of the pre-shared key; is QUOIT_TLS=certificates there?";
    switch (result) {
    case X509_V_ERR_CERT_HAS_EXPIRED: return "its certificate, or one above it, has expired";
    case X509_V_ERR_CERT_NOT_YET_VALID: return "its certificate, or one above it, is not valid yet; are the clocks right?";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE: return "its certificate does not come from the CA that QUOIT_TLS_CA names";
    case X509_V_ERR_INVALID_PURPOSE:
        return "its certificate is not made for this use: it needs serverAuth and clientAuth, or no extended key usage";
    default: break;
    }
    snprintf(buffer, capacity, "its certificate is not accepted: %s", library->X509_verify_cert_error_string(result));
    return buffer;
}

static const char *reason_text(const tls_session_t *session, int reason, char *buffer, size_t capacity)
{
    bool psk = session->context->mode == TLS_PSK;
    switch (reason) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED: return verify_text(session, buffer, capacity);
    case SSL_R_BINDER_DOES_NOT_VERIFY: return "its key is another: QUOIT_TLS_KEY_FILE must hold the same on all ranks";
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE: return "shows no certificate; is QUOIT_TLS=psk there?";
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_CERTIFICATE_SET:
    case SSL_R_NO_SHARED_CIPHER:
        return psk ? "offers no pre-shared key of Quoit; is QUOIT_TLS=certificates there?" : "offers nothing that our certificate fits";
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_WRONG_SSL_VERSION: return "does not speak TLS 1.3";
    default: return NULL;
    }
}

void tls_session_explain(tls_session_t *session)
{
    const tls_library_t *library = session->context->library;
    unsigned long error = library->ERR_peek_error();
    char buffer[128];
    const char *text = NULL, *own = library->ERR_reason_error_string(error);
    int reason = ERR_GET_REASON(error);
    bool of_ssl = ERR_GET_LIB(error) == ERR_LIB_SSL;
    if (tls_session_is_plain(session)) {
        text = "speaks plain text; QUOIT_TLS must be the same on both sides";
    } else if (!session->stands && tls_session_has_heard(session) && !tls_session_is_begun(session)) {
        text = "speaks no TLS; is another program there?";
    } else if (of_ssl && reason > SSL_AD_REASON_OFFSET && reason <= SSL_AD_REASON_OFFSET + 255) {
        text = alert_text(session, reason - SSL_AD_REASON_OFFSET);
        if (text == NULL) {
            snprintf(buffer, sizeof buffer, "ended it with \"%s\"", library->SSL_alert_desc_string_long(reason - SSL_AD_REASON_OFFSET));
            text = buffer;
        }
    } else if (session->stands) {
        text = "bytes were altered on their way";
    } else if (of_ssl) {
        text = reason_text(session, reason, buffer, sizeof buffer);
    }
    snprintf(session->cause, sizeof session->cause, "TLS: %s", text != NULL ? text : own != NULL ? own : "failed inside OpenSSL");
    library->ERR_clear_error();
}
