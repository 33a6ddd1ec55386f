/* SPDX-License-Identifier: Apache-2.0 */
/* How many entries a folder has: what this process holds open, its threads. */
#ifndef QUOIT_TEST_ENTRIES_H
#define QUOIT_TEST_ENTRIES_H

#include <filesystem>
#include <system_error>

inline int entries_of(const char *path)
{
    int count = 0;
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator(path, error)) count += !entry.path().empty();
    return count;
}

/** Open descriptors, and the one with which they are looked at. */
inline int count_descriptors() { return entries_of("/proc/self/fd"); }

#endif
