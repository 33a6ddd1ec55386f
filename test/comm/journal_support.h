// SPDX-License-Identifier: Apache-2.0
// What the tests of journals and timelines share.
#pragma once

#include "outcome.h"

#include <dirent.h>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

namespace comm_test {

inline std::string take(quoit_status_t status, char *text)
{
    if (status != QUOIT_OK) return std::string("error: ") + quoit_last_error();
    std::string result = text;
    free(text);
    return result;
}

inline std::string history(quoit_comm_t *comm, quoit_format_t format)
{
    char *text = nullptr;
    quoit_status_t status = quoit_comm_history(comm, format, &text);
    return take(status, text);
}

inline std::string history_of(int pid, quoit_format_t format = QUOIT_FORMAT_TEXT)
{
    char *text = nullptr;
    quoit_status_t status = quoit_process_history(pid, format, &text);
    return take(status, text);
}

inline bool has(const std::string &text, const std::string &what) { return text.find(what) != std::string::npos; }

inline std::string read_file(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
}

// A directory that goes with all that is in it.
struct Directory {
    std::string path = temporary_path("journal");
    Directory() { mkdir(path.c_str(), 0700); }
    ~Directory()
    {
        for (const std::string &each : files()) unlink((path + "/" + each).c_str());
        rmdir(path.c_str());
    }
    std::vector<std::string> files() const
    {
        std::vector<std::string> names;
        DIR *directory = opendir(path.c_str());
        while (dirent *entry = directory ? readdir(directory) : nullptr)
            if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
        if (directory) closedir(directory);
        return names;
    }
    std::string read(const std::string &name) const { return read_file(path + "/" + name); }
};

// Roles of journal_timeline_test.cc.
int role_trace(ProcessRank &self);
int role_later(ProcessRank &self);
int role_beside(ProcessRank &self);

} // namespace comm_test
