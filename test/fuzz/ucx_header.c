/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of active messages over UCX. */
#include "fuzz.h"

#include "transport/ucx/ucx_header.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = fuzz_input(data, size);
    size_t payload = (size_t)fuzz_number(&input, 3), length = fuzz_left(&input);
    ucx_message_t type;
    uint64_t sequence;
    uint8_t again[UCX_HEADER_SIZE];
    if (!ucx_header_parse(input.at, length, payload, &type, &sequence)) return 0;
    fuzz_check(length == UCX_HEADER_SIZE && payload <= (type == UCX_DATA ? UCX_MESSAGE_SIZE : 0));
    ucx_header_write(type, sequence, again);
    fuzz_check(memcmp(again, input.at, length) == 0);
    return 0;
}

void fuzz_seeds(void)
{
    static const char *const names[] = {NULL, "data", "last", "receipt"};
    for (int type = UCX_DATA; type < UCX_MESSAGE_END; type++) {
        uint8_t bytes[3 + UCX_HEADER_SIZE] = {0, type == UCX_DATA ? 16 : 0, 0};
        ucx_header_write((ucx_message_t)type, 77, bytes + 3);
        fuzz_seed(names[type], bytes, sizeof bytes);
    }
}
