/* SPDX-License-Identifier: Apache-2.0 */
/* The wire form of what a rank says of itself in the store: one writer, and one parser that trusts nothing. */
#include "base/bytes.h"
#include "base/text.h"
#include "scheduler/job_internal.h"

#include <string.h>

enum { RECORD_MAGIC = 0x72, RECORD_VERSION = 4, RECORD_HEADER = 85, ADDRESS_OPTIONAL = 0x80, NIC_SIZE = 9 };

static uint8_t *put_text(uint8_t *at, const char *text)
{
    size_t length = strlen(text); /* fields are shorter than 256 */
    *at++ = (uint8_t)length;
    memcpy(at, text, length);
    return at + length;
}

size_t job_record_encode(const job_record_t *record, uint8_t *bytes, size_t capacity)
{
    if (capacity < JOB_RECORD_CAPACITY) return 0;
    uint8_t *at = bytes;
    *at++ = RECORD_MAGIC;
    *at++ = RECORD_VERSION;
    bytes_put16(at, (uint16_t)record->addresses);
    bytes_put64(at + 2, record->process.high);
    bytes_put64(at + 10, record->process.low);
    bytes_put64(at + 18, record->nonce);
    bytes_put64(at + 26, record->kernel);
    bytes_put64(at + 34, record->label);
    bytes_put32(at + 42, (uint32_t)record->rank);
    bytes_put32(at + 46, (uint32_t)record->size);
    bytes_put32(at + 50, (uint32_t)record->pid);
    bytes_put32(at + 54, (uint32_t)record->machine.cores);
    bytes_put32(at + 58, (uint32_t)record->machine.numa_nodes);
    bytes_put32(at + 62, (uint32_t)record->machine.numa_node);
    bytes_put64(at + 66, record->machine.cache);
    bytes_put32(at + 74, record->machine.nic_mbps);
    at[78] = record->tls;
    bytes_put32(at + 79, record->user);
    at += RECORD_HEADER - 2;
    at = put_text(at, record->host);
    at = put_text(at, record->version);
    for (int i = 0; i < record->addresses; i++) {
        at = put_text(at, record->address[i].transport);
        *at++ = (uint8_t)(record->address[i].length | (record->address[i].optional ? ADDRESS_OPTIONAL : 0));
        memcpy(at, record->address[i].address, record->address[i].length);
        at += record->address[i].length;
    }
    *at++ = (uint8_t)record->lacks;
    for (int i = 0; i < record->lacks; i++) {
        at = put_text(at, record->lack[i].transport);
        at = put_text(at, record->lack[i].why);
    }
    *at++ = (uint8_t)record->machine.nics;
    for (int i = 0; i < record->machine.nics; i++) {
        const machine_nic_t *nic = &record->machine.nic[i];
        at = put_text(at, nic->name);
        bytes_put32(at, nic->mbps);
        bytes_put32(at + 4, (uint32_t)nic->numa_node);
        at[8] = nic->near;
        at += NIC_SIZE;
    }
    return (size_t)(at - bytes);
}

/* One length byte and so many characters; NULL when it does not fit. */
static const uint8_t *get_text(const uint8_t *at, const uint8_t *end, char *text, size_t capacity)
{
    if (at >= end || *at >= capacity || (size_t)(end - at - 1) < *at) return NULL;
    text_copy_printable(text, at + 1, *at);
    return at + 1 + *at;
}

static const uint8_t *get_address(const uint8_t *at, const uint8_t *end, job_address_t *address)
{
    at = get_text(at, end, address->transport, sizeof address->transport);
    if (!at || at >= end) return NULL;
    uint8_t length = *at & (uint8_t)~ADDRESS_OPTIONAL;
    address->optional = *at & ADDRESS_OPTIONAL;
    if (length > QUOIT_ADDRESS_CAPACITY || (size_t)(end - at - 1) < length) return NULL;
    address->length = length;
    memcpy(address->address, at + 1, length);
    return at + 1 + length;
}

static const uint8_t *get_lacks(const uint8_t *at, const uint8_t *end, job_record_t *record)
{
    if (at >= end || *at > JOB_LACK_CAPACITY) return NULL;
    record->lacks = *at++;
    for (int i = 0; at && i < record->lacks; i++) {
        at = get_text(at, end, record->lack[i].transport, sizeof record->lack[i].transport);
        if (at) at = get_text(at, end, record->lack[i].why, sizeof record->lack[i].why);
    }
    return at;
}

static const uint8_t *get_nics(const uint8_t *at, const uint8_t *end, machine_t *machine)
{
    if (at >= end || *at > MACHINE_NICS) return NULL;
    machine->nics = *at++;
    for (int i = 0; at && i < machine->nics; i++) {
        machine_nic_t *nic = &machine->nic[i];
        at = get_text(at, end, nic->name, sizeof nic->name);
        if (!at || end - at < NIC_SIZE) return NULL;
        nic->mbps = bytes_get32(at);
        nic->numa_node = (int32_t)bytes_get32(at + 4);
        if (at[8] > 1) return NULL;
        nic->near = at[8];
        at += NIC_SIZE;
    }
    return at;
}

quoit_status_t job_record_decode(const uint8_t *bytes, size_t length, size_t *used, job_record_t *record)
{
    if (length < RECORD_HEADER || bytes[0] != RECORD_MAGIC)
        return error_set(QUOIT_ERR_PROTOCOL, "the store holds %zu bytes that are no record of a rank; is its key used by something else?", length);
    if (bytes[1] != RECORD_VERSION)
        return error_set(QUOIT_ERR_MISMATCH, "a rank's record has version %d, this library's have %d; all ranks must load the same version",
                         bytes[1], RECORD_VERSION);
    memset(record, 0, sizeof *record);
    const uint8_t *at = bytes + 2, *end = bytes + length;
    record->addresses = bytes_get16(at);
    record->process.high = bytes_get64(at + 2);
    record->process.low = bytes_get64(at + 10);
    record->nonce = bytes_get64(at + 18);
    record->kernel = bytes_get64(at + 26);
    record->label = bytes_get64(at + 34);
    record->rank = (int32_t)bytes_get32(at + 42);
    record->size = (int32_t)bytes_get32(at + 46);
    record->pid = (int32_t)bytes_get32(at + 50);
    record->machine.cores = (int)bytes_get32(at + 54);
    record->machine.numa_nodes = (int)bytes_get32(at + 58);
    record->machine.numa_node = (int)bytes_get32(at + 62);
    record->machine.cache = bytes_get64(at + 66);
    record->machine.nic_mbps = bytes_get32(at + 74);
    record->tls = at[78];
    record->user = bytes_get32(at + 79);
    at = get_text(bytes + RECORD_HEADER, end, record->host, sizeof record->host);
    if (at) at = get_text(at, end, record->version, sizeof record->version);
    if (record->addresses > JOB_ADDRESS_CAPACITY) at = NULL;
    for (int i = 0; at && i < record->addresses; i++) at = get_address(at, end, &record->address[i]);
    if (at) at = get_lacks(at, end, record);
    if (at) at = get_nics(at, end, &record->machine);
    if (!at) return error_set(QUOIT_ERR_PROTOCOL, "a rank's record in the store is damaged (%zu bytes)", length);
    *used = (size_t)(at - bytes);
    return QUOIT_OK;
}
