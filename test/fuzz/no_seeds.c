/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer programs write no seeds. */
#include "fuzz.h"

void fuzz_seed(const char *name, const void *bytes, size_t length) { (void)name, (void)bytes, (void)length; }
