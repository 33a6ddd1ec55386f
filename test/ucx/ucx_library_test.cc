/* SPDX-License-Identifier: Apache-2.0 */
/* How UCX is loaded: what is said when it is missing, and that it leaves the program as it was. */
#include "ucx_harness.h"

#include <cstring>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>

extern "C" {
#include "base/settings.h"
}

using namespace ucx_test;

extern char **environ;

static std::string probe_text()
{
    char why[256] = "";
    quoit_transport_environment_t environment = environment_for({1, 1});
    quoit_status_t status = transport_ucx.probe(&environment, why, sizeof why);
    return std::string(quoit_status_text(status)) + ": " + why;
}

TEST(UcxLibrary, OneThatIsMissingIsNamed)
{
    std::string text = in_child([] {
        settings_now()["UCX_LIBRARY"] = "/nonexistent/libucp.so.0";
        std::string first = probe_text();
        settings_now().erase("UCX_LIBRARY");
        return probe_text() == first ? first : "asked again: " + probe_text();
    });
    EXPECT_EQ(0u, text.find(quoit_status_text(QUOIT_ERR_NOT_FOUND))) << text;
    EXPECT_NE(std::string::npos, text.find("/nonexistent/libucp.so.0")) << text;
    EXPECT_NE(std::string::npos, text.find("QUOIT_UCX_LIBRARY")) << text;
}

TEST(UcxLibrary, OneThatIsNoUcxIsNamed)
{
    std::string text = in_child([] {
        settings_now()["UCX_LIBRARY"] = "libm.so.6";
        return probe_text();
    });
    EXPECT_NE(std::string::npos, text.find("libm.so.6 has no function")) << text;
}

TEST(UcxLibrary, TheOneThatIsAskedForIsUsed)
{
    const char *wanted = getenv("QUOIT_TEST_UCX_VERSION"); /* what test/full makes sure of; any that is new enough */
    std::string version = in_child([]() -> std::string {
        Node node(1);
        return node.status == QUOIT_OK ? node.inner()->ucx->version : node.text;
    });
    EXPECT_EQ(0u, version.find(wanted ? wanted : "1.")) << version;
}

namespace {

const int SIGNALS[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGTERM, SIGINT, SIGALRM};

/* Handlers, the beginnings of the functions that UCX's memory hooks patch, and the environment; by name. */
std::map<std::string, std::string> state_of_process()
{
    std::map<std::string, std::string> state;
    for (int number : SIGNALS) {
        struct sigaction action;
        sigaction(number, nullptr, &action);
        state[std::string("handler of ") + strsignal(number)].assign(reinterpret_cast<const char *>(&action.sa_sigaction),
                                                                     sizeof action.sa_sigaction);
    }
    for (const char *name : {"mmap", "munmap", "mremap", "shmat", "shmdt", "madvise", "brk", "sbrk"}) {
        const void *code = dlsym(RTLD_DEFAULT, name);
        if (code) state[std::string("code of ") + name].assign(static_cast<const char *>(code), 12);
    }
    for (char **variable = environ; *variable; variable++) state[std::string("variable ") + *variable] = "";
    return state;
}

} // namespace

/* UCX patches the memory functions while it is loaded, and asks only the environment whether it may. */
TEST(UcxLibrary, AnOpenedTransportLeavesTheProgramAsItWas)
{
    std::string text = in_child([]() -> std::string {
        setenv("UCX_MEM_EVENTS", "n", 1);
        auto before = state_of_process();
        Node node(1);
        if (node.status != QUOIT_OK) return node.text;
        std::string changed;
        auto after = state_of_process();
        for (const auto &[what, value] : after)
            if (!before.count(what) || before[what] != value) changed += what + "; ";
        return after.size() == before.size() ? changed : changed + "something is gone";
    });
    EXPECT_EQ("", text);
}

TEST(UcxLibrary, WhatUcxHasToSayGoesToTheLogAndNotToStandardOutput)
{
    std::string text = in_child([]() -> std::string {
        int output = memfd_create("output", 0), log = memfd_create("log", 0);
        setenv("UCX_LOG_LEVEL", "info", 1);
        setenv("QUOIT_LOG", "info", 1);
        settings_reset();
        if (settings_load() != QUOIT_OK) return error_text();
        dup2(output, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        { Node node(1); }
        fflush(stdout);
        if (lseek(output, 0, SEEK_END) != 0) return "UCX wrote to standard output";
        return lseek(log, 0, SEEK_END) > 0 ? "" : "nothing was logged";
    });
    EXPECT_EQ("", text);
}
