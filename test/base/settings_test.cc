// SPDX-License-Identifier: Apache-2.0
// Settings: the parsers, the table's own rows, the environment, the public calls.
#include "test/support/temporary.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "base/settings_table.h"
}

namespace {

class Settings : public ::testing::Test {
  protected:
    void SetUp() override
    {
        for (int id = 0; id < SETTING_COUNT; id++) unsetenv(setting_name((setting_id_t)id));
        settings_reset();
    }
    void TearDown() override
    {
        for (const std::string &name : given) unsetenv(name.c_str());
        settings_reset();
    }
    void give(const std::string &name, const std::string &value)
    {
        setenv(name.c_str(), value.c_str(), 1);
        given.push_back(name);
    }
    std::vector<std::string> given;
};

std::string error() { return quoit_last_error(); }

TEST(ParseInt, TakesWholeNumbersInRange)
{
    int64_t value = -7;
    const std::pair<const char *, int64_t> good[] = {{"1", 1}, {"16", 16}, {"-5", -5}, {"+3", 3}, {"007", 7}};
    for (auto [text, expected] : good) {
        EXPECT_EQ(parse_int("X", text, -5, 16, &value), QUOIT_OK) << text;
        EXPECT_EQ(value, expected) << text;
    }
    EXPECT_EQ(parse_int("X", "9223372036854775807", 0, INT64_MAX, &value), QUOIT_OK);
    EXPECT_EQ(value, INT64_MAX);
    value = 42;
    for (const char *text : {"", "-", "+", " 1", "1 ", "1x", "0x1", "1.0", "--1", "17", "-6", "9223372036854775808",
                             "99999999999999999999999999", "-99999999999999999999999"}) {
        EXPECT_EQ(parse_int("X", text, -5, 16, &value), QUOIT_ERR_INVALID) << text;
        EXPECT_EQ(error(), std::string("X=") + text + ": expected an integer from -5 to 16");
    }
    EXPECT_EQ(value, 42);
}

TEST(ParseSize, SuffixesAndOverflow)
{
    int64_t value;
    const std::pair<const char *, int64_t> good[] = {
        {"0", 0}, {"17", 17}, {"17B", 17}, {"8K", 8192}, {"8k", 8192}, {"8kb", 8192}, {"8KiB", 8192}, {"1M", 1 << 20}, {"1mib", 1 << 20},
        {"3G", (int64_t)3 << 30}, {"3GB", (int64_t)3 << 30}, {"3gib", (int64_t)3 << 30}, {"8589934591G", (int64_t)8589934591 << 30}};
    for (auto [text, expected] : good) {
        EXPECT_EQ(parse_size("X", text, 0, INT64_MAX, &value), QUOIT_OK) << text;
        EXPECT_EQ(value, expected) << text;
    }
    for (const char *text : {"", "K", "-1", "+1", "1.5K", "1 K", "1T", "1Ki", "1KK", "8589934592G", "9223372036854775808", "1K ", "0x10"})
        EXPECT_EQ(parse_size("X", text, 0, INT64_MAX, &value), QUOIT_ERR_INVALID) << text;
    EXPECT_EQ(parse_size("X", "4095", 4096, 4 << 20, &value), QUOIT_ERR_INVALID);
    EXPECT_EQ(error(), "X=4095: expected a size from 4K to 4M bytes, such as 64K or 1MiB");
    EXPECT_EQ(parse_size("X", "4194305", 4096, 4 << 20, &value), QUOIT_ERR_INVALID);
    EXPECT_EQ(parse_size("X", "1", 256, 1000, &value), QUOIT_ERR_INVALID);
    EXPECT_EQ(error(), "X=1: expected a size from 256 to 1000 bytes, such as 64K or 1MiB");
}

TEST(ParseDuration, SuffixesUnitAndOverflow)
{
    int64_t value;
    const std::pair<const char *, int64_t> good[] = {{"0", 0}, {"5", 5000}, {"5us", 5}, {"5ms", 5000}, {"5s", 5000000}, {"5MIN", 300000000}};
    for (auto [text, expected] : good) {
        EXPECT_EQ(parse_duration("X", text, 0, INT64_MAX, &value), QUOIT_OK) << text;
        EXPECT_EQ(value, expected) << text;
    }
    EXPECT_EQ(parse_duration_unit("X", "5", 1, 0, INT64_MAX, &value), QUOIT_OK);
    EXPECT_EQ(value, 5);
    for (const char *text : {"", "s", "-1s", "1h", "1.5s", "1 s", "1m", "9223372036854775807", "153722867281min", "99999999999999999999us"})
        EXPECT_EQ(parse_duration("X", text, 0, INT64_MAX, &value), QUOIT_ERR_INVALID) << text;
    EXPECT_EQ(parse_duration("X", "0", 1000, 60000000, &value), QUOIT_ERR_INVALID);
    EXPECT_EQ(error(), "X=0: expected a duration from 1ms to 1min, with us, ms, s or min (without: ms)");
}

TEST(ParseBool, Words)
{
    int64_t value;
    for (const char *text : {"1", "yes", "on", "true", "YES", "True"}) {
        EXPECT_EQ(parse_bool("X", text, &value), QUOIT_OK) << text;
        EXPECT_EQ(value, 1) << text;
    }
    for (const char *text : {"0", "no", "off", "false", "FALSE", "Off"}) {
        EXPECT_EQ(parse_bool("X", text, &value), QUOIT_OK) << text;
        EXPECT_EQ(value, 0) << text;
    }
    for (const char *text : {"", "2", "y", "n", "yes ", "00"}) EXPECT_EQ(parse_bool("X", text, &value), QUOIT_ERR_INVALID) << text;
    EXPECT_EQ(error(), "X=00: expected yes or no (or 1/0, on/off, true/false)");
}

TEST(ParseEnum, Words)
{
    int64_t index;
    EXPECT_EQ(parse_enum("X", "a", "a|bc|d", &index), QUOIT_OK);
    EXPECT_EQ(index, 0);
    EXPECT_EQ(parse_enum("X", "BC", "a|bc|d", &index), QUOIT_OK);
    EXPECT_EQ(index, 1);
    EXPECT_EQ(parse_enum("X", "d", "a|bc|d", &index), QUOIT_OK);
    EXPECT_EQ(index, 2);
    for (const char *text : {"", "b", "bcd", "a|bc", "|"}) EXPECT_EQ(parse_enum("X", text, "a|bc|d", &index), QUOIT_ERR_INVALID) << text;
    EXPECT_EQ(error(), "X=|: expected one of a|bc|d");
}

TEST(SettingRows, DefaultsAreAllowed)
{
    for (int id = 0; id < SETTING_COUNT; id++) {
        const setting_row_t *row = setting_row((setting_id_t)id);
        int64_t number = -1, minimum, maximum;
        const char *word;
        size_t length;
        EXPECT_EQ(std::string(row->name).rfind("QUOIT_", 0), 0u);
        EXPECT_EQ(setting_parse(row, row->fallback, &number, &word, &length), QUOIT_OK) << error();
        if (row->type == SETTING_TYPE_INT || row->type == SETTING_TYPE_SIZE || row->type == SETTING_TYPE_DURATION) {
            ASSERT_TRUE(setting_range(row, &minimum, &maximum)) << row->name;
            EXPECT_LE(minimum, number) << row->name;
            EXPECT_LE(number, maximum) << row->name;
            EXPECT_STRNE(row->unit, "") << row->name;
        }
        EXPECT_STRNE(row->text, "") << row->name;
        EXPECT_STRNE(row->allowed, "") << row->name;
    }
}

TEST(SettingRows, WrongRangesAreSeen)
{
    setting_row_t row = {"X", SETTING_TYPE_INT, "", "1", "1..5", "text"};
    int64_t minimum, maximum;
    EXPECT_TRUE(setting_range(&row, &minimum, &maximum));
    EXPECT_EQ(minimum, 1);
    EXPECT_EQ(maximum, 5);
    for (const char *allowed : {"", "1", "1..", "..5", "5..1", "1...5", "a..b"}) {
        row.allowed = allowed;
        EXPECT_FALSE(setting_range(&row, &minimum, &maximum)) << allowed;
    }
}

TEST_F(Settings, DefaultsInForce)
{
    ASSERT_EQ(settings_load(), QUOIT_OK);
    EXPECT_EQ(setting_int(SETTING_TIMEOUT), (int64_t)30 * 60 * 1000000);
    EXPECT_EQ(setting_int(SETTING_TCP_SOCKETS), 2);
    EXPECT_EQ(setting_int(SETTING_SPIN_TIME), 100);
    EXPECT_EQ(setting_int(SETTING_ARENA_SIZE), (int64_t)1 << 30);
    EXPECT_EQ(setting_int(SETTING_VERBS_ADAPTIVE_ROUTING), 0);
    EXPECT_STREQ(setting_string(SETTING_ALLREDUCE), "auto");
    EXPECT_STREQ(setting_name(SETTING_TCP_SOCKETS), "QUOIT_TCP_SOCKETS");
}

TEST_F(Settings, EnvironmentIsReadOnce)
{
    give("QUOIT_TCP_SOCKETS", "7");
    give("QUOIT_SPIN_TIME", "40");
    give("QUOIT_TIMEOUT", "1500");
    give("QUOIT_ALLREDUCE", "RING");
    give("QUOIT_VERBS_ADAPTIVE_ROUTING", "on");
    give("QUOIT_TRANSPORT", ""); // counts as unset
    give("QUOIT_HOST_LABEL", "left");
    EXPECT_EQ(setting_int(SETTING_TCP_SOCKETS), 7);
    give("QUOIT_TCP_SOCKETS", "9");
    EXPECT_EQ(setting_int(SETTING_TCP_SOCKETS), 7);
    EXPECT_EQ(setting_int(SETTING_SPIN_TIME), 40);
    EXPECT_EQ(setting_int(SETTING_TIMEOUT), 1500000);
    EXPECT_EQ(setting_int(SETTING_ALLREDUCE), 3);
    EXPECT_STREQ(setting_string(SETTING_ALLREDUCE), "ring");
    EXPECT_EQ(setting_int(SETTING_VERBS_ADAPTIVE_ROUTING), 1);
    EXPECT_STREQ(setting_string(SETTING_TRANSPORT), "auto");
    EXPECT_STREQ(setting_string(SETTING_HOST_LABEL), "left");
    settings_reset();
    EXPECT_EQ(setting_int(SETTING_TCP_SOCKETS), 9);
}

TEST_F(Settings, BadValueIsTheOutcomeEachTime)
{
    give("QUOIT_TCP_SOCKETS", "0");
    give("QUOIT_NET_DEPTH", "5");
    const char *expected = "QUOIT_TCP_SOCKETS=0: expected an integer from 1 to 16 (TCP connections per pair of processes)";
    for (int i = 0; i < 3; i++) {
        quoit_setting_set("NO_SUCH", "1"); // another failure in between
        EXPECT_EQ(settings_load(), QUOIT_ERR_INVALID);
        EXPECT_EQ(error(), expected);
    }
    std::thread([&] {
        EXPECT_EQ(settings_load(), QUOIT_ERR_INVALID);
        EXPECT_EQ(error(), expected);
    }).join();
    EXPECT_EQ(setting_int(SETTING_TCP_SOCKETS), 2);
    EXPECT_EQ(setting_int(SETTING_NET_DEPTH), 5);
    char *text;
    ASSERT_EQ(quoit_settings_print(&text), QUOIT_OK);
    EXPECT_NE(std::string(text).find(std::string("error: ") + expected), std::string::npos);
    free(text);
}

TEST_F(Settings, SetBeforeUse)
{
    const char *value;
    give("QUOIT_TCP_SOCKETS", "7");
    EXPECT_EQ(quoit_setting_set("TCP_SOCKETS", "17"), QUOIT_ERR_INVALID);
    EXPECT_EQ(error(), "QUOIT_TCP_SOCKETS=17: expected an integer from 1 to 16 (TCP connections per pair of processes)");
    EXPECT_EQ(quoit_setting_set("TCP_SOCKETS", "3"), QUOIT_OK);
    EXPECT_EQ(quoit_setting_set("TCP_SOCKETS", "4"), QUOIT_OK);
    EXPECT_EQ(quoit_setting_set("TCP_SOKETS", "4"), QUOIT_ERR_INVALID);
    EXPECT_EQ(error(), "there is no setting \"TCP_SOKETS\"; the nearest name is \"TCP_SOCKETS\"");
    EXPECT_EQ(quoit_setting_set("WIRE", "bf16"), QUOIT_ERR_INVALID);
    EXPECT_EQ(error(), "there is no setting \"WIRE\"; the nearest name is \"WIRE_DTYPE\""); // though STORE has as many letters in common
    EXPECT_EQ(quoit_setting_set("WIRE_DTYPE_FOO_BAR_AND_MORE", "bf16"), QUOIT_ERR_INVALID);
    EXPECT_EQ(error(), "there is no setting \"WIRE_DTYPE_FOO_BAR_AND_MORE\"; the nearest name is \"WIRE_DTYPE\"");
    EXPECT_EQ(quoit_setting_set("COLOUR", "4"), QUOIT_ERR_INVALID);
    EXPECT_EQ(error(), "there is no setting \"COLOUR\"; quoit_settings_print lists all"); // nothing is like it
    EXPECT_EQ(quoit_setting_set("QUOIT_TCP_SOCKETS", "4"), QUOIT_ERR_INVALID);
    EXPECT_NE(error().find("nearest name is \"TCP_SOCKETS\""), std::string::npos);
    EXPECT_EQ(quoit_setting_set(nullptr, "4"), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_setting_set("TCP_SOCKETS", nullptr), QUOIT_ERR_INVALID);
    ASSERT_EQ(quoit_setting_get("TCP_SOCKETS", &value), QUOIT_OK);
    EXPECT_STREQ(value, "4");
    EXPECT_EQ(setting_int(SETTING_TCP_SOCKETS), 4);
    EXPECT_EQ(quoit_setting_set("TCP_SOCKETS", "5"), QUOIT_ERR_INVALID);
    EXPECT_NE(error().find("in use"), std::string::npos);
    EXPECT_EQ(quoit_setting_get("NOTHING", &value), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_setting_get("TCP_SOCKETS", nullptr), QUOIT_ERR_INVALID);
}

TEST_F(Settings, NumbersAreInTheirUnits)
{
    give("QUOIT_LINGER", "90s");
    give("QUOIT_EAGER_LIMIT", "12K");
    give("QUOIT_PROGRESS_THREAD", "no");
    give("QUOIT_PUBLISH", "streamed");
    int64_t value = -1;
    auto number = [&](const char *name) { return quoit_setting_get_number(name, &value) == QUOIT_OK ? value : -1; };
    EXPECT_EQ(number("LINGER"), 90000000);
    EXPECT_EQ(number("EAGER_LIMIT"), 12288);
    EXPECT_EQ(number("PROGRESS_THREAD"), 0);
    EXPECT_EQ(number("PUBLISH"), setting_int(SETTING_PUBLISH));
    EXPECT_EQ(number("TCP_SOCKETS"), setting_int(SETTING_TCP_SOCKETS));
    EXPECT_EQ(quoit_setting_get_number("TRACE", &value), QUOIT_ERR_INVALID);
    EXPECT_EQ(error(), "setting \"TRACE\" is no number; quoit_setting_get has its text");
    EXPECT_EQ(quoit_setting_get_number("TRACES", &value), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_setting_get_number("LINGER", nullptr), QUOIT_ERR_INVALID);
}

TEST_F(Settings, PrintIsAligned)
{
    give("QUOIT_EAGER_LIMIT", "12345");
    char *text;
    ASSERT_EQ(quoit_settings_print(&text), QUOIT_OK);
    std::istringstream lines(text);
    free(text);
    EXPECT_EQ(quoit_settings_print(nullptr), QUOIT_ERR_INVALID);
    std::string header, line;
    std::getline(lines, header);
    size_t value_at = header.find("VALUE"), fallback_at = header.find("DEFAULT"), text_at = header.find("DESCRIPTION");
    ASSERT_NE(text_at, std::string::npos);
    int rows = 0;
    bool met = false;
    while (std::getline(lines, line)) {
        const setting_row_t *row = setting_row((setting_id_t)rows++);
        EXPECT_EQ(line.substr(0, line.find(' ')), row->name);
        EXPECT_EQ(line.substr(text_at), std::string(row->text) + " [" + row->allowed + "]");
        for (size_t at : {value_at, fallback_at, text_at}) EXPECT_EQ(line[at - 1], ' ') << line;
        if (std::string(row->name) != "QUOIT_EAGER_LIMIT") continue;
        met = true;
        EXPECT_EQ(line.substr(value_at, 6), "12345 ");
        EXPECT_EQ(line.substr(fallback_at, 3), "8K ");
    }
    EXPECT_TRUE(met);
    EXPECT_EQ(rows, (int)SETTING_COUNT);
}

TEST_F(Settings, UnknownVariablesAreWarnedAboutOnce)
{
    std::string path = temporary_pattern("settings");
    int fd = mkstemp(path.data());
    ASSERT_GE(fd, 0);
    close(fd);
    give("QUOIT_LOG_FILE", path);
    give("QUOIT_TCP_SOCKET", "3");
    give("QUOIT_TEST_ANYTHING", "3");
    give("QUOIT_TCP_SOCKETS", "3");
    give("QUOIT_" + std::string(300, 'X'), "3");
    for (int i = 0; i < 3; i++) EXPECT_EQ(settings_load(), QUOIT_OK);
    std::stringstream all;
    all << std::ifstream(path).rdbuf();
    std::filesystem::remove(path);
    std::string log = all.str();
    std::string warning = "warn settings: there is no setting QUOIT_TCP_SOCKET, it has no effect; the nearest name is QUOIT_TCP_SOCKETS\n";
    size_t at = log.find(warning);
    EXPECT_NE(at, std::string::npos) << log;
    EXPECT_EQ(log.find(warning, at + 1), std::string::npos) << log;
    EXPECT_EQ(log.find("QUOIT_TEST_"), std::string::npos) << log;
    EXPECT_NE(log.find("no setting QUOIT_XXXX"), std::string::npos) << log;
    EXPECT_NE(log.find("it has no effect; docs/settings.md lists all\n"), std::string::npos) << log;
}

TEST_F(Settings, ManyThreadsLoadOnce)
{
    give("QUOIT_TCP_SOCKETS", "11");
    for (int round = 0; round < 50; round++) {
        settings_reset();
        std::atomic<int> wrong{0};
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; t++)
            threads.emplace_back([&] {
                if (setting_int(SETTING_TCP_SOCKETS) != 11 || settings_load() != QUOIT_OK) wrong++;
            });
        for (std::thread &thread : threads) thread.join();
        ASSERT_EQ(wrong, 0) << "round " << round;
    }
}

} // namespace
