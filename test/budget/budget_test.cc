// SPDX-License-Identifier: Apache-2.0
// How many instructions of libquoit one message costs on its way, both sides together, for each transport, and what whole calls of the public
// API cost, between two ranks that share memory and by themselves: counted by callgrind (valgrind), so neither the machine's load nor its clock matters. What libc,
// UCX, libibverbs (here the tests' own) and the kernel execute is not counted. The least of some rounds is taken. A number above its budget
// fails: then either the path has grown by mistake, or the table below is changed in the same commit, which says why. A number far below is a
// reason to lower the budget.
#include "test/support/temporary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <dirent.h>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

struct Budget {
    const char *transport; // "calls": of the public API
    const char *what;      // as budget_path or budget_calls names it
    unsigned long most;    // instructions: what it was when this was written, and a tenth
};

// 8 bytes: a message that goes unasked. 262144 bytes: a chunk, asked for and granted; over shm in eight
// pieces, each with a frame of its own, so that the receiver reads one while the next is written.
// Calls: 4 bytes ride in one frame of 64 bytes, 1 KiB in a frame of their own, 4 KiB are lent. Of a collective, the call of the rank that comes last.
const Budget budgets[] = {
    {"calls", "4 bytes there and back", 6100},
    {"calls", "1 KiB there and back", 6800},
    {"calls", "4 KiB there and back", 11500},
    {"calls", "allreduce of 4 bytes", 2810},
    {"calls", "alltoall of 4 bytes", 2830},
    {"calls", "barrier", 1630},
    {"shm", "8 bytes", 2000},
    {"shm", "262144 bytes", 14800},
    {"tcp", "8 bytes", 2900},
    {"tcp", "262144 bytes", 12400},
#ifdef FAKE_VERBS
    {"verbs", "8 bytes", 3300},
    {"verbs", "262144 bytes", 8500},
#endif
#ifdef HAVE_UCX
    {"ucx", "8 bytes", 2890},
    {"ucx", "262144 bytes", 12200},
#endif
    // No transport: an allreduce on one rank, which is what every operation costs beside its bytes. 89 instructions of it are what mismatches are found by.
    {"operation", "16 bytes", 2130},
};

bool is_own(const std::string &object)
{
    return object.find("budget_path") != std::string::npos || object.find("budget_calls") != std::string::npos;
}

// The instructions of one of callgrind's files that functions of the program itself executed, but for the harness (budget_*); and those of UCX's
// libraries, which the transport ucx comes on top of.
// Lines: "ob=(1) /path", "fn=(2) name" (the name only the first time), "12 345": at line 12, 345 instructions; after "calls=" the next
// such line is what a callee executed, and counted there.
unsigned long own_instructions(std::istream &file, std::string *trigger, unsigned long *ucx)
{
    std::map<std::string, std::string> objects, functions;
    std::string line;
    unsigned long total = 0;
    bool own = false, theirs = false, counted = false, callee = false;
    *ucx = 0;
    auto name_of = [](std::map<std::string, std::string> &names, const std::string &text) {
        size_t end = text.find(')');
        std::string key = text.substr(0, end + 1);
        if (text.size() > end + 2) names[key] = text.substr(end + 2);
        return names[key];
    };
    while (std::getline(file, line)) {
        if (line.rfind("desc: Trigger: Client Request: ", 0) == 0) *trigger = line.substr(31);
        if (line.rfind("cob=", 0) == 0) name_of(objects, line.substr(4));
        if (line.rfind("cfn=", 0) == 0) name_of(functions, line.substr(4));
        if (line.rfind("ob=", 0) == 0) {
            const std::string object = name_of(objects, line.substr(3));
            own = is_own(object);
            theirs = object.find("/libuc") != std::string::npos;
        }
        if (line.rfind("fn=", 0) == 0) {
            std::string function = name_of(functions, line.substr(3));
            counted = own && function != "main" && function.rfind("budget_", 0) != 0;
        }
        if (line.rfind("calls=", 0) == 0) {
            callee = true;
        } else if (!line.empty() && (isdigit(line[0]) || line[0] == '+' || line[0] == '-' || line[0] == '*')) {
            size_t at = line.find(' ');
            unsigned long here = !callee && at != std::string::npos ? strtoul(line.c_str() + at, nullptr, 10) : 0;
            if (counted) total += here;
            if (theirs) *ucx += here;
            callee = false;
        }
    }
    return total;
}

struct Folder {
    std::string path = temporary_pattern("budget");
    Folder() { EXPECT_NE(mkdtemp(path.data()), nullptr); }
    ~Folder()
    {
        for (const std::string &name : names()) unlink((path + "/" + name).c_str());
        rmdir(path.c_str());
    }
    std::vector<std::string> names() const
    {
        std::vector<std::string> all;
        DIR *directory = opendir(path.c_str());
        for (dirent *entry; directory && (entry = readdir(directory));)
            if (entry->d_name[0] != '.') all.push_back(entry->d_name);
        if (directory) closedir(directory);
        std::sort(all.begin(), all.end());
        return all;
    }
};

// What each size costs: the least of its rounds.
struct Count {
    unsigned long own = std::numeric_limits<unsigned long>::max(), ucx = own;
};

std::map<std::string, Count> measure(const std::string &transport, std::string *log)
{
    Folder folder;
    std::map<std::string, Count> least;
    std::string fake;
#ifdef FAKE_VERBS
    setenv("QUOIT_VERBS_LIBRARY", FAKE_VERBS, 1);
    if (transport == "verbs") fake = FAKE_VERBS;
#endif
    if (transport == "calls") setenv("QUOIT_TRANSPORT", "shm,tcp", 1); // each that is there is polled
    else unsetenv("QUOIT_TRANSPORT");
    std::string program = transport == "calls" ? std::string(BUDGET_CALLS) + " file://" + folder.path + "/store"
                                               : std::string(BUDGET_PATH) + " " + transport + " " + fake;
    std::string command = "exec valgrind --tool=callgrind --collect-atstart=no --dump-line=no --callgrind-out-file=" + folder.path + "/out " +
                          program + " 2>&1";
    FILE *output = popen(command.c_str(), "r");
    char line[512];
    while (output && fgets(line, sizeof line, output)) *log += line;
    if (!output || pclose(output) != 0) return least;
    for (const std::string &name : folder.names()) {
        std::ifstream file(folder.path + "/" + name);
        std::string trigger;
        unsigned long ucx, own = own_instructions(file, &trigger, &ucx);
        if (trigger.empty()) continue;
        Count &count = least[trigger];
        count = {std::min(count.own, own), std::min(count.ucx, ucx)};
    }
    return least;
}

class Budgets : public testing::TestWithParam<const char *> {};

TEST_P(Budgets, OfADataPath)
{
    std::string log;
    std::map<std::string, Count> counts = measure(GetParam(), &log);
    ASSERT_FALSE(counts.empty()) << log;
    for (const Budget &budget : budgets) {
        if (std::string(budget.transport) != GetParam()) continue;
        ASSERT_TRUE(counts.count(budget.what)) << budget.what << " was not measured: " << log;
        unsigned long count = counts[budget.what].own, ucx = counts[budget.what].ucx;
        printf("%-6s %-22s %8lu instructions, budget %8lu", budget.transport, budget.what, count, budget.most);
        if (ucx > 0) printf("; on top of UCX's own %lu", ucx);
        printf("\n");
        EXPECT_GT(count, 100ul) << "hardly anything was counted";
        EXPECT_LE(count, budget.most) << budget.transport << ", " << budget.what;
        std::string property = budget.what;
        std::replace(property.begin(), property.end(), ' ', '_');
        RecordProperty(property, std::to_string(count));
    }
}

std::vector<const char *> transports()
{
    std::vector<const char *> all;
    for (const Budget &budget : budgets)
        if (all.empty() || std::string(all.back()) != budget.transport) all.push_back(budget.transport);
    return all;
}

INSTANTIATE_TEST_SUITE_P(All, Budgets, testing::ValuesIn(transports()), [](const auto &info) { return std::string(info.param); });

// The reader of callgrind's files: what is the program's own, what is the harness's, what was called.
TEST(Callgrind, CountsWhatTheProgramItselfExecuted)
{
    std::istringstream file("desc: Trigger: Client Request: 8 bytes\n"
                            "ob=(1) /build/budget_path\nfl=(1) ???\nfn=(1) channel_send\n0 100\ncob=(2) /lib/libc.so.6\ncfi=(2) ???\ncfn=(2) memcpy\n"
                            "calls=3 0\n0 5000\n0 7\nfn=(3) budget_progress\n0 900\n\nob=(2)\nfn=(2)\n0 5000\n\nob=(3) /lib/libucp.so.0\nfn=(5) ucp_worker_progress\n0 77\n\nob=(1)\nfn=(4) pipes_write\n+2 30\nfn=(1)\n* 1\n");
    std::string trigger;
    unsigned long ucx = 1;
    EXPECT_EQ(own_instructions(file, &trigger, &ucx), 138ul);
    EXPECT_EQ(ucx, 77ul);
    EXPECT_EQ(trigger, "8 bytes");
}

} // namespace
