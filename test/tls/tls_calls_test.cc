/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each call of OpenSSL fails once, through the table of functions: the first one, and with QUOIT_TEST_LONG=1 later ones too. Whatever
 * fails, the call that asked for it ends in time with an error that has a text, or all goes well by another try; and nothing leaks
 * (the sanitizers say so).
 */
#include "../tcp/tcp_harness.h"
#include "test/support/built.h"
#include "tls_files.h"

#include <set>

extern "C" {
#include "transport/tls/tls_internal.h"
}

using namespace tcp_test;
using tls_test::Folder;

namespace {

struct Fault {
    const char *name = "";
    int left = 0;           /* calls until it fails */
    bool failed = false;    /* it did */
    bool in_error = false;  /* what SSL_get_error is to say: the newest of the calls that it is asked about failed */
} fault;

bool is_due(const char *name)
{
    if (strcmp(name, fault.name) != 0 || --fault.left != 0) return false;
    fault.failed = true;
    return true;
}

/* A function of the table, in front of the real one. */
template <int Number, typename Function> struct Front;
template <int Number, typename Result, typename... Arguments> struct Front<Number, Result (*)(Arguments...)> {
    static inline Result (*real)(Arguments...) = nullptr;
    static inline const char *name = "";
    static constexpr bool returns = !std::is_void_v<Result>;
    static Result call(Arguments... arguments)
    {
        if constexpr (!returns) {
            real(arguments...);
        } else {
            bool due = is_due(name);
            if (strcmp(name, "SSL_get_error") == 0 && fault.in_error) return (Result)SSL_ERROR_SSL;
            if (strcmp(name, "SSL_do_handshake") == 0 || strcmp(name, "SSL_read_ex") == 0 || strcmp(name, "SSL_write_ex") == 0) fault.in_error = due;
            return due ? Result{} : real(arguments...);
        }
    }
};

std::set<std::string> without_result;

void put_in_front()
{
    const tls_library_t *opened = nullptr;
    ASSERT_EQ(QUOIT_OK, tls_library_open("libssl.so.3", &opened)) << error_text();
    auto *table = const_cast<tls_library_t *>(opened);
#define PUT(function) \
    { \
        using One = Front<__COUNTER__, decltype(table->function)>; \
        One::real = table->function; \
        One::name = #function; \
        if (!One::returns) without_result.insert(#function); \
        table->function = One::call; \
    }
    TLS_FUNCTION_LIST(PUT)
#undef PUT
}

bool done(const quoit_transfer_t &transfer) { return transfer.status != QUOIT_IN_PROGRESS; }

/* Two nodes, a message each way; "" when it went well, else an error's text. */
std::string play(const Settings &settings)
{
    Node a(1, settings), b(2, settings);
    if (a.inner() && a.inner()->tls) a.inner()->tls->renew_after = 20000;
    for (Node *node : {&a, &b})
        if (node->open_status != QUOIT_OK) return node->open_text;
    a.trust(), b.trust();
    const int patience_ms = fault.left > 0 ? 200 : 20000; // where a call is to fail, what is never answered should not take long
    quoit_endpoint_t *ab = a.connect(b, patience_ms), *ba = b.connect(a, patience_ms);
    std::string data(60000, 'd'), room(60000, 'x'), text;
    quoit_transfer_t transfers[4] = {};
    transport_tcp.recv(ab, {1, 1}, room.data(), 30000, &transfers[0]);
    transport_tcp.recv(ba, {1, 1}, room.data() + 30000, 30000, &transfers[1]);
    transport_tcp.send(ab, {1, 1}, data.data(), 30000, &transfers[2]);
    transport_tcp.send(ba, {1, 1}, data.data(), 30000, &transfers[3]);
    auto ended = [&] { return done(transfers[0]) && done(transfers[1]) && done(transfers[2]) && done(transfers[3]); };
    /* One side's error is enough: the other may stand by a connection that it began, and would hear of it from the engine. */
    EXPECT_TRUE(run({&a, &b}, [&] { return ended() || status_of(ab) < 0 || status_of(ba) < 0; }, 20000)) << fault.name << " failed, and nobody noticed";
    for (quoit_endpoint_t *end : {ab, ba})
        if (status_of(end) < 0) text = error_text();
    bool good = transfers[0].status == QUOIT_OK && transfers[1].status == QUOIT_OK;
    EXPECT_TRUE(!good || room == data) << fault.name;
    EXPECT_TRUE(good || !text.empty()) << fault.name << ": an error without a text";
    transport_tcp.cancel(a.transport, 1), transport_tcp.cancel(b.transport, 1);
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
    run({&a, &b}, [&] { return transport_tcp.idle(a.transport) && transport_tcp.idle(b.transport); }, 2000);
    return good ? "" : text;
}

/* Calls that have no way to fail, or whose NULL means something else, or that are made once in a process. */
bool cannot_fail(const std::string &name)
{
    for (const char *each : {"OpenSSL_version_num", "OPENSSL_init_ssl", "ERR_peek_error", "ERR_reason_error_string", "SSL_CTX_set_options", "SSL_get_ex_data",
                             "SSL_get_error", "SSL_get_version", "SSL_get_verify_result", "SSL_alert_desc_string_long", "SSL_shutdown", "BIO_get_data",
                             "SSL_has_pending", "BIO_free", "X509_verify_cert_error_string"})
        if (name == each) return true;
    return false;
}

} // namespace

TEST(TlsCalls, EachFailsOnceAndSomebodyHearsOfIt)
{
    Folder folder;
    tls_test::Authority ca(folder, "ca");
    Settings modes[] = {tls_test::psk(folder.write("key", tls_test::new_key())), tls_test::certificates(ca.issue("own"), ca.file)};
    put_in_front();
    int tried = 0;
    const char *names[] = {
#define NAME(function) #function,
        TLS_FUNCTION_LIST(NAME)
#undef NAME
    };
    for (auto &mode : modes) ASSERT_EQ("", play(mode));
    int most = built_long_run() ? 40 : 3;
    for (const char *name : names) {
        if (cannot_fail(name) || without_result.count(name)) continue;
        bool ever = false;
        for (auto &mode : modes)
            for (int turn = 1; turn <= most; turn++) {
                SCOPED_TRACE(std::string(name) + ", call " + std::to_string(turn) + ", QUOIT_TLS=" + mode.at("TLS"));
                fault = {name, turn};
                std::string text = play(mode);
                if (!fault.failed) break; /* not called so often */
                ever = true;
                tried++;
                EXPECT_TRUE(text.empty() || text.size() > 20) << text;
                fault = {};
            }
        EXPECT_TRUE(ever) << name << " was never called";
    }
    fault = {};
    for (auto &mode : modes) EXPECT_EQ("", play(mode)) << "something was left behind";
    EXPECT_GT(tried, 50);
}
