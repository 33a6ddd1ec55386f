/* SPDX-License-Identifier: Apache-2.0 */
/* What two processes tell each other before their queue pairs work. */
#include "fuzz.h"

#include "transport/verbs/verbs_hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    verbs_limits_t limits;
    verbs_notice_t type = 0;
    verbs_hello_t hello, second;
    uint8_t again[VERBS_HELLO_SIZE];
    (void)fuzz_check_status(verbs_limits_parse(data, size, &limits));
    if (!fuzz_check_status(verbs_notice_parse(data, size, &type, &hello))) return 0;
    if (type == VERBS_NOTICE_READY) {
        verbs_ready_write(again);
        fuzz_check(size == VERBS_READY_SIZE && memcmp(data, again, size) == 0);
        return 0;
    }
    fuzz_check(type == VERBS_NOTICE_HELLO && hello.depth >= 4 && hello.depth <= 4096 && hello.buffer_size <= 1 << 20 && hello.mtu >= 1 && hello.mtu <= 5);
    fuzz_check_text(hello.host, sizeof hello.host);
    verbs_hello_write(&hello, again);
    fuzz_check(verbs_notice_parse(again, sizeof again, &type, &second) == QUOIT_OK && memcmp(&hello, &second, sizeof hello) == 0);
    return 0;
}

void fuzz_seeds(void)
{
    verbs_hello_t hello = {.gid = {0xfe, 0x80}, .gid_type = 2, .mtu = 3, .ethernet = 1, .stream_qpn = 17, .stream_psn = 99, .direct_qpn = 18, .direct_psn = 98,
                           .depth = 64, .buffer_size = 8192, .direct_recvs = 32, .mbps = 100000, .limits = {8192, 1 << 20, 262144, 2}, .link = 1, .pid = 7, .host = "node7"};
    uint8_t bytes[VERBS_HELLO_SIZE];
    verbs_hello_write(&hello, bytes);
    fuzz_seed("hello", bytes, sizeof bytes);
    verbs_ready_write(bytes);
    fuzz_seed("ready", bytes, VERBS_READY_SIZE);
    verbs_limits_write(&hello.limits, bytes);
    fuzz_seed("limits", bytes, VERBS_LIMITS_SIZE);
}
