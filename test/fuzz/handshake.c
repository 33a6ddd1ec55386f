/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake in three ways: bytes to a server, bytes to a client (in any portions), and a relay between a sound client and a sound
 * server that changes some of the bytes on their way. Whoever does not know the secret gets nowhere: a server never asks for a verdict,
 * a client is never done; a relay that changed anything never joins the two.
 */
#include "fuzz.h"

#include "transport/framing/handshake.h"

static const quoit_process_id_t caller = {1, 2}, called = {3, 4};
static const char secret[] = "the secret of this job";

static bool is_over(const handshake_t *side) { return side->state == HANDSHAKE_DONE || side->state == HANDSHAKE_FAILED; }

static void check_side(const handshake_t *side)
{
    size_t length;
    fuzz_check(side->in_length <= HANDSHAKE_CAPACITY && side->out_length <= HANDSHAKE_CAPACITY && side->out_sent <= side->out_length);
    fuzz_check(handshake_output(side, &length) && length <= HANDSHAKE_CAPACITY);
    fuzz_check(handshake_wants(side) <= HANDSHAKE_CAPACITY - side->in_length);
    fuzz_check(handshake_reason_text(side->reason)[0] != '\0');
    if (is_over(side)) fuzz_check(side->secret_length == 0 && handshake_wants(side) == 0);
}

static void alone(fuzz_input_t *input, bool server)
{
    handshake_t side;
    if (server)
        fuzz_check(handshake_listen(&side, called) == QUOIT_OK);
    else
        fuzz_check(handshake_connect(&side, 9, caller, called, 2, 1, secret, sizeof secret) == QUOIT_OK);
    while (fuzz_left(input) > 0 && !is_over(&side)) {
        size_t length;
        const uint8_t *part = fuzz_take(input, (size_t)fuzz_byte(input) + 1, &length);
        uint8_t exact[257];
        memcpy(exact, part, length);
        handshake_received(&side, exact, length);
        check_side(&side);
        if (side.state == HANDSHAKE_WANTS_SECRET) fuzz_check(handshake_secret(&side, secret, sizeof secret) == QUOIT_OK);
        handshake_output(&side, &length);
        handshake_sent(&side, length);
    }
    fuzz_check(side.state != HANDSHAKE_WANTS_VERDICT && side.state != HANDSHAKE_DONE);
    if (!is_over(&side)) handshake_refuse(&side, HANDSHAKE_REASON_TIE);
    check_side(&side);
}

/* What one side has to say, to the other, with the next change applied if it meets these bytes. True when it did. */
static bool relay(fuzz_input_t *input, handshake_t *from, handshake_t *to)
{
    size_t length, wanted = handshake_wants(to);
    const uint8_t *out = handshake_output(from, &length);
    uint8_t bytes[HANDSHAKE_CAPACITY];
    bool changed = false;
    if (length > wanted) length = wanted;
    memcpy(bytes, out, length);
    if (length > 0) {
        size_t at = fuzz_byte(input);
        uint8_t flip = fuzz_byte(input);
        changed = at < length && flip != 0;
        if (changed) bytes[at] ^= flip;
    }
    handshake_received(to, bytes, length);
    handshake_sent(from, length);
    check_side(from);
    check_side(to);
    return changed;
}

static void between(fuzz_input_t *input)
{
    handshake_t client, server;
    bool changed_client = false, changed_server = false;
    fuzz_check(handshake_connect(&client, 9, caller, called, 2, 1, secret, sizeof secret) == QUOIT_OK);
    fuzz_check(handshake_listen(&server, called) == QUOIT_OK);
    for (int round = 0; round < 40; round++) {
        changed_client = relay(input, &client, &server) || changed_client;
        if (server.state == HANDSHAKE_WANTS_SECRET) fuzz_check(handshake_secret(&server, secret, sizeof secret) == QUOIT_OK);
        if (server.state == HANDSHAKE_WANTS_VERDICT) {
            fuzz_check(!changed_client);
            handshake_accept(&server);
        }
        changed_server = relay(input, &server, &client) || changed_server;
    }
    if (changed_server || changed_client) fuzz_check(client.state != HANDSHAKE_DONE);
    if (!changed_server && !changed_client) fuzz_check(client.state == HANDSHAKE_DONE && server.state == HANDSHAKE_DONE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = fuzz_input(data, size);
    switch (fuzz_byte(&input) % 3) {
    case 0: alone(&input, true); break;
    case 1: alone(&input, false); break;
    default: between(&input); break;
    }
    return 0;
}

void fuzz_seeds(void)
{
    handshake_t client, server;
    uint8_t seed[512] = {0, 255};
    size_t hello, challenge, proof;
    fuzz_check(handshake_connect(&client, 9, caller, called, 2, 1, secret, sizeof secret) == QUOIT_OK);
    fuzz_check(handshake_listen(&server, called) == QUOIT_OK);
    const void *out = handshake_output(&client, &hello);
    memcpy(seed + 2, out, hello);
    handshake_received(&server, out, hello);
    handshake_sent(&client, hello);
    fuzz_check(handshake_secret(&server, secret, sizeof secret) == QUOIT_OK);
    fuzz_seed("server_hello", seed, 2 + hello);
    uint8_t to_client[512] = {1, 255};
    out = handshake_output(&server, &challenge);
    memcpy(to_client + 2, out, challenge);
    fuzz_seed("client_challenge", to_client, 2 + challenge);
    handshake_received(&client, out, challenge);
    out = handshake_output(&client, &proof);
    memcpy(seed + 2 + hello, out, proof);
    fuzz_seed("server_hello_and_proof", seed, 2 + hello + proof);
    handshake_listen(&server, caller);
    memcpy(seed + 2 + hello, "QtHs\1\5\11", 8);
    fuzz_seed("server_refused", seed, 2 + hello + 9);
    memcpy(to_client + 2, "QtHs\1\5\11\0\1", 9);
    fuzz_seed("client_refused", to_client, 11);
    fuzz_seed("relay_unchanged", "\2\0\0", 3);
    fuzz_seed("relay_one_bit", "\2\24\1", 3);
}
