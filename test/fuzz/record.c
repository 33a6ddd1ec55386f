/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank says of itself in the store. */
#include "fuzz.h"

#include "scheduler/job_internal.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    job_record_t record, second;
    uint8_t again[JOB_RECORD_CAPACITY];
    size_t used = 0, length;
    if (!fuzz_check_status(job_record_decode(data, size, &used, &record))) return 0;
    fuzz_check(used <= size && record.addresses >= 0 && record.addresses <= JOB_ADDRESS_CAPACITY);
    fuzz_check_text(record.host, sizeof record.host);
    fuzz_check_text(record.version, sizeof record.version);
    for (int i = 0; i < record.addresses; i++) {
        fuzz_check_text(record.address[i].transport, sizeof record.address[i].transport);
        fuzz_check(record.address[i].length <= QUOIT_ADDRESS_CAPACITY);
    }
    length = job_record_encode(&record, again, sizeof again);
    fuzz_check(length == used && job_record_decode(again, length, &used, &second) == QUOIT_OK && used == length);
    fuzz_check(memcmp(&record, &second, sizeof record) == 0);
    return 0;
}

void fuzz_seeds(void)
{
    job_record_t record = {.process = {1, 2}, .nonce = 3, .kernel = 4, .label = 5, .rank = 1, .size = 4, .pid = 77, .tls = 1, .machine = {.cores = 2, .numa_nodes = 1}};
    uint8_t bytes[JOB_RECORD_CAPACITY];
    snprintf(record.host, sizeof record.host, "node7");
    snprintf(record.version, sizeof record.version, "0.1.0");
    fuzz_seed("alone", bytes, job_record_encode(&record, bytes, sizeof bytes));
    static const char *const names[JOB_ADDRESS_CAPACITY] = {"shm", "tcp", "self", "fifteen_letters", "verbs", "ucx", "pipes", "more"};
    record.addresses = JOB_ADDRESS_CAPACITY;
    for (int i = 0; i < record.addresses; i++) {
        record.address[i].length = (uint16_t)(i * 16);
        snprintf(record.address[i].transport, sizeof record.address[i].transport, "%s", names[i]);
    }
    record.address[1].optional = true;
    record.lacks = JOB_LACK_CAPACITY;
    record.machine.nics = MACHINE_NICS;
    for (int i = 0; i < MACHINE_NICS; i++) record.machine.nic[i] = (machine_nic_t){.name = "eth0", .mbps = 25000, .numa_node = i - 1, .near = i % 2};
    for (int i = 0; i < record.lacks; i++) {
        snprintf(record.lack[i].transport, sizeof record.lack[i].transport, "%s", names[4 + i]);
        snprintf(record.lack[i].why, sizeof record.lack[i].why, "there is no device");
    }
    fuzz_seed("addresses", bytes, job_record_encode(&record, bytes, sizeof bytes));
}
