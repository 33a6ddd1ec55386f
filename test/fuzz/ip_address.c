/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of the transports that are reached by IP, and the preamble of their connections. */
#include "fuzz.h"

#include "transport/framing/channel.h"
#include "transport/ip/ip_address.h"

#include <stdlib.h>

static void address(const uint8_t *data, size_t size)
{
    ip_address_t parsed, second;
    uint8_t again[QUOIT_ADDRESS_CAPACITY];
    size_t length = sizeof again;
    if (!fuzz_check_status(ip_address_parse(data, size, &parsed))) return;
    fuzz_check(size <= QUOIT_ADDRESS_CAPACITY && parsed.count >= 1 && parsed.count <= IP_MAX_ADDRESSES);
    fuzz_check(parsed.limits.sockets >= 1 && parsed.limits.sockets <= CHANNEL_MAX_PIPES);
    fuzz_check(parsed.limits.eager_limit <= parsed.limits.eager_pool);
    for (int i = 0; i < parsed.count; i++) {
        char text[IP_NAME_CAPACITY];
        fuzz_check(ip_name_port(&parsed.names[i]) != 0);
        fuzz_check_text(ip_name_text(&parsed.names[i], text), sizeof text);
    }
    fuzz_check(ip_address_write(&parsed, again, &length) == QUOIT_OK && length == size);
    fuzz_check(ip_address_parse(again, length, &second) == QUOIT_OK && memcmp(&parsed, &second, sizeof parsed) == 0);
}

static void preamble(const uint8_t *data)
{
    ip_preamble_t parsed, second;
    uint8_t again[IP_PREAMBLE_SIZE];
    if (!fuzz_check_status(ip_preamble_parse(data, &parsed))) return;
    fuzz_check_text(parsed.host, sizeof parsed.host);
    ip_preamble_write(&parsed, again);
    fuzz_check(ip_preamble_parse(again, &second) == QUOIT_OK && memcmp(&parsed.limits, &second.limits, sizeof parsed.limits) == 0);
    fuzz_check(parsed.attempt == second.attempt && parsed.pid == second.pid && strcmp(parsed.host, second.host) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    address(data, size);
    if (size >= IP_PREAMBLE_SIZE) preamble(data);
    return 0;
}

void fuzz_seeds(void)
{
    ip_address_t all = {.limits = {8192, 1 << 20, 262144, 2}, .count = IP_MAX_ADDRESSES};
    uint8_t bytes[QUOIT_ADDRESS_CAPACITY];
    for (int i = 0; i < all.count; i++) {
        if (i % 2)
            all.names[i].v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = {{{0xfd, [15] = 7}}}};
        else
            all.names[i].v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {0x0700000a}};
        ip_name_set_port(&all.names[i], (uint16_t)(4000 + i));
    }
    for (int count = 1; count <= IP_MAX_ADDRESSES; count++) {
        char name[] = "address_0";
        size_t length = sizeof bytes;
        all.count = count;
        name[8] = (char)('0' + count);
        fuzz_check(ip_address_write(&all, bytes, &length) == QUOIT_OK);
        fuzz_seed(name, bytes, length);
    }
    ip_preamble_t preamble = {.attempt = 77, .limits = all.limits, .pid = 1234, .host = "node7"};
    uint8_t written[IP_PREAMBLE_SIZE];
    ip_preamble_write(&preamble, written);
    fuzz_seed("preamble", written, sizeof written);
}
