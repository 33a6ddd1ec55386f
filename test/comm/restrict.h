// SPDX-License-Identifier: Apache-2.0
// What containers, batch systems and admins withhold from a process, made here for the calling process and for good. Linux only.
#pragma once

#include <functional>
#include <string>
#include <sys/types.h>

namespace comm_test {

// Withhold `what` from this process: see restrict.cc for the names. False when this machine cannot, with errno.
bool restrict_process(const std::string &what);

// A control group for memory below this process's own, for the process `pid`; "" when none can be made here (errno).
std::string memory_group(pid_t pid, size_t bytes);

} // namespace comm_test
