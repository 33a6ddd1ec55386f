// SPDX-License-Identifier: Apache-2.0
// Two hosts (network namespaces) with two cables of different rates, and two ranks on each: collectives share the bytes out by rate, counted
// where the kernel counts them; a cable that is cut while they run costs one warning on each host's leader, and no byte. With TLS, too.
#include "outcome.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

using namespace comm_test;

namespace {

constexpr size_t COUNT = 1 << 19; // floats: 2 MiB

bool shell(const std::string &command) { return system((command + " >/dev/null 2>&1").c_str()) == 0; }

// What the interfaces q0 and q1 of this process's network have sent. (sysfs shows those of the network in which it was mounted.)
void sent(unsigned long long bytes[2])
{
    std::ifstream file("/proc/self/net/dev");
    for (std::string line; std::getline(file, line);) {
        size_t at = line.find("q0:");
        int which = at != std::string::npos ? 0 : 1;
        if (which == 1) at = line.find("q1:");
        if (at == std::string::npos) continue;
        std::istringstream numbers(line.substr(at + 3));
        for (int i = 0; i < 9; i++) numbers >> bytes[which];
    }
}

// Rounds of allreduce with numbers that add exactly; says what was sent by each interface in the first `quiet` of them.
int role_rounds(ProcessRank &self)
{
    int quiet = atoi(self.argument(0)), all = atoi(self.argument(1));
    std::string log = std::string(self.argument(2)) + "." + std::to_string(self.rank);
    int file = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0 || dup2(file, 2) < 0) return 80;
    quoit_status_t status = self.create(30000);
    report(self, "created", status);
    if (status != QUOIT_OK) return 0;
    unsigned long long before[2] = {}, after[2] = {};
    sent(before);
    std::vector<float> in(COUNT), out(COUNT);
    for (int round = 0; round < all && status == QUOIT_OK; round++) {
        if (round == quiet) {
            sent(after);
            self.say("sent %llu %llu", after[0] - before[0], after[1] - before[1]);
        }
        for (size_t i = 0; i < COUNT; i++) in[i] = static_cast<float>((i * 7 + static_cast<size_t>(round)) % 1000) + static_cast<float>(self.rank);
        std::fill(out.begin(), out.end(), -1.0f);
        status = quoit_allreduce(self.comm, in.data(), out.data(), COUNT, QUOIT_F32, QUOIT_SUM, nullptr, nullptr);
        for (size_t i = 0; i < COUNT && status == QUOIT_OK; i++) {
            float wanted = static_cast<float>(self.size) * static_cast<float>((i * 7 + static_cast<size_t>(round)) % 1000) +
                           static_cast<float>(self.size * (self.size - 1) / 2);
            if (out[i] == wanted) continue;
            self.say("wrong round %d element %zu: %f instead of %f", round, i, static_cast<double>(out[i]), static_cast<double>(wanted));
            status = QUOIT_ERR_INTERNAL;
        }
    }
    report(self, "ended", status);
    self.listen("end");
    return 0;
}

class TwoCables : public testing::Test {
  protected:
    void SetUp() override
    {
        static int number;
        stem_ = "quoit-" + std::to_string(getpid()) + "-r" + std::to_string(number++) + "h";
        if (geteuid() != 0) GTEST_SKIP() << "needs root to make network namespaces";
        if (!shell("ip netns add " + name(0)) || !shell("ip netns add " + name(1))) GTEST_SKIP() << "cannot make network namespaces with ip";
        for (int cable = 0; cable < 2; cable++) {
            std::string device = "q" + std::to_string(cable);
            if (!ip(0, "link add " + device + " type veth peer name " + device + " netns " + name(1))) GTEST_SKIP() << "this kernel has no veth";
            for (int host = 0; host < 2; host++) {
                ASSERT_TRUE(ip(host, "addr add 10.9" + std::to_string(cable) + ".0." + std::to_string(host + 1) + "/24 dev " + device));
                ASSERT_TRUE(ip(host, "link set " + device + " up") && ip(host, "link set lo up"));
                if (!shell("tc -n " + name(host) + " qdisc add dev " + device + " root tbf rate " + (cable == 0 ? "200mbit" : "60mbit") +
                           " burst 64kb latency 50ms"))
                    GTEST_SKIP() << "this kernel has no tbf";
            }
        }
    }
    void TearDown() override
    {
        for (int host = 0; host < 2; host++) shell("ip netns del " + name(host));
        for (int rank = 0; rank < 4; rank++) unlink((log() + "." + std::to_string(rank)).c_str());
        unlink((log() + ".key").c_str());
    }
    std::string name(int host) const { return stem_ + std::to_string(host); }
    bool ip(int host, const std::string &words) const { return shell("ip -n " + name(host) + " " + words); }
    std::string log() const { return testing::TempDir() + stem_; }
    std::string logs(int rank) const
    {
        std::ifstream file(log() + "." + std::to_string(rank));
        std::stringstream text;
        text << file.rdbuf();
        return text.str();
    }
    // Both phases; `cable` is cut in the second.
    void run(const std::string &cable, std::vector<std::string> environment)
    {
        std::string networks[2] = {"/var/run/netns/" + name(0), "/var/run/netns/" + name(1)};
        environment.insert(environment.end(), {"QUOIT_INTERFACE=q0,q1", "QUOIT_INTERFACE_RATES=q0=200,q1=60"});
        Processes ranks("rounds", {0, 0, 1, 1}, {"5", "12", log()}, "", environment, {networks[0], networks[0], networks[1], networks[1]});
        for (int rank = 0; rank < 4; rank++) {
            Outcome created = outcome(ranks, rank, "created", 40);
            ASSERT_EQ(created.status, QUOIT_OK) << created.text;
        }
        for (int leader : {0, 2}) {
            double bytes[2] = {};
            std::string line = ranks.wait_line(leader, "sent", 60);
            ASSERT_EQ(sscanf(line.c_str(), "%lf %lf", &bytes[0], &bytes[1]), 2) << ranks.output(leader);
            double all = bytes[0] + bytes[1], data = 5.0 * COUNT * sizeof(float);
            EXPECT_GE(all, data) << "leader " << leader;
            EXPECT_LT(all, 1.2 * data) << "leader " << leader << ": nothing goes twice";
            EXPECT_NEAR(bytes[0] / all, 200.0 / 260.0, 0.08) << "leader " << leader << ": " << line;
        }
        ASSERT_TRUE(ip(1, "link set " + cable + " down"));
        for (int rank = 0; rank < 4; rank++) {
            Outcome ended = outcome(ranks, rank, "ended", 60);
            EXPECT_EQ(ended.status, QUOIT_OK) << "rank " << rank << ": " << ended.text << "\n" << ranks.output(rank);
        }
        for (int rank = 0; rank < 4; rank++) {
            std::string text = logs(rank);
            size_t lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
            EXPECT_EQ(lines, rank % 2 == 0 ? 1u : 0u) << "rank " << rank << " logged:\n" << text;
            if (rank % 2 != 0) continue;
            int other = 2 - rank;
            EXPECT_NE(text.find("rail " + cable + " (10.9" + cable.substr(1) + ".0."), std::string::npos) << text;
            EXPECT_NE(text.find(" of rank " + std::to_string(other) + " ("), std::string::npos) << text;
            EXPECT_NE(text.find("the others carry its part"), std::string::npos) << text;
        }
        for (int rank = 0; rank < 4; rank++) ranks.tell(rank, "end");
        for (int rank = 0; rank < 4; rank++) EXPECT_EQ(ranks.wait_exit(rank, 20), 0);
    }

  private:
    std::string stem_;
};

} // namespace

TEST_F(TwoCables, TheOneThatCarriesOrderIsCut) { run("q0", {}); }

#ifdef HAVE_TLS
TEST_F(TwoCables, WithTlsOneIsCut)
{
    std::string key = log() + ".key";
    std::ofstream(key) << std::string(64, '7') << "\n";
    ASSERT_EQ(chmod(key.c_str(), 0600), 0);
    run("q1", {"QUOIT_TLS=psk", "QUOIT_TLS_KEY_FILE=" + key});
}
#endif

int main(int argc, char **argv)
{
    if (is_process_rank()) return run_role({{"rounds", role_rounds}});
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
