/* SPDX-License-Identifier: Apache-2.0 */
/** What the files of transport/tls share, and tests look into: see tls.h. */
#ifndef QUOIT_TRANSPORT_TLS_INTERNAL_H
#define QUOIT_TRANSPORT_TLS_INTERNAL_H

#include "transport/tls/tls.h"
#include "transport/tls/tls_library.h"

enum {
    TLS_KEY_LEAST = 32, TLS_KEY_CAPACITY = 64, /* bytes of a pre-shared key */
    TLS_STAGE_SIZE = 16384,                    /* what fits one record */
    TLS_CAUSE_CAPACITY = 192,
    TLS_FILE_CAPACITY = 64 << 10 /* bytes of a private key's file */
};

typedef enum tls_mode { TLS_OFF, TLS_PSK, TLS_CERTIFICATES, TLS_MODES } tls_mode_t;

struct tls_context {
    const tls_library_t *library;
    tls_mode_t mode;
    SSL_CTX *ssl;
    BIO_METHOD *method;
    uint8_t key[TLS_KEY_CAPACITY]; /* PSK; wiped by destroy */
    size_t key_length;
    uint64_t renew_after; /* bytes sent with one key */
};

struct tls_session {
    const tls_context_t *context;
    SSL *ssl;
    int fd;
    bool server, stands, failed, wants_write;
    int read_error, write_error; /* what the socket said; never told to OpenSSL, so that the other direction goes on */
    uint8_t first[4];
    uint64_t heard; /* bytes */
    uint64_t sent;  /* bytes since the key was changed */
    size_t staged;
    char cause[TLS_CAUSE_CAPACITY], description[96];
    uint8_t stage[TLS_STAGE_SIZE];
};

/* ---- tls_context.c */
extern const unsigned char tls_psk_cipher[2]; /* whose hash the key is for: TLS_AES_128_GCM_SHA256 */
#define TLS_PSK_IDENTITY "quoit psk 1"

/* ---- tls_bio.c */
/** The method of our BIOs, which read and write a session's descriptor. NULL: no memory. */
BIO_METHOD *tls_bio_method(const tls_library_t *library);
/** Give the session's SSL its BIO. False: no memory. */
bool tls_bio_attach(tls_session_t *session);

/* ---- tls_text.c */
/** Write session->cause from what OpenSSL has queued for this thread, which is emptied. */
void tls_session_explain(tls_session_t *session);

#endif
