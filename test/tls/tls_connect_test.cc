/* SPDX-License-Identifier: Apache-2.0 */
/* How TLS connections come about, or not: both modes, what does not fit, files of keys, strangers and deadlines. */
#include "../tcp/tcp_harness.h"
#include "tls_files.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <sys/wait.h>

using namespace tcp_test;
using tls_test::Authority;
using tls_test::certificates;
using tls_test::Credentials;
using tls_test::Folder;
using tls_test::has;
using tls_test::new_key;
using tls_test::new_log;
using tls_test::plain;
using tls_test::psk;

namespace {

/* Everything that can be wished for. */
struct Keys {
    Folder folder;
    std::string key = folder.write("key", new_key()), other_key = folder.write("other", new_key());
    Authority ca{folder, "ours"}, other_ca{folder, "theirs"};
    Credentials one = ca.issue("one"), two = ca.issue("two"), foreign = other_ca.issue("foreign"),
                expired = ca.issue("expired", {.from_days = -10, .until_days = -1}), early = ca.issue("early", {.from_days = 5}),
                servers = ca.issue("servers", {.usage = "serverAuth"}), both = ca.issue("both", {.usage = "serverAuth,clientAuth"});
};

void expect_exchange(Node &a, Node &b, const std::string &description)
{
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    EXPECT_TRUE(has(transport_tcp.describe(ab), description)) << transport_tcp.describe(ab);
    EXPECT_TRUE(has(transport_tcp.describe(ba), description)) << transport_tcp.describe(ba);
    Pair pair{a, b, ab, ba};
    for (size_t length : {0, 1, 100, 8191, 8192, 8193, 16384 - 65, 16384, 16385, 300000, 5000000}) ASSERT_TRUE(pair.exchange(length));
    transport_tcp.disconnect(ab);
    EXPECT_TRUE(run({&a, &b}, [&] { return b.closed() != nullptr; }));
    EXPECT_EQ(QUOIT_OK, b.closed()->status) << b.closed()->text;
    transport_tcp.disconnect(ba);
    EXPECT_TRUE(run({&a, &b}, [&] { return list_is_empty(&a.inner()->base.all) && list_is_empty(&b.inner()->base.all); }));
}

/* In a process of its own: the log has a line a second for each source, and all come from the same. */
void in_child(const std::function<void()> &body)
{
    bool before = testing::Test::HasFailure();
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        body();
        fflush(stdout);
        _exit(testing::Test::HasFailure() && !before);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(0, status) << "the child's output is above";
}

/* The caller's error; the listener's log goes to *log. It must not be the deadline that ends it, unless told so. */
std::string failure(const Settings &caller, const Settings &listener, std::string *log)
{
    tcp_times_t times = TCP_TIMES_DEFAULT;
    Node a(1, caller, times), b(2, listener, times);
    EXPECT_EQ(QUOIT_OK, a.open_status) << a.open_text;
    EXPECT_EQ(QUOIT_OK, b.open_status) << b.open_text;
    if (a.open_status != QUOIT_OK || b.open_status != QUOIT_OK) return "";
    a.trust(), b.trust();
    new_log();
    quoit_endpoint_t *ab = a.connect(b, 15000);
    EXPECT_TRUE(run({&a, &b}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(QUOIT_ERR_NETWORK, status_of(ab)) << error_text();
    std::string text = status_of(ab) < 0 ? error_text() : "";
    run({&a, &b}, [&] { return b.inner()->stranger_count == 0; });
    EXPECT_EQ(0, b.inner()->stranger_count);
    transport_tcp.disconnect(ab);
    *log = new_log();
    return text;
}

} // namespace

/* Those in children come first: they inherit what the log knows of lines that were left out. */
TEST(TlsConnect, WhatDoesNotFitIsToldOnBothSides)
{
    Keys keys;
    Settings key = psk(keys.key), other_key = psk(keys.other_key), one = certificates(keys.one, keys.ca.file),
             foreign = certificates(keys.foreign, keys.ca.file), foreign_all = certificates(keys.foreign, keys.other_ca.file),
             expired = certificates(keys.expired, keys.ca.file), early = certificates(keys.early, keys.ca.file),
             servers = certificates(keys.servers, keys.ca.file);
    struct { const char *name; const Settings &caller, &listener; const char *error, *log; } cases[] = {
        {"wrong key", key, other_key, "TLS: does not accept our key: its QUOIT_TLS_KEY_FILE holds another one",
         "refused: TLS: its key is another: QUOIT_TLS_KEY_FILE must hold the same on all ranks"},
        {"the listener's CA is unknown", one, foreign, "TLS: its certificate does not come from the CA that QUOIT_TLS_CA names",
         "TLS: does not accept our certificate: it does not come from the CA"},
        {"the caller's CA is unknown", foreign, one, "TLS: does not accept our certificate: it does not come from the CA",
         "TLS: its certificate does not come from the CA that QUOIT_TLS_CA names"},
        {"two CAs", one, foreign_all, "TLS: its certificate does not come from the CA that QUOIT_TLS_CA names", "TLS: "},
        {"the listener's has expired", one, expired, "TLS: its certificate, or one above it, has expired",
         "TLS: does not accept our certificate (QUOIT_TLS_CERTIFICATE): it has expired"},
        {"the caller's has expired", expired, one, "TLS: does not accept our certificate (QUOIT_TLS_CERTIFICATE): it has expired",
         "TLS: its certificate, or one above it, has expired"},
        {"not valid yet", one, early, "TLS: its certificate, or one above it, is not valid yet; are the clocks right?", "TLS: "},
        {"not for this use", servers, one, "TLS: does not accept our certificate (QUOIT_TLS_CERTIFICATE): bad, or not made for this use",
         "TLS: its certificate is not made for this use"},
        {"key and certificates", key, one, "TLS: shows a certificate instead of the pre-shared key; is QUOIT_TLS=certificates there?",
         "TLS: does not accept our certificate: it does not come from the CA that QUOIT_TLS_CA names there, or QUOIT_TLS is psk there"},
        {"certificates and key", one, key, "TLS: finds nothing in common with us; is QUOIT_TLS set to something else there?",
         "TLS: offers no pre-shared key of Quoit; is QUOIT_TLS=certificates there?"},
        {"TLS to plain text", key, plain(), "TLS: speaks plain text; QUOIT_TLS must be the same on both sides",
         "refused: one side speaks TLS, the other plain text; QUOIT_TLS must be the same on both"},
        {"plain text to TLS", plain(), key, "one side speaks TLS, the other plain text; QUOIT_TLS must be the same on both",
         "refused: one side speaks TLS, the other plain text; QUOIT_TLS must be the same on both"},
        {"certificates to plain text", one, plain(), "TLS: speaks plain text; QUOIT_TLS must be the same on both sides", "one side speaks TLS"},
        {"plain text to certificates", plain(), one, "one side speaks TLS, the other plain text", "one side speaks TLS"},
    };
    for (auto &each : cases)
        in_child([&] {
            std::string log, text = failure(each.caller, each.listener, &log);
            EXPECT_TRUE(has(text, each.error)) << each.name << ": " << text;
            EXPECT_TRUE(has(text, "cannot reach rank 2 (testhost, pid 1): tried 127.0.0.1:")) << each.name << ": " << text;
            EXPECT_TRUE(has(text, "must fit on both sides (docs/tls.md)")) << each.name << ": " << text;
            EXPECT_TRUE(has(log, each.log)) << each.name << ": " << log;
        });
}

TEST(TlsConnect, StrangersCostAClosedConnectionAndALine)
{
    Keys keys;
    tcp_times_t times = TCP_TIMES_DEFAULT;
    times.handshake = 300;
    struct { std::string opening; const char *log; bool stays; } cases[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "TLS: speaks no TLS; is another program there?", true},
        {std::string(100000, 'A'), "TLS: speaks no TLS", true},
        {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), "did not finish the handshake in time", true},
        {std::string("\x16\x03\x01\x00\x04\x01\xff\xff\xff", 9), "TLS: ", true},
        {"", "did not finish the handshake in time", true},
        {"", "closed before the handshake", false}};
    for (auto &each : cases) in_child([&] {
        Node a(1, psk(keys.key), times);
        a.trust();
        new_log();
        int fd = stray_socket(a.listens_on());
        ASSERT_GE(fd, 0);
        fcntl(fd, F_SETFL, O_NONBLOCK);
        if (!each.opening.empty()) (void)!send(fd, each.opening.data(), each.opening.size(), MSG_NOSIGNAL);
        if (!each.stays) ::close(fd);
        run({&a}, [&] { return a.inner()->stranger_count > 0; }, 1000);
        ASSERT_TRUE(run({&a}, [&] {
            char bytes[256];
            if (each.stays && recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) == 0) shutdown(fd, SHUT_RDWR);
            return a.inner()->stranger_count == 0;
        }, 3000)) << each.log;
        std::string log = new_log();
        EXPECT_TRUE(has(log, "connection from 127.0.0.1:") && has(log, each.log)) << each.log << ": " << log;
    });
}

/* Another program with OpenSSL, no Quoit: an old version of TLS, and one that does everything right but has no certificate. */
TEST(TlsConnect, AnotherProgramsTlsIsRefused)
{
    Keys keys;
    for (int version : {TLS1_2_VERSION, TLS1_3_VERSION}) in_child([&] {
        Node a(1, certificates(keys.one, keys.ca.file));
        a.trust();
        new_log();
        SSL_CTX *context = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_max_proto_version(context, version);
        SSL *ssl = SSL_new(context);
        int fd = stray_socket(a.listens_on());
        fcntl(fd, F_SETFL, O_NONBLOCK);
        SSL_set_fd(ssl, fd);
        bool ended = run({&a}, [&] {
            char byte;
            int result = SSL_is_init_finished(ssl) ? SSL_read(ssl, &byte, 1) : SSL_connect(ssl);
            int error = SSL_get_error(ssl, result);
            return result <= 0 && error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE;
        }, 5000);
        EXPECT_TRUE(ended);
        ::close(fd);
        SSL_free(ssl);
        SSL_CTX_free(context);
        std::string log = new_log();
        EXPECT_TRUE(has(log, version == TLS1_2_VERSION ? "TLS: does not speak TLS 1.3" : "TLS: shows no certificate; is QUOIT_TLS=psk there?")) << log;
        EXPECT_TRUE(run({&a}, [&] { return a.inner()->stranger_count == 0; }, 3000));
    });
}

TEST(TlsConnect, BothModesCarryMessagesAndSayGoodbye)
{
    Keys keys;
    {
        Node a(1, psk(keys.key)), b(2, psk(keys.key));
        ASSERT_EQ(QUOIT_OK, a.open_status) << a.open_text;
        a.trust(), b.trust();
        expect_exchange(a, b, ", 2 sockets, TLSv1.3 TLS_AES_128_GCM_SHA256 (psk)");
    }
    for (const Credentials *theirs : {&keys.two, &keys.both}) {
        Node a(1, certificates(keys.one, keys.ca.file)), b(2, certificates(*theirs, keys.ca.file));
        ASSERT_EQ(QUOIT_OK, a.open_status) << a.open_text;
        a.trust(), b.trust();
        expect_exchange(a, b, ", 2 sockets, TLSv1.3 TLS_AES_128_GCM_SHA256 (certificates)");
    }
}

TEST(TlsConnect, BothSidesAtOnceOrOneSideOnly)
{
    Keys keys;
    for (int turn = 0; turn < 4; turn++) {
        Node a(1, psk(keys.key)), b(2, psk(keys.key));
        a.trust(), b.trust();
        quoit_endpoint_t *ab = turn < 3 ? a.connect(b) : nullptr, *ba = nullptr;
        if (turn == 1) run_for({&a, &b}, 3);
        if (turn != 2) ba = b.connect(a);
        ASSERT_TRUE(run({&a, &b}, [&] {
            return (!ab || status_of(ab) != QUOIT_IN_PROGRESS) && (!ba || status_of(ba) != QUOIT_IN_PROGRESS);
        })) << turn;
        for (quoit_endpoint_t *end : {ab, ba})
            EXPECT_TRUE(!end || status_of(end) == QUOIT_OK) << error_text();
    }
}

TEST(TlsConnect, SettingsAndFilesAreChecked)
{
    Keys keys;
    Folder &folder = keys.folder;
    auto with = [](Settings settings, const std::string &name, const std::string &value) {
        settings[name] = value;
        return settings;
    };
    std::string secret = new_key(), broken = secret;
    broken[10] = 'x';
    Settings key = psk(keys.key), one = certificates(keys.one, keys.ca.file);
    std::string encrypted = folder.file("encrypted");
    FILE *out = fopen(encrypted.c_str(), "w");
    EVP_PKEY *made = EVP_EC_gen("P-256");
    char password[] = "password";
    PEM_write_PrivateKey(out, made, EVP_aes_128_cbc(), reinterpret_cast<unsigned char *>(password), 8, nullptr, nullptr);
    EVP_PKEY_free(made);
    fclose(out);
    chmod(encrypted.c_str(), 0600);
    struct { Settings settings; std::string error; } cases[] = {
        {with(key, "TLS", "yes"), "QUOIT_TLS=yes: expected off, psk or certificates"},
        {with(key, "TLS_KEY_FILE", ""), "QUOIT_TLS=psk needs QUOIT_TLS_KEY_FILE"},
        {with(key, "TLS_KEY_FILE", folder.file("none")), "none: No such file or directory"},
        {with(key, "TLS_KEY_FILE", folder.path), " is no regular file"},
        {with(key, "TLS_KEY_FILE", folder.write("group", secret, 0640)), "can be reached by others (mode 0640): a key that they know is none; chmod 600"},
        {with(key, "TLS_KEY_FILE", folder.write("other", secret, 0604)), "can be reached by others (mode 0604)"},
        {with(key, "TLS_KEY_FILE", folder.write("short", secret.substr(0, 62))), "does not hold 64 to 128 hexadecimal digits"},
        {with(key, "TLS_KEY_FILE", folder.write("odd", secret.substr(0, 64) + "0")), "does not hold 64 to 128 hexadecimal digits"},
        {with(key, "TLS_KEY_FILE", folder.write("broken", broken)), "does not hold 64 to 128 hexadecimal digits"},
        {with(key, "TLS_KEY_FILE", folder.write("long", std::string(5000, 'a'))), "is longer than any key"},
        {with(key, "TLS_KEY_FILE", folder.write("empty", "")), "does not hold 64 to 128 hexadecimal digits"},
        {with(one, "TLS_CA", ""), "QUOIT_TLS=certificates needs QUOIT_TLS_CA"},
        {with(one, "TLS_PRIVATE_KEY", ""), "QUOIT_TLS=certificates needs QUOIT_TLS_PRIVATE_KEY"},
        {with(one, "TLS_CERTIFICATE", ""), "QUOIT_TLS=certificates needs QUOIT_TLS_CERTIFICATE"},
        {with(one, "TLS_PRIVATE_KEY", keys.two.key), "QUOIT_TLS_PRIVATE_KEY="},
        {with(one, "TLS_PRIVATE_KEY", keys.two.certificate), "QUOIT_TLS_PRIVATE_KEY="},
        {with(one, "TLS_PRIVATE_KEY", encrypted), "is encrypted, and there is nobody to ask for its password"},
        {with(one, "TLS_PRIVATE_KEY", folder.write("open.key", tls_test::read_file(keys.one.key), 0644)), "can be reached by others (mode 0644)"},
        {with(one, "TLS_CERTIFICATE", keys.one.key), "QUOIT_TLS_CERTIFICATE="},
        {with(one, "TLS_CA", folder.file("none")), "QUOIT_TLS_CA="},
    };
    for (auto &each : cases) {
        Node node(1, each.settings);
        EXPECT_EQ(QUOIT_ERR_INVALID, node.open_status) << each.error;
        EXPECT_TRUE(has(node.open_text, each.error)) << each.error << ": " << node.open_text;
        EXPECT_FALSE(has(node.open_text, secret.substr(0, 8))) << node.open_text;
    }
    new_log();
    Node off(1, with(key, "TLS", "off"));
    EXPECT_EQ(QUOIT_OK, off.open_status);
    EXPECT_TRUE(has(new_log(), "keys for TLS are set, but QUOIT_TLS is off"));
}

TEST(TlsConnect, APeerThatSaysNothingMeetsTheDeadline)
{
    Keys keys;
    StrayServer mute;
    Node a(1, psk(keys.key));
    a.trust();
    auto begin = Clock::now();
    quoit_endpoint_t *endpoint = a.connect_to({9, 9}, address_of({mute.name}), 300);
    ASSERT_TRUE(run({&a}, [&] { return status_of(endpoint) != QUOIT_IN_PROGRESS; }));
    EXPECT_GE(elapsed_ms(begin), 290);
    EXPECT_EQ(QUOIT_ERR_TIMEOUT, status_of(endpoint));
    EXPECT_TRUE(has(error_text(), "(connected, but no answer to the TLS handshake)")) << error_text();
    transport_tcp.disconnect(endpoint);
}
