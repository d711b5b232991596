// Checks the client on a real cluster: `check ADDRESS [KEYS]`, or `check ADDRESS KEYS CALLS` for a long map whose
// cluster is broken meanwhile, or `check ADDRESS KEYS CALLS TIMEOUT_MS` for calls one after the other. Prints what it saw; the exit code is 1 if something was wrong.

#include <sys/resource.h>
#include <sys/time.h>

#include <csignal>
#include <iostream>

#include "scaler.hpp"

namespace {

int wrong = 0;

void expect(bool right, const std::string& what) {
    std::cout << (right ? "right: " : "WRONG: ") << what << std::endl;
    wrong += !right;
}

template <typename Function>
void expect_error(const std::string& name, const std::string& part, Function function) {
    try {
        function();
        expect(false, name + " expected, and nothing was thrown");
    } catch (const scaler::Error& error) {
        const bool right = error.name == name && std::string(error.what()).find(part) != std::string::npos;
        expect(right, error.name + ": " + error.what());
    }
}

int alone(scaler::Client& client, int calls) {
    for (int call = 0; call < calls; ++call) try {
        const auto value = client.submit("math:sqrt", '[' + std::to_string(call) + ']').result.get();
        std::cout << "value " << value << std::endl;
    } catch (const scaler::Error& error) {
        std::cout << error.name << ' ' << error.what() << std::endl;
    }
    return 0;
}

int long_map(scaler::Client& client, int calls) {
    std::vector<scaler::Call> started;
    for (int item = 0; item < calls; ++item) {
        const auto text = std::to_string(item);
        started.push_back(client.submit("support.tasks:pause_and_add", '[' + text + ',' + text + ']'));
    }
    started.at(10).result.wait();
    std::cout << "results come in" << std::endl;
    int right = 0;
    for (int item = 0; item < calls; ++item) right += started[item].result.get() == std::to_string(2 * item);
    std::cout << right << " right" << std::endl;
    return right != calls;
}

// Signals that only the client's thread can take while it works: each interrupts a system call.
void check_signals(scaler::Client& client) {
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    std::signal(SIGALRM, [](int) {});
    pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
    const itimerval often{{0, 500}, {0, 500}}, never{};
    setitimer(ITIMER_REAL, &often, nullptr);
    for (int at = 0; at < 500; ++at) client.submit("math:sqrt", "[16]").result.get();
    setitimer(ITIMER_REAL, &never, nullptr);
    expect(true, "calls while signals come");
}

// A client that needs a connection to object storage, and may open no file.
void check_descriptors(scaler::Client& client) {
    rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit few{100, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    std::vector<int> taken;
    while (taken.empty() || taken.back() >= 0) taken.push_back(dup(STDERR_FILENO));
    expect_error("ScalerError", "Too many open files", [&] { client.submit("builtins:len", "[\"" + std::string(20'000, 'x') + "\"]").result.get(); });
    expect_error("ScalerError", "Too many open files", [&] { client.submit("math:sqrt", "[16]"); });
    for (const auto descriptor : taken) close(descriptor);
    setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace

int main(int count, char** words) {
    const std::string address = words[1];
    scaler::Options options;
    options.name = "check of the C++ client";
    if (count > 2) options.keys = words[2];
    if (count > 4) options.timeout = std::chrono::milliseconds(std::stoi(words[4]));
    scaler::Client client(address, options);
    if (count > 4) return alone(client, std::stoi(words[3]));
    if (count > 3) return long_map(client, std::stoi(words[3]));

    expect(client.submit("math:sqrt", "[16]").result.get() == "4.0", "a result");
    expect(client.submit("builtins:sorted", R"({"args": [[3, 1, 2]], "kwargs": {"reverse": true}})").result.get() == "[3, 2, 1]", "keywords");
    expect_error("ValueError", "größe 😀", [&] { client.submit("support.tasks:explode", R"(["größe 😀"])").result.get(); });
    expect_error("ScalerError", "ValueError", [&] { client.submit("support.tasks:explode", R"(["\udcff"])").result.get(); });
    try {
        client.submit("support.tasks:explode", R"(["no"])").result.get();
    } catch (const scaler::Error& error) {
        expect(error.traceback.find("in explode") != std::string::npos, "a traceback");
    }
    expect_error("DeserializeError", "no_such_module", [&] { client.submit("no_such_module:f", "[]").result.get(); });
    for (const auto& name : std::vector<std::string>{"sqrt", "math:\xff", "math:\"", "math:" + std::string(5'000, 'x')}) {
        expect_error("TypeError", "module:qualname", [&] { client.submit(name, "[]"); });
    }

    std::vector<scaler::Call> sleeping;  // two that run, one that waits for a worker
    for (int at = 0; at < 3; ++at) sleeping.push_back(client.submit("time:sleep", "[60]"));
    for (; !sleeping.empty(); sleeping.pop_back()) {
        client.cancel(sleeping.back());
        expect_error("CancelledError", "", [&] { sleeping.back().result.get(); });
    }

    const std::string longest(3'000'000, 'x');
    expect(client.submit("builtins:len", "[\"" + longest + "\"]").result.get() == "3000000", "a long argument");
    expect(client.submit("operator:mul", R"(["ab", 1500000])").result.get().size() == 3'000'002, "a long result");

    std::vector<std::string> items;
    for (int item = 0; item < 100'000; ++item) items.push_back(std::to_string(-item));
    const auto results = client.map("builtins:abs", items);
    size_t right = 0;
    for (size_t item = 0; item < items.size(); ++item) right += results[item] == std::to_string(item);
    expect(right == items.size(), "a map of 100,000 calls");
    expect_error("ValueError", "math domain error", [&] { client.map("math:sqrt", {"1", "-1", "4"}); });

    for (const std::string wrong : {"", "nowhere", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:0"}) {
        expect_error("AddressError", "such as tcp://", [&] { scaler::Client client(wrong, options); });
    }
    scaler::Options without;
    without.timeout = std::chrono::milliseconds(500);
    expect_error("SchedulerLostError", "is it running?", [&] { scaler::Client("tcp://127.0.0.1:9", without); });
    if (!options.keys.empty()) expect_error("SchedulerLostError", "it may demand keys", [&] { scaler::Client(address, without); });
    const auto colon = address.rfind(':');
    const auto storage = address.substr(0, colon + 1) + std::to_string(std::stoi(address.substr(colon + 1)) + 1);
    expect_error("HandshakeRefusedError", "give that of the scheduler", [&] { scaler::Client(storage, options); });
    options.timeout = std::chrono::milliseconds::max();
    scaler::Client patient(address, options);
    check_signals(patient);
    check_descriptors(patient);
    return wrong != 0;
}
