/* SPDX-License-Identifier: Apache-2.0 */
/* The registry: order and names of QUOIT_TRANSPORT, plug-ins good and bad. */
#include "test/support/built.h"

#include <gtest/gtest.h>

#include <string>

extern "C" {
#include "base/settings.h"
#include "base/status.h"
#include "transport/registry.h"
}

namespace {

const std::string folder = built_path("");

class Registry : public testing::Test {
protected:
    void TearDown() override { use("", ""); }

    static void use(const std::string &transports, const std::string &plugins)
    {
        if (transports.empty()) unsetenv("QUOIT_TRANSPORT");
        else setenv("QUOIT_TRANSPORT", transports.c_str(), 1);
        if (plugins.empty()) unsetenv("QUOIT_TRANSPORT_PLUGIN");
        else setenv("QUOIT_TRANSPORT_PLUGIN", plugins.c_str(), 1);
        settings_reset();
        transport_registry_reset();
    }

    /* Names, separated by blanks; or the error's text. */
    static std::string names()
    {
        const quoit_transport_ops_t *list[REGISTRY_CAPACITY];
        int count = 0;
        quoit_status_t status = transport_registry_list(list, NULL, &count);
        if (status != QUOIT_OK) {
            EXPECT_EQ(status, QUOIT_ERR_INVALID);
            return std::string("error: ") + error_text();
        }
        std::string result;
        for (int i = 0; i < count; i++) result += std::string(i ? " " : "") + list[i]->name;
        return result;
    }

    static void expect_error(const std::string &plugin, const std::string &part)
    {
        use("", plugin);
        std::string text = names();
        EXPECT_EQ(text.rfind("error: QUOIT_TRANSPORT_PLUGIN", 0), 0u) << text;
        EXPECT_NE(text.find(part), std::string::npos) << text;
        EXPECT_NE(text.find(plugin.substr(plugin.rfind('/'))), std::string::npos) << text;
        EXPECT_EQ(transport_registry_find("tcp"), nullptr) << "a bad plug-in is an error for all";
    }
};

TEST_F(Registry, AutoIsPluginsThenSharedMemoryThenVerbsThenTcp)
{
    use("", "");
    EXPECT_EQ(names(), "shm verbs tcp self");
    use("auto", folder + "plugin_pipe.so");
    EXPECT_EQ(names(), "pipes shm verbs tcp self");
    setenv("QUOIT_TLS", "psk", 1);
    use("auto", folder + "plugin_pipe.so");
    EXPECT_EQ(names(), "pipes shm tcp self") << "verbs cannot do TLS";
    unsetenv("QUOIT_TLS");
    use("auto", folder + "plugin_pipe.so");
    ASSERT_NE(transport_registry_find("pipes"), nullptr);
    EXPECT_EQ(transport_registry_find("self"), &transport_self);
    EXPECT_EQ(transport_registry_find("nothing"), nullptr);
}

TEST_F(Registry, NamesGiveTheOrderAndSelfComesLast)
{
    use("tcp, shm", "");
    EXPECT_EQ(names(), "tcp shm self");
    use("self,tcp,tcp", "");
    EXPECT_EQ(names(), "tcp self");
    use("self", "");
    EXPECT_EQ(names(), "self");
    use("shm,ucx,verbs", "");
    EXPECT_EQ(names(), "shm ucx verbs self") << "which auto leaves out";
    use("tcp,pipes", folder + "plugin_pipe.so");
    EXPECT_EQ(names(), "tcp pipes self");
}

TEST_F(Registry, UnknownNamesAreErrorsThatListTheKnown)
{
    for (const char *value : {"tpc", "shm,verb", "shm,,tcp", " ", "TCP"}) {
        use(value, "");
        std::string text = names();
        EXPECT_EQ(text.rfind("error: QUOIT_TRANSPORT", 0), 0u) << text;
        EXPECT_NE(text.find("auto, shm, verbs, tcp, ucx, self"), std::string::npos) << text;
    }
    use(std::string(500, 'x'), "");
    EXPECT_EQ(names().rfind("error: QUOIT_TRANSPORT", 0), 0u);
}

TEST_F(Registry, BadPluginsAreErrorsThatSayWhy)
{
    expect_error(folder + "there_is_none.so", "cannot load");
    expect_error(folder + "plugin_bad_nothing.so", "quoit_transport_plugin");
    expect_error(folder + "plugin_bad_abi.so", "ABI 3, this library has 2");
    expect_error(folder + "plugin_bad_size.so", "bytes");
    expect_error(folder + "plugin_bad_call.so", "lacks a call");
    expect_error(folder + "plugin_bad_name.so", "already");
    expect_error(folder + "plugin_bad_messages.so", "MESSAGE");
    expect_error(folder + "plugin_bad_device_size.so", "bytes");
    expect_error(folder + "plugin_bad_device_call.so", "lacks a call");
    use("auto", folder + "plugin_bad_older.so");
    EXPECT_EQ(names(), "bad shm verbs tcp self") << "built before the calls of devices came";
    expect_error(folder + "plugin_pipe.so:" + folder + "plugin_pipe.so", "already");
    use("", folder + "plugin_pipe.so:");
    EXPECT_EQ(names(), "pipes shm verbs tcp self");
}

TEST_F(Registry, EnvironmentReachesSettingsAndErrors)
{
    use("", "");
    quoit_transport_environment_t environment;
    transport_environment_init(&environment, {1, 2}, 7, "here");
    EXPECT_EQ(environment.struct_size, sizeof environment);
    EXPECT_EQ(environment.self.low, 2u);
    EXPECT_EQ(environment.doorbell, 7);
    EXPECT_STREQ(environment.host, "here");
    ASSERT_NE(environment.setting("TCP_SOCKETS"), nullptr);
    EXPECT_STREQ(environment.setting("TCP_SOCKETS"), "2");
    EXPECT_EQ(environment.setting("NO_SUCH_SETTING"), nullptr);
    environment.error("words of a plug-in with 100%s");
    EXPECT_STREQ(quoit_last_error(), "words of a plug-in with 100%s");
    environment.log(3, "test", "not shown");
    environment.log(99, "test", "not shown either");
}

} // namespace
