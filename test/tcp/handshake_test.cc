/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake's state machines against each other, and against everything else. */
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

extern "C" {
#include "base/status.h"
#include "transport/framing/handshake.h"
}

namespace {

const quoit_process_id_t CLIENT = {1, 2}, SERVER = {3, 4}, OTHER = {3, 5};
constexpr uint64_t JOB = 77;
const std::string SECRET = "thirty-two bytes of good secret!";

/* Everything this side has to say, in portions of at most `most` bytes; appended to `wire`. */
void say(handshake_t *from, std::string *wire, size_t most = 1000)
{
    for (size_t length; ; ) {
        const void *output = handshake_output(from, &length);
        if (length == 0) return;
        if (length > most) length = most;
        wire->append(static_cast<const char *>(output), length);
        handshake_sent(from, length);
    }
}

/* Hand over what is wanted, in portions of at most `most`; what is not wanted stays on the wire. */
void hear(handshake_t *to, std::string *wire, size_t most = 1000)
{
    for (size_t wants; !wire->empty() && (wants = handshake_wants(to)) > 0;) {
        size_t length = std::min({wants, wire->size(), most});
        handshake_received(to, wire->data(), length);
        wire->erase(0, length);
    }
}

struct Sides {
    handshake_t client, server;
    std::string to_server, to_client;      /* under way */
    std::string all_to_server, all_to_client; /* recorded */

    explicit Sides(const std::string &secret = SECRET, quoit_process_id_t wanted = SERVER)
    {
        EXPECT_EQ(QUOIT_OK, handshake_connect(&client, JOB, CLIENT, wanted, 3, 1, secret.data(), secret.size()));
        EXPECT_EQ(QUOIT_OK, handshake_listen(&server, SERVER));
    }
    /* One exchange of whatever there is; the server's caller knows `secret` and accepts. */
    void turn(const std::string &secret, size_t most)
    {
        std::string said;
        say(&client, &said, most);
        to_server += said, all_to_server += said;
        hear(&server, &to_server, most);
        if (server.state == HANDSHAKE_WANTS_SECRET) {
            EXPECT_EQ(QUOIT_OK, handshake_secret(&server, secret.data(), secret.size()));
        }
        if (server.state == HANDSHAKE_WANTS_VERDICT) handshake_accept(&server);
        said.clear();
        say(&server, &said, most);
        to_client += said, all_to_client += said;
        hear(&client, &to_client, most);
    }
    void run(const std::string &secret = SECRET, size_t most = 1000)
    {
        for (int i = 0; i < 6; i++) turn(secret, most);
    }
};

} // namespace

TEST(Handshake, BothSidesKnowEachOther)
{
    Sides sides;
    sides.run();
    EXPECT_EQ(HANDSHAKE_DONE, sides.client.state);
    EXPECT_EQ(HANDSHAKE_DONE, sides.server.state);
    EXPECT_EQ(JOB, sides.server.job);
    EXPECT_EQ(CLIENT.low, sides.server.peer.low);
    EXPECT_EQ(CLIENT.high, sides.server.peer.high);
    EXPECT_EQ(3, sides.server.pipes);
    EXPECT_EQ(1, sides.server.pipe);
    EXPECT_LE(sides.all_to_server.size(), (size_t)HANDSHAKE_CAPACITY);
}

TEST(Handshake, ByteByByte)
{
    Sides sides;
    sides.run(SECRET, 1);
    EXPECT_EQ(HANDSHAKE_DONE, sides.client.state);
    EXPECT_EQ(HANDSHAKE_DONE, sides.server.state);
}

TEST(Handshake, NothingBehindItIsRead)
{
    Sides sides;
    std::string after = "frames begin here";
    for (int i = 0; i < 6; i++) {
        sides.turn(SECRET, 1000);
        if (sides.client.state == HANDSHAKE_DONE && after.size() > 0) {
            sides.to_client += after;
            hear(&sides.client, &sides.to_client);
            sides.to_server += after;
            hear(&sides.server, &sides.to_server);
            break;
        }
    }
    EXPECT_EQ(after, sides.to_client);
    EXPECT_EQ(after, sides.to_server);
    EXPECT_EQ(0u, handshake_wants(&sides.client));
    EXPECT_EQ(0u, handshake_wants(&sides.server));
}

TEST(Handshake, TheServerWaitsForTheSecret)
{
    Sides sides;
    say(&sides.client, &sides.to_server);
    sides.to_server += "more than a hello";
    hear(&sides.server, &sides.to_server);
    EXPECT_EQ(HANDSHAKE_WANTS_SECRET, sides.server.state);
    EXPECT_EQ("more than a hello", sides.to_server);
    size_t length;
    handshake_output(&sides.server, &length);
    EXPECT_EQ(0u, length) << "nothing is told before the secret is known";
}

TEST(Handshake, WrongSecretEndsOnBothSidesWithTheReason)
{
    Sides sides("another secret");
    sides.run();
    EXPECT_EQ(HANDSHAKE_FAILED, sides.client.state);
    EXPECT_EQ(HANDSHAKE_FAILED, sides.server.state);
    EXPECT_EQ(HANDSHAKE_REASON_SECRET, sides.client.reason);
    EXPECT_EQ(HANDSHAKE_REASON_SECRET, sides.server.reason);
}

TEST(Handshake, AClientWithoutTheSecretIsRefusedEvenIfItDoesNotCheck)
{
    /* A client that takes any challenge: its proof is made up. */
    Sides sides;
    say(&sides.client, &sides.to_server);
    hear(&sides.server, &sides.to_server);
    ASSERT_EQ(QUOIT_OK, handshake_secret(&sides.server, SECRET.data(), SECRET.size()));
    Sides good; /* the form of a proof, from another connection */
    good.run();
    std::string proof = good.all_to_server.substr(good.all_to_server.size() - 40);
    hear(&sides.server, &proof);
    EXPECT_EQ(HANDSHAKE_FAILED, sides.server.state);
    EXPECT_EQ(HANDSHAKE_REASON_SECRET, sides.server.reason);
}

TEST(Handshake, ARecordingProvesNothing)
{
    Sides recorded;
    recorded.run();
    ASSERT_EQ(HANDSHAKE_DONE, recorded.server.state);
    /* To a server. */
    handshake_t server;
    ASSERT_EQ(QUOIT_OK, handshake_listen(&server, SERVER));
    std::string replay = recorded.all_to_server;
    hear(&server, &replay);
    ASSERT_EQ(HANDSHAKE_WANTS_SECRET, server.state);
    ASSERT_EQ(QUOIT_OK, handshake_secret(&server, SECRET.data(), SECRET.size()));
    hear(&server, &replay);
    EXPECT_EQ(HANDSHAKE_FAILED, server.state);
    EXPECT_EQ(HANDSHAKE_REASON_SECRET, server.reason);
    /* To a client. */
    handshake_t client;
    ASSERT_EQ(QUOIT_OK, handshake_connect(&client, JOB, CLIENT, SERVER, 3, 1, SECRET.data(), SECRET.size()));
    replay = recorded.all_to_client;
    hear(&client, &replay);
    EXPECT_EQ(HANDSHAKE_FAILED, client.state);
    EXPECT_EQ(HANDSHAKE_REASON_SECRET, client.reason);
}

TEST(Handshake, AServersProofSentBackToItIsWorthless)
{
    Sides sides;
    say(&sides.client, &sides.to_server);
    hear(&sides.server, &sides.to_server);
    ASSERT_EQ(QUOIT_OK, handshake_secret(&sides.server, SECRET.data(), SECRET.size()));
    say(&sides.server, &sides.to_client);
    std::string mac = sides.to_client.substr(sides.to_client.size() - 32);
    Sides good;
    good.run();
    std::string forged = good.all_to_server.substr(good.all_to_server.size() - 40, 8) + mac;
    hear(&sides.server, &forged);
    EXPECT_EQ(HANDSHAKE_FAILED, sides.server.state);
}

TEST(Handshake, EveryFieldIsCoveredByTheProof)
{
    /* Someone between the two changes one bit of HELLO or CHALLENGE: no connection comes of it. */
    Sides clean;
    clean.run();
    size_t hello = clean.all_to_server.size() - 40, challenge = clean.all_to_client.size() - 8;
    for (size_t bit = 0; bit < (hello + challenge) * 8; bit++) {
        Sides sides;
        say(&sides.client, &sides.to_server);
        size_t byte = bit / 8;
        if (byte < hello) sides.to_server[byte] = (char)(sides.to_server[byte] ^ (1 << bit % 8));
        hear(&sides.server, &sides.to_server);
        if (sides.server.state == HANDSHAKE_WANTS_SECRET) {
            ASSERT_EQ(QUOIT_OK, handshake_secret(&sides.server, SECRET.data(), SECRET.size()));
            say(&sides.server, &sides.to_client);
            if (byte >= hello) sides.to_client[byte - hello] = (char)(sides.to_client[byte - hello] ^ (1 << bit % 8));
        }
        for (int i = 0; i < 4; i++) sides.turn(SECRET, 1000);
        ASSERT_FALSE(sides.client.state == HANDSHAKE_DONE) << "bit " << bit;
        ASSERT_FALSE(sides.server.state == HANDSHAKE_DONE) << "bit " << bit;
    }
}

TEST(Handshake, AnotherProcessIsNamedAsSuch)
{
    Sides sides(SECRET, OTHER);
    sides.run();
    EXPECT_EQ(HANDSHAKE_FAILED, sides.client.state);
    EXPECT_EQ(HANDSHAKE_REASON_PROCESS, sides.client.reason);
    EXPECT_EQ(HANDSHAKE_REASON_PROCESS, sides.server.reason);
}

TEST(Handshake, RefusalsReachTheClient)
{
    for (int reason = 0; reason < HANDSHAKE_REASON_END; reason++) {
        Sides sides;
        say(&sides.client, &sides.to_server);
        hear(&sides.server, &sides.to_server);
        ASSERT_EQ(QUOIT_OK, handshake_secret(&sides.server, SECRET.data(), SECRET.size()));
        say(&sides.server, &sides.to_client);
        hear(&sides.client, &sides.to_client);
        say(&sides.client, &sides.to_server);
        hear(&sides.server, &sides.to_server);
        ASSERT_EQ(HANDSHAKE_WANTS_VERDICT, sides.server.state);
        handshake_refuse(&sides.server, (handshake_reason_t)reason);
        EXPECT_EQ(HANDSHAKE_FAILED, sides.server.state);
        say(&sides.server, &sides.to_client);
        hear(&sides.client, &sides.to_client, 1);
        EXPECT_EQ(HANDSHAKE_FAILED, sides.client.state);
        EXPECT_EQ(reason, sides.client.reason);
        EXPECT_NE(std::string(), handshake_reason_text((handshake_reason_t)reason));
    }
}

TEST(Handshake, AnotherVersionIsToldSo)
{
    Sides sides;
    say(&sides.client, &sides.to_server);
    sides.to_server[4] = 9;
    hear(&sides.server, &sides.to_server);
    EXPECT_EQ(HANDSHAKE_FAILED, sides.server.state);
    EXPECT_EQ(HANDSHAKE_REASON_VERSION, sides.server.reason);
    say(&sides.server, &sides.to_client);
    std::string other = sides.to_client;
    hear(&sides.client, &sides.to_client);
    EXPECT_EQ(HANDSHAKE_REASON_VERSION, sides.client.reason);
    /* And a client that is answered in another version knows why. */
    Sides again;
    other[4] = 9;
    hear(&again.client, &other);
    EXPECT_EQ(HANDSHAKE_FAILED, again.client.state);
    EXPECT_EQ(HANDSHAKE_REASON_VERSION, again.client.reason);
}

TEST(Handshake, GarbageFailsAndIsNotAnswered)
{
    const uint64_t seed = 20240607;
    std::mt19937_64 random(seed);
    const std::string known[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n", std::string(300, '\0')};
    for (int i = 0; i < 3000; i++) {
        std::string bytes;
        if (i < 3)
            bytes = known[i];
        else
            for (size_t n = random() % 300; n > 0; n--) bytes += (char)random();
        for (bool server : {true, false}) {
            Sides sides;
            handshake_t *victim = server ? &sides.server : &sides.client;
            if (!server) {
                std::string dropped;
                say(&sides.client, &dropped);
            }
            std::string wire = bytes;
            hear(victim, &wire, 1 + random() % 64);
            size_t length;
            handshake_output(victim, &length);
            EXPECT_EQ(0u, length) << "seed " << seed << " case " << i;
            if (bytes.size() < 8) continue;
            EXPECT_EQ(HANDSHAKE_FAILED, victim->state) << "seed " << seed << " case " << i;
            EXPECT_EQ(bytes.size() - 8, wire.size()) << "read beyond a header that is none, seed " << seed << " case " << i;
        }
    }
}

/* It may be a peer for which QUOIT_TLS is set. Only a server can meet one. */
TEST(Handshake, AClientThatBeginsWithTlsIsToldWhatItHasMet)
{
    const std::string client_hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
    Sides sides;
    std::string wire = client_hello;
    hear(&sides.server, &wire, 64);
    EXPECT_EQ(HANDSHAKE_FAILED, sides.server.state);
    EXPECT_EQ(HANDSHAKE_REASON_TLS, sides.server.reason);
    EXPECT_EQ(3u, wire.size()) << "read beyond the header";
    std::string hello, answer;
    say(&sides.server, &answer);
    EXPECT_EQ("QtHs", answer.substr(0, 4));
    say(&sides.client, &hello);
    hear(&sides.client, &answer, 64);
    EXPECT_EQ(HANDSHAKE_FAILED, sides.client.state);
    EXPECT_EQ(HANDSHAKE_REASON_TLS, sides.client.reason);
    Sides again;
    say(&again.client, &hello);
    wire = client_hello;
    hear(&again.client, &wire, 64);
    EXPECT_EQ(HANDSHAKE_REASON_NONE, again.client.reason);
}

TEST(Handshake, MutatedMessagesStayWithinTheBuffers)
{
    const uint64_t seed = 99;
    std::mt19937_64 random(seed);
    for (int i = 0; i < 3000; i++) {
        Sides sides;
        for (int turn = 0; turn < 5; turn++) {
            say(&sides.client, &sides.to_server);
            if (random() % 2 && !sides.to_server.empty()) sides.to_server[random() % sides.to_server.size()] ^= (char)(1 + random() % 255);
            hear(&sides.server, &sides.to_server);
            if (sides.server.state == HANDSHAKE_WANTS_SECRET) handshake_secret(&sides.server, SECRET.data(), SECRET.size());
            if (sides.server.state == HANDSHAKE_WANTS_VERDICT) handshake_accept(&sides.server);
            say(&sides.server, &sides.to_client);
            if (random() % 2 && !sides.to_client.empty()) sides.to_client[random() % sides.to_client.size()] ^= (char)(1 + random() % 255);
            hear(&sides.client, &sides.to_client);
        }
        ASSERT_LE(sides.client.in_length, sizeof sides.client.in) << "seed " << seed << " case " << i;
        ASSERT_LE(sides.server.in_length, sizeof sides.server.in) << "seed " << seed << " case " << i;
    }
}

TEST(Handshake, TruncatedMessagesJustWait)
{
    Sides whole;
    whole.run();
    for (size_t length = 0; length < whole.all_to_server.size() - 40; length++) {
        Sides sides;
        std::string part;
        say(&sides.client, &part);
        part.resize(length);
        hear(&sides.server, &part);
        EXPECT_EQ(HANDSHAKE_RUNNING, sides.server.state) << length << " bytes";
        EXPECT_GT(handshake_wants(&sides.server), 0u) << length << " bytes";
    }
}

TEST(Handshake, WrongLengthsAndTypesFail)
{
    for (int type = 0; type < 256; type++) {
        Sides sides;
        say(&sides.client, &sides.to_server);
        if ((unsigned char)sides.to_server[5] == type) continue;
        sides.to_server[5] = (char)type;
        hear(&sides.server, &sides.to_server);
        EXPECT_EQ(HANDSHAKE_FAILED, sides.server.state) << "type " << type;
    }
    for (int length : {0, 7, 8, 9, 67, 69, 255, 256, 65535}) {
        Sides sides;
        say(&sides.client, &sides.to_server);
        if ((unsigned char)sides.to_server[6] + 256 * (unsigned char)sides.to_server[7] == length) continue;
        sides.to_server[6] = (char)(length & 255), sides.to_server[7] = (char)(length >> 8);
        hear(&sides.server, &sides.to_server);
        EXPECT_EQ(HANDSHAKE_FAILED, sides.server.state) << "length " << length;
    }
}

TEST(Handshake, PipeNumbersMustFit)
{
    for (uint16_t pipe : {3, 4, 65535}) {
        handshake_t client, server;
        ASSERT_EQ(QUOIT_OK, handshake_connect(&client, JOB, CLIENT, SERVER, 3, pipe, SECRET.data(), SECRET.size()));
        ASSERT_EQ(QUOIT_OK, handshake_listen(&server, SERVER));
        std::string wire;
        say(&client, &wire);
        hear(&server, &wire);
        EXPECT_EQ(HANDSHAKE_FAILED, server.state) << "pipe " << pipe << " of 3";
    }
}

TEST(Handshake, SecretsHaveALimit)
{
    handshake_t client;
    std::string longest(HANDSHAKE_SECRET_CAPACITY, 's');
    EXPECT_EQ(QUOIT_OK, handshake_connect(&client, JOB, CLIENT, SERVER, 1, 0, longest.data(), longest.size()));
    longest += 's';
    EXPECT_EQ(QUOIT_ERR_INVALID, handshake_connect(&client, JOB, CLIENT, SERVER, 1, 0, longest.data(), longest.size()));
    Sides sides;
    say(&sides.client, &sides.to_server);
    hear(&sides.server, &sides.to_server);
    EXPECT_EQ(QUOIT_ERR_INVALID, handshake_secret(&sides.server, longest.data(), longest.size()));
    EXPECT_EQ(QUOIT_OK, handshake_secret(&sides.server, SECRET.data(), SECRET.size())) << "still waiting for a good one";
}

TEST(Handshake, SecretsAreForgottenAtTheEnd)
{
    Sides sides;
    sides.run();
    std::string zeros(HANDSHAKE_SECRET_CAPACITY, '\0');
    EXPECT_EQ(0, memcmp(zeros.data(), sides.client.secret, zeros.size()));
    EXPECT_EQ(0, memcmp(zeros.data(), sides.server.secret, zeros.size()));
}
