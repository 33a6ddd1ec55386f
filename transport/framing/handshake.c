/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake's messages, their one parser, and the two state machines. Every message begins with the same 8 bytes, in every
 * version there will ever be: magic "QtHs", version, type, length of the whole message (little-endian). A version's lengths are
 * fixed, so a header says at once whether what follows can be a message, and nothing is read beyond it.
 *
 *   HELLO      header, job 8, client 16, server 16, client's nonce 16, pipes 2, pipe 2
 *   CHALLENGE  header, server's nonce 16, HMAC 32
 *   PROOF      header, HMAC 32
 *   WELCOME    header
 *   REFUSED    header, reason 1      (also the client's answer to a CHALLENGE that does not know the secret)
 *
 * A client that begins with TLS is answered REFUSED in plain text: its TLS sees from the magic what it has met.
 *
 * The HMACs cover a label, the whole HELLO, and CHALLENGE up to its nonce. Both nonces are fresh, so no recording of either side
 * fits another connection; the labels differ, so neither side's proof can be sent back to it.
 */
#include "transport/framing/handshake.h"

#include "base/hmac.h"
#include "transport/process.h"

#include <string.h>

enum {
    VERSION = 1,
    HEADER_SIZE = 8,
    HELLO_SIZE = HEADER_SIZE + 8 + 16 + 16 + HANDSHAKE_NONCE_SIZE + 2 + 2,
    CHALLENGE_SIZE = HEADER_SIZE + HANDSHAKE_NONCE_SIZE + SHA256_SIZE,
    PROOF_SIZE = HEADER_SIZE + SHA256_SIZE,
    WELCOME_SIZE = HEADER_SIZE,
    REFUSED_SIZE = HEADER_SIZE + 1,
    LABEL_SIZE = 8,
    TRANSCRIPT_SIZE = LABEL_SIZE + HELLO_SIZE + HEADER_SIZE + HANDSHAKE_NONCE_SIZE
};

typedef enum message_type { HELLO = 1, CHALLENGE, PROOF, WELCOME, REFUSED, TYPE_END } message_type_t;

/* What a side waits for: STEP_FIRST is HELLO (server) or CHALLENGE (client), STEP_LAST is PROOF (server) or WELCOME (client). */
enum { STEP_FIRST, STEP_LAST };

enum { TLS_HANDSHAKE = 0x16, TLS_MAJOR = 3 }; /* how a TLS client begins */

static const uint8_t magic[4] = {'Q', 't', 'H', 's'};

static uint8_t *put_number(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) *at++ = (uint8_t)(value >> (8 * i));
    return at;
}

static uint8_t *put_bytes(uint8_t *at, const void *data, size_t length)
{
    memcpy(at, data, length);
    return at + length;
}

static uint64_t get_number(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static size_t message_size(message_type_t type)
{
    static const size_t sizes[TYPE_END] = {
        [HELLO] = HELLO_SIZE, [CHALLENGE] = CHALLENGE_SIZE, [PROOF] = PROOF_SIZE, [WELCOME] = WELCOME_SIZE, [REFUSED] = REFUSED_SIZE};
    return sizes[type];
}

static uint8_t *put_header(uint8_t *at, message_type_t type)
{
    at = put_bytes(at, magic, sizeof magic);
    at = put_number(at, VERSION, 1);
    at = put_number(at, type, 1);
    return put_number(at, message_size(type), 2);
}

static uint8_t *put_process(uint8_t *at, quoit_process_id_t process)
{
    return put_number(put_number(at, process.high, 8), process.low, 8);
}

static quoit_process_id_t get_process(const uint8_t *at)
{
    return (quoit_process_id_t){.high = get_number(at, 8), .low = get_number(at + 8, 8)};
}

static uint8_t *put_hello(uint8_t *at, const handshake_t *handshake)
{
    at = put_header(at, HELLO);
    at = put_number(at, handshake->job, 8);
    at = put_process(at, handshake->server ? handshake->peer : handshake->self);
    at = put_process(at, handshake->server ? handshake->self : handshake->peer);
    at = put_bytes(at, handshake->client_nonce, HANDSHAKE_NONCE_SIZE);
    at = put_number(at, handshake->pipes, 2);
    return put_number(at, handshake->pipe, 2);
}

static void make_proof(const handshake_t *handshake, bool by_server, uint8_t mac[SHA256_SIZE])
{
    uint8_t transcript[TRANSCRIPT_SIZE];
    char label[LABEL_SIZE] = {0};
    memcpy(label, by_server ? "server" : "client", 6);
    uint8_t *at = put_bytes(transcript, label, sizeof label);
    at = put_hello(at, handshake);
    at = put_header(at, CHALLENGE);
    put_bytes(at, handshake->server_nonce, HANDSHAKE_NONCE_SIZE);
    hmac_sha256(handshake->secret, handshake->secret_length, transcript, sizeof transcript, mac);
}

/* Room for one more message behind what has not been sent yet: all messages of one side together are shorter than `out`. */
static uint8_t *begin_message(handshake_t *handshake, message_type_t type)
{
    uint8_t *at = handshake->out + handshake->out_length;
    handshake->out_length += message_size(type);
    return put_header(at, type);
}

static void finish(handshake_t *handshake, handshake_state_t state, handshake_reason_t reason)
{
    handshake->state = state;
    handshake->reason = reason;
    explicit_bzero(handshake->secret, sizeof handshake->secret);
    handshake->secret_length = 0;
}

static void refuse(handshake_t *handshake, handshake_reason_t reason)
{
    put_number(begin_message(handshake, REFUSED), (uint64_t)reason, 1);
    finish(handshake, HANDSHAKE_FAILED, reason);
}

static quoit_status_t keep_secret(handshake_t *handshake, const void *secret, size_t length)
{
    if (length > HANDSHAKE_SECRET_CAPACITY)
        return error_set(QUOIT_ERR_INVALID, "secret of %zu bytes; at most %d are allowed", length, HANDSHAKE_SECRET_CAPACITY);
    if (length > 0) memcpy(handshake->secret, secret, length);
    handshake->secret_length = length;
    return QUOIT_OK;
}

/* ---------------------------------------------------------------- messages received, one function each */

static void receive_hello(handshake_t *handshake, const uint8_t *body)
{
    quoit_process_id_t wanted = get_process(body + 24);
    handshake->job = get_number(body, 8);
    handshake->peer = get_process(body + 8);
    memcpy(handshake->client_nonce, body + 40, HANDSHAKE_NONCE_SIZE);
    handshake->pipes = (uint16_t)get_number(body + 56, 2);
    handshake->pipe = (uint16_t)get_number(body + 58, 2);
    if (!process_same(wanted, handshake->self)) {
        refuse(handshake, HANDSHAKE_REASON_PROCESS);
    } else if (handshake->pipe >= handshake->pipes) {
        finish(handshake, HANDSHAKE_FAILED, HANDSHAKE_REASON_NONE);
    } else {
        handshake->step = STEP_LAST;
        handshake->state = HANDSHAKE_WANTS_SECRET;
    }
}

static void receive_challenge(handshake_t *handshake, const uint8_t *body)
{
    uint8_t mac[SHA256_SIZE];
    memcpy(handshake->server_nonce, body, HANDSHAKE_NONCE_SIZE);
    make_proof(handshake, true, mac);
    if (!bytes_equal_secret(mac, body + HANDSHAKE_NONCE_SIZE, sizeof mac)) {
        refuse(handshake, HANDSHAKE_REASON_SECRET);
        return;
    }
    make_proof(handshake, false, mac);
    put_bytes(begin_message(handshake, PROOF), mac, sizeof mac);
    handshake->step = STEP_LAST;
}

static void receive_proof(handshake_t *handshake, const uint8_t *body)
{
    uint8_t mac[SHA256_SIZE];
    make_proof(handshake, false, mac);
    if (bytes_equal_secret(mac, body, sizeof mac))
        handshake->state = HANDSHAKE_WANTS_VERDICT;
    else
        refuse(handshake, HANDSHAKE_REASON_SECRET);
}

static void receive_refused(handshake_t *handshake, const uint8_t *body)
{
    uint8_t reason = body[0];
    finish(handshake, HANDSHAKE_FAILED, reason < HANDSHAKE_REASON_END ? (handshake_reason_t)reason : HANDSHAKE_REASON_NONE);
}

static message_type_t expected_type(const handshake_t *handshake)
{
    if (handshake->server) return handshake->step == STEP_FIRST ? HELLO : PROOF;
    return handshake->step == STEP_FIRST ? CHALLENGE : WELCOME;
}

static bool may_be_refused(const handshake_t *handshake) { return !handshake->server || handshake->step == STEP_LAST; }

/* The 8 bytes are in: is this a message that can come now? If not, the handshake has failed. */
static void check_header(handshake_t *handshake)
{
    const uint8_t *header = handshake->in;
    uint8_t version = header[4], type = header[5];
    if (handshake->server && header[0] == TLS_HANDSHAKE && header[1] == TLS_MAJOR) {
        refuse(handshake, HANDSHAKE_REASON_TLS);
    } else if (memcmp(header, magic, sizeof magic) != 0) {
        finish(handshake, HANDSHAKE_FAILED, HANDSHAKE_REASON_NONE);
    } else if (version != VERSION) {
        if (handshake->server)
            refuse(handshake, HANDSHAKE_REASON_VERSION);
        else
            finish(handshake, HANDSHAKE_FAILED, HANDSHAKE_REASON_VERSION);
    } else if (type != expected_type(handshake) && !(type == REFUSED && may_be_refused(handshake))) {
        finish(handshake, HANDSHAKE_FAILED, HANDSHAKE_REASON_NONE);
    } else if (get_number(header + 6, 2) != message_size((message_type_t)type)) {
        finish(handshake, HANDSHAKE_FAILED, HANDSHAKE_REASON_NONE);
    }
}

static void receive_message(handshake_t *handshake)
{
    const uint8_t *body = handshake->in + HEADER_SIZE;
    handshake->in_length = 0;
    switch ((message_type_t)handshake->in[5]) {
    case HELLO: receive_hello(handshake, body); break;
    case CHALLENGE: receive_challenge(handshake, body); break;
    case PROOF: receive_proof(handshake, body); break;
    case WELCOME: finish(handshake, HANDSHAKE_DONE, HANDSHAKE_REASON_NONE); break;
    case REFUSED: receive_refused(handshake, body); break;
    case TYPE_END: break;
    }
}

/* ---------------------------------------------------------------- what callers see */

quoit_status_t handshake_connect(handshake_t *handshake, uint64_t job, quoit_process_id_t self, quoit_process_id_t peer,
                                 uint16_t pipes, uint16_t pipe, const void *secret, size_t secret_length)
{
    memset(handshake, 0, sizeof *handshake);
    handshake->job = job;
    handshake->self = self;
    handshake->peer = peer;
    handshake->pipes = pipes;
    handshake->pipe = pipe;
    quoit_status_t status = keep_secret(handshake, secret, secret_length);
    if (status == QUOIT_OK) status = random_bytes(handshake->client_nonce, HANDSHAKE_NONCE_SIZE);
    if (status != QUOIT_OK) {
        finish(handshake, HANDSHAKE_FAILED, HANDSHAKE_REASON_NONE);
        return status;
    }
    put_hello(handshake->out, handshake);
    handshake->out_length = HELLO_SIZE;
    return QUOIT_OK;
}

quoit_status_t handshake_listen(handshake_t *handshake, quoit_process_id_t self)
{
    memset(handshake, 0, sizeof *handshake);
    handshake->server = true;
    handshake->self = self;
    return QUOIT_OK;
}

quoit_status_t handshake_secret(handshake_t *handshake, const void *secret, size_t secret_length)
{
    if (handshake->state != HANDSHAKE_WANTS_SECRET) return error_set(QUOIT_ERR_INVALID, "handshake does not wait for a secret");
    quoit_status_t status = keep_secret(handshake, secret, secret_length);
    if (status == QUOIT_OK) status = random_bytes(handshake->server_nonce, HANDSHAKE_NONCE_SIZE);
    if (status != QUOIT_OK) return status;
    uint8_t mac[SHA256_SIZE];
    make_proof(handshake, true, mac);
    uint8_t *at = begin_message(handshake, CHALLENGE);
    at = put_bytes(at, handshake->server_nonce, HANDSHAKE_NONCE_SIZE);
    put_bytes(at, mac, sizeof mac);
    handshake->state = HANDSHAKE_RUNNING;
    return QUOIT_OK;
}

void handshake_accept(handshake_t *handshake)
{
    if (handshake->state != HANDSHAKE_WANTS_VERDICT) return;
    begin_message(handshake, WELCOME);
    finish(handshake, HANDSHAKE_DONE, HANDSHAKE_REASON_NONE);
}

void handshake_refuse(handshake_t *handshake, handshake_reason_t reason)
{
    if (handshake->state != HANDSHAKE_DONE && handshake->state != HANDSHAKE_FAILED) refuse(handshake, reason);
}

size_t handshake_wants(const handshake_t *handshake)
{
    if (handshake->state != HANDSHAKE_RUNNING) return 0;
    size_t total = handshake->in_length < HEADER_SIZE ? HEADER_SIZE : message_size((message_type_t)handshake->in[5]);
    return total - handshake->in_length;
}

bool handshake_is_begun(const handshake_t *handshake)
{
    return handshake->state == HANDSHAKE_RUNNING && handshake->in_length >= HEADER_SIZE;
}

void handshake_received(handshake_t *handshake, const void *bytes, size_t length)
{
    const uint8_t *next = bytes;
    while (length > 0) {
        size_t wanted = handshake_wants(handshake);
        if (wanted == 0) return;
        size_t part = length < wanted ? length : wanted;
        memcpy(handshake->in + handshake->in_length, next, part);
        handshake->in_length += part;
        next += part;
        length -= part;
        if (part < wanted) return;
        if (handshake->in_length == HEADER_SIZE) check_header(handshake);
        if (handshake_wants(handshake) == 0 && handshake->state == HANDSHAKE_RUNNING) receive_message(handshake);
    }
}

const void *handshake_output(const handshake_t *handshake, size_t *length)
{
    *length = handshake->out_length - handshake->out_sent;
    return handshake->out + handshake->out_sent;
}

void handshake_sent(handshake_t *handshake, size_t length)
{
    handshake->out_sent += length;
    if (handshake->out_sent == handshake->out_length) handshake->out_sent = handshake->out_length = 0;
}

const char *handshake_reason_text(handshake_reason_t reason)
{
    switch (reason) {
    case HANDSHAKE_REASON_NONE: return "sent bytes that are no handshake of Quoit";
    case HANDSHAKE_REASON_SECRET: return "the secrets of the two sides differ";
    case HANDSHAKE_REASON_PROCESS: return "the address belongs to another process by now";
    case HANDSHAKE_REASON_TIE: return "another connection of the same two processes stays";
    case HANDSHAKE_REASON_VERSION: return "the two sides run versions of Quoit that do not fit together";
    case HANDSHAKE_REASON_TLS: return "one side speaks TLS, the other plain text; QUOIT_TLS must be the same on both";
    case HANDSHAKE_REASON_OVER: return "its communicators have been destroyed there, or could not be created";
    case HANDSHAKE_REASON_END: break;
    }
    return "unknown reason";
}
