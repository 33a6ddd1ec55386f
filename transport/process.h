/* SPDX-License-Identifier: Apache-2.0 */
/** Processes by their ids: what transports and the scheduler ask of two of them. */
#ifndef QUOIT_TRANSPORT_PROCESS_H
#define QUOIT_TRANSPORT_PROCESS_H

#include "base/table.h"
#include "quoit/quoit_transport.h"

#include <stdbool.h>

static inline bool process_same(quoit_process_id_t a, quoit_process_id_t b) { return a.high == b.high && a.low == b.low; }

/** An order that both sides of a pair see alike: of two that begin something at once, the lower one's stays. */
static inline bool process_is_lower(quoit_process_id_t a, quoit_process_id_t b) { return a.high != b.high ? a.high < b.high : a.low < b.low; }

static inline table_key_t process_key(quoit_process_id_t process) { return (table_key_t){.high = process.high, .low = process.low}; }

#endif
