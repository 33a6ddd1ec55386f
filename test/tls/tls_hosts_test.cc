/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS as a job sees it: two network namespaces as hosts, two ranks in each, all collectives, and a capture of every packet on the wire
 * between them. The plain run shows that the capture finds what it looks for. Also: ranks that were told different modes, transports that
 * cannot do TLS, and that keys are in nothing that Quoit writes. Needs root and `ip`; says so and skips otherwise.
 */
#include "../comm/operations.h"
#include "../comm/outcome.h"
#include "tls_files.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace comm_test;
using tls_test::Folder;
using tls_test::has;
using tls_test::read_file;

namespace {

const std::string KNOWN = "a known payload that nobody but the ranks should see";

bool shell(const std::string &command) { return system((command + " 2>/dev/null").c_str()) == 0; }

/* ---------------------------------------------------------------- ranks */

/* Where it is to live; the process has no other thread yet. */
bool enter(const char *name)
{
    int fd = open((std::string("/var/run/netns/") + name).c_str(), O_RDONLY | O_CLOEXEC);
    bool entered = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
    if (fd >= 0) close(fd);
    return entered;
}

std::string exchange_known(ProcessRank &self)
{
    std::string data, all;
    while (data.size() < 100000) data += KNOWN;
    all.resize(data.size() * (size_t)self.size);
    if (quoit_allgather(self.comm, data.data(), all.data(), data.size(), QUOIT_U8, nullptr, nullptr) != QUOIT_OK) return quoit_last_error();
    for (int rank = 0; rank < self.size; rank++)
        if (all.compare((size_t)rank * data.size(), data.size(), data) != 0) return "the known payload did not arrive whole";
    return "";
}

std::string every_collective(ProcessRank &self)
{
    std::mt19937_64 random(seed()); /* the same on all ranks */
    for (size_t count : {size_t(1), size_t(900), size_t(70000)})
        for (int each = 0; each < (int)Collective::Count; each++) {
            Case one;
            one.collective = (Collective)each;
            one.dtype = random() % 2 ? QUOIT_F32 : QUOIT_I64;
            one.count = count;
            if (has_parts(one.collective)) one.counts = uneven_counts(random, one.collective, self.size, count);
            one.root = (int)(random() % (size_t)self.size);
            one.values = random() % 1000;
            std::string wrong = perform(one, self.comm, random() % 2);
            if (!wrong.empty()) return wrong;
        }
    return "";
}

/* Arguments: a namespace for each rank. */
int role_work(ProcessRank &self)
{
    if (!enter(self.argument((size_t)self.rank))) return 2;
    if (self.create(30000) != QUOIT_OK) return 1;
    std::string wrong = exchange_known(self);
    if (wrong.empty()) wrong = every_collective(self);
    if (!wrong.empty()) self.say("wrong %s", wrong.c_str());
    char *text = nullptr;
    for (quoit_format_t format : {QUOIT_FORMAT_TEXT, QUOIT_FORMAT_JSON})
        if (quoit_comm_describe(self.comm, format, &text) == QUOIT_OK) {
            self.say("described %s", text);
            free(text);
        }
    self.say("done");
    self.listen("go");
    if (self.rank == 0) quoit_comm_abort(self.comm, "the test asked for it"); /* so that there are dumps and error texts */
    if (allreduce(self.comm) == QUOIT_OK && allreduce(self.comm, 500000) == QUOIT_OK) self.say("wrong: the abort was not heard");
    self.say("ended %s", quoit_last_error());
    return wrong.empty() ? 0 : 3;
}

/* Arguments: a mode, or a list of transports, for each rank. */
int role_tls(ProcessRank &self)
{
    setenv("QUOIT_TLS", self.argument((size_t)self.rank), 1);
    return self.create(30000) == QUOIT_OK ? 0 : 1;
}

int role_transport(ProcessRank &self)
{
    setenv("QUOIT_TRANSPORT", self.argument((size_t)self.rank), 1);
    return self.create(30000) == QUOIT_OK ? 0 : 1;
}

/* ---------------------------------------------------------------- two hosts and who listens between them */

class TlsHosts : public testing::Test {
protected:
    void SetUp() override
    {
        if (geteuid() != 0) GTEST_SKIP() << "needs root to make network namespaces";
        std::string stem = "quoit-" + std::to_string(getpid()) + "-";
        names = {stem + "t0", stem + "t1"};
        made = true;
        for (auto &name : names)
            if (!shell("ip netns add " + name)) GTEST_SKIP() << "cannot make network namespaces with ip";
        if (!shell("ip -n " + names[0] + " link add eth0 type veth peer name eth0 netns " + names[1])) GTEST_SKIP() << "this kernel has no veth";
        for (int i = 0; i < 2; i++) {
            std::string in = "ip -n " + names[i] + " ";
            ASSERT_TRUE(shell(in + "addr add 10.79.0." + std::to_string(i + 1) + "/24 dev eth0"));
            ASSERT_TRUE(shell(in + "link set eth0 up") && shell(in + "link set lo up"));
        }
        key = folder.write("key", tls_test::new_key());
    }
    void TearDown() override
    {
        for (auto &name : names)
            if (made) shell("ip netns del " + name);
    }
    std::vector<std::string> tls() const { return {"QUOIT_TLS=psk", "QUOIT_TLS_KEY_FILE=" + key}; }

    Folder folder;
    std::vector<std::string> names;
    std::string key;
    bool made = false;
};

/* Everything that passes eth0 of a namespace. */
class Capture {
public:
    explicit Capture(const std::string &name)
    {
        std::thread([&] { /* a thread can live elsewhere than its process */
            if (!enter(name.c_str())) return;
            fd_ = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL));
            sockaddr_ll address = {};
            address.sll_family = AF_PACKET;
            address.sll_protocol = htons(ETH_P_ALL);
            address.sll_ifindex = (int)if_nametoindex("eth0");
            int room = 64 << 20;
            setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
            if (bind(fd_, (sockaddr *)&address, sizeof address) != 0) abort();
        }).join();
        if (fd_ >= 0) reader_ = std::thread([this] { read_all(); });
    }
    ~Capture() { finish(); }
    bool works() const { return fd_ >= 0; }
    const std::string &finish()
    {
        stop_ = true;
        if (reader_.joinable()) reader_.join();
        if (fd_ >= 0) {
            tpacket_stats statistics = {};
            socklen_t size = sizeof statistics;
            getsockopt(fd_, SOL_PACKET, PACKET_STATISTICS, &statistics, &size);
            dropped = statistics.tp_drops;
            close(fd_);
        }
        fd_ = -1;
        return seen_;
    }
    unsigned dropped = 0;

private:
    void read_all()
    {
        std::vector<char> packet(1 << 18);
        for (;;) {
            bool last = stop_;
            pollfd ready = {fd_, POLLIN, 0};
            poll(&ready, 1, last ? 0 : 50);
            ssize_t got = recv(fd_, packet.data(), packet.size(), MSG_DONTWAIT);
            if (got > 0)
                seen_.append(packet.data(), (size_t)got);
            else if (last)
                return;
        }
    }
    int fd_ = -1;
    std::atomic<bool> stop_{false};
    std::thread reader_;
    std::string seen_;
};

/* Every file of the folder belongs to its owner alone; all of them together. */
std::string read_private_files(const std::string &path, int *count)
{
    std::string all;
    for (auto &entry : std::filesystem::recursive_directory_iterator(path)) {
        struct stat file;
        EXPECT_EQ(0, stat(entry.path().c_str(), &file));
        EXPECT_EQ(0u, file.st_mode & 077) << entry.path() << " can be reached by others";
        if (!entry.is_regular_file()) continue;
        all += read_file(entry.path());
        (*count)++;
    }
    return all;
}

/* Files without a name: memory shared with other processes. A socket's inode in /proc has mode 0777 and cannot be opened at all. */
void expect_private_descriptors(pid_t pid)
{
    int segments = 0;
    for (auto &entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
        std::error_code gone;
        std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
        if (gone || !has(target, "memfd:quoit")) continue;
        struct stat file;
        ASSERT_EQ(0, stat(entry.path().c_str(), &file));
        EXPECT_EQ(0u, file.st_mode & 077) << target;
        segments++;
    }
    EXPECT_GE(segments, 2) << "arena and journal were looked for";
}

std::vector<unsigned char> bytes_of(const std::string &hex)
{
    std::vector<unsigned char> bytes;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes.push_back((unsigned char)strtoul(hex.substr(i, 2).c_str(), nullptr, 16));
    return bytes;
}

/* Out of the roster (scheduler/bootstrap.c), where a store that is a file has it. */
std::string job_secret(const std::string &store)
{
    size_t at = store.rfind("quoit/roster"), begin = at == std::string::npos ? at : store.find(std::string("RS\0\0\4\0\0\0", 8), at);
    return begin == std::string::npos ? "" : store.substr(begin + 16, 32);
}

} // namespace

TEST_F(TlsHosts, EveryCollectiveAndNothingReadableOnTheWire)
{
    for (bool secure : {false, true}) {
        SCOPED_TRACE(secure ? "with TLS" : "plain");
        Folder out, store;
        std::vector<std::string> environment = secure ? tls() : std::vector<std::string>{};
        for (auto &each : {"QUOIT_LOG=debug", "QUOIT_TRANSPORT=shm,tcp", "QUOIT_INTERFACE=eth0"}) environment.push_back(each);
        environment.push_back("QUOIT_LOG_FILE=" + out.file("log.%r"));
        environment.push_back("QUOIT_TRACE=" + out.file("trace.%r.json"));
        environment.push_back("QUOIT_DUMP=" + out.file("dump.%r.json"));
        Capture capture(names[0]);
        ASSERT_TRUE(capture.works());
        std::string said, secret;
        {
            Processes ranks("work", {0, 0, 1, 1}, {names[0], names[0], names[1], names[1]}, store.file("store"), environment);
            for (int rank = 0; rank < 4; rank++) ASSERT_EQ("yes", ranks.wait_line(rank, "done", 60)) << "seed " << seed();
            expect_private_descriptors(ranks.pid(0));
            int files = 0;
            read_private_files(out.path, &files);
            EXPECT_GE(files, 4) << "logs";
            secret = job_secret(read_private_files(store.path, &files));
            ASSERT_EQ(32u, secret.size());
            for (int rank = 0; rank < 4; rank++) ranks.tell(rank, "go");
            for (int rank = 0; rank < 4; rank++) EXPECT_EQ(0, ranks.wait_exit(rank, 30)) << ranks.output(rank);
            for (int rank = 0; rank < 4; rank++) said += ranks.output(rank);
        }
        const std::string &wire = capture.finish();
        EXPECT_EQ(0u, capture.dropped) << "packets were missed";
        EXPECT_GT(wire.size(), 1000000u);
        EXPECT_EQ(!secure, has(wire, KNOWN)) << "of " << wire.size() << " bytes on the wire";
        EXPECT_EQ(!secure, has(wire, "QtHs"));
        EXPECT_EQ(secure, has(said, ", 2 sockets, TLSv1.3 TLS_AES_128_GCM_SHA256 (psk)")) << said;
        EXPECT_EQ(secure, has(said, "2 hosts: 2 + 2 ranks, TLS between hosts (psk)")) << said;
        EXPECT_TRUE(has(said, secure ? "\"tls\": \"psk\"" : "\"tls\": \"off\"")) << said;
        EXPECT_TRUE(has(said, "shm")) << "ranks of a host do not use shared memory: " << said;
        int files = 0;
        std::string written = said + read_private_files(out.path, &files);
        EXPECT_GE(files, 12) << "logs, traces and dumps";
        EXPECT_TRUE(has(written, "connected with rank") && has(written, "the test asked for it"));
        std::string hex = read_file(key).substr(0, 64);
        std::vector<unsigned char> raw = bytes_of(hex);
        for (size_t at = 0; at + 8 <= secret.size(); at += 4) {
            EXPECT_FALSE(has(written, secret.substr(at, 8))) << "a part of the job's secret";
            EXPECT_FALSE(has(wire, secret.substr(at, 8))) << "a part of the job's secret, on the wire";
        }
        for (size_t at = 0; at + 8 <= raw.size(); at += 4) {
            EXPECT_FALSE(has(written, hex.substr(2 * at, 16))) << "a part of the key, as digits";
            EXPECT_FALSE(has(written, std::string(raw.begin() + (long)at, raw.begin() + (long)at + 8))) << "a part of the key";
            EXPECT_FALSE(has(wire, std::string(raw.begin() + (long)at, raw.begin() + (long)at + 8))) << "a part of the key, on the wire";
        }
    }
}

TEST(TlsJob, RanksWithDifferentModesGetOneErrorThatNamesBoth)
{
    Folder folder;
    std::string key = folder.write("key", tls_test::new_key());
    tls_test::Authority ca(folder, "ca");
    tls_test::Credentials own = ca.issue("own");
    std::vector<std::string> environment = {"QUOIT_INTERFACE=lo", "QUOIT_TLS_KEY_FILE=" + key, "QUOIT_TLS_CERTIFICATE=" + own.certificate,
                                            "QUOIT_TLS_PRIVATE_KEY=" + own.key, "QUOIT_TLS_CA=" + ca.file};
    struct { std::vector<std::string> modes; const char *one, *other; } cases[] = {
        {{"psk", "psk", "off"}, "rank 2 (", "with QUOIT_TLS=off, but rank 0 ("}, {{"off", "psk", "off"}, "rank 1 (", "with QUOIT_TLS=psk, but rank 0 ("},
        {{"off", "psk", "psk"}, "rank 1 (", "with QUOIT_TLS=psk, but rank 0 ("}, {{"psk", "psk", "certificates"}, "rank 2 (", "with QUOIT_TLS=certificates, but rank 0 ("}};
    for (auto &each : cases)
        for (const Hosts &hosts : {Hosts{0, 0, 0}, Hosts{0, 1, 2}}) {
            Processes ranks("tls", hosts, each.modes, "", environment);
            for (int rank = 0; rank < 3; rank++) {
                std::string text = ranks.wait_line(rank, "create:", 20);
                EXPECT_EQ(1, ranks.wait_exit(rank, 20));
                EXPECT_TRUE(has(text, each.one) && has(text, each.other)) << text;
                EXPECT_TRUE(has(text, "with QUOIT_TLS=" + each.modes[0] + "; set the same on all ranks")) << text;
            }
        }
}

/* Somebody who writes to the store says of every rank that it is plain: a rank goes by its own setting. */
TEST(TlsJob, TheStoreCannotTalkARankIntoPlainText)
{
    MemoryStore memory;
    memory.rewrite = [](const std::string &key, std::string &value) {
        if (key.find("quoit/record/") == 0) value[80] = 1; /* field tls; rank 0 then sends a roster that agrees with nobody */
    };
    World world{.host_of = {0, 1}};
    world.store = &memory;
    run_engines(world, [&](Rank &self, MemoryStore &shared) {
        quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
        config.timeout_ms = 20000;
        quoit_store_t *store = shared.open();
        EXPECT_EQ(comm_create_on(self.engine, store, self.rank, self.size, &config, &self.comm), QUOIT_ERR_MISMATCH);
        EXPECT_TRUE(has(quoit_last_error(), "QUOIT_TLS=off") && has(quoit_last_error(), "QUOIT_TLS=psk")) << quoit_last_error();
        quoit_store_close(store);
    });
}

TEST(TlsJob, TransportsWithoutTlsAreRefusedByName)
{
    Folder folder;
    std::string key = folder.write("key", tls_test::new_key());
    std::vector<std::string> environment = {"QUOIT_INTERFACE=lo", "QUOIT_TLS=psk", "QUOIT_TLS_KEY_FILE=" + key};
    for (const char *transport : {"ucx", "verbs"}) {
        std::string list = std::string("shm,") + transport;
        Processes ranks("transport", {0}, {list}, "", environment);
        std::string text = ranks.wait_line(0, "create:", 20);
        EXPECT_EQ(1, ranks.wait_exit(0, 20));
        EXPECT_TRUE(has(text, std::string("transport ") + transport + " sends plain text between hosts, and QUOIT_TLS=psk asks for TLS")) << text;
    }
    Processes ranks("transport", {0, 1}, {"shm,tcp", "auto"}, "", environment);
    for (int rank = 0; rank < 2; rank++) EXPECT_EQ(0, ranks.wait_exit(rank, 20)) << ranks.output(rank);
}

TEST(TlsJob, ALibraryThatIsMissingIsAnErrorThatSaysSo)
{
    Folder folder;
    std::string key = folder.write("key", tls_test::new_key());
    struct { const char *library, *error; } cases[] = {
        {"libnothing-of-the-kind.so", "tcp: QUOIT_TLS=psk: OpenSSL was not found: libnothing-of-the-kind.so: "},
        {"libm.so.6", "tcp: QUOIT_TLS=psk: QUOIT_TLS_LIBRARY=libm.so.6 has no function "}};
    for (auto &each : cases) {
        Processes ranks("transport", {0}, {"auto"}, "", {"QUOIT_INTERFACE=lo", "QUOIT_TLS=psk", "QUOIT_TLS_KEY_FILE=" + key, std::string("QUOIT_TLS_LIBRARY=") + each.library});
        std::string text = ranks.wait_line(0, "create:", 20);
        EXPECT_EQ(1, ranks.wait_exit(0, 20));
        EXPECT_TRUE(has(text, each.error)) << text;
    }
}

int main(int count, char **arguments)
{
    if (is_process_rank()) return run_role({{"work", role_work}, {"tls", role_tls}, {"transport", role_transport}});
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
