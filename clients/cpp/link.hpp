// The connecting side of a link, sections 1.1 to 1.4 of the protocol. One thread owns it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <capnp/message.h>
#include <zmq.hpp>

#include "messages.capnp.h"

namespace scaler {

using Clock = std::chrono::steady_clock;

struct Keys {
    std::string server, public_key, secret_key;  // 32 bytes each; empty: no keys
};

Keys read_keys(const std::string& directory);
std::string random_bytes(size_t count);

class Link {
public:
    struct Events {
        std::function<void(Welcome::Reader, bool resumed)> up;
        std::function<void(const std::string& reason)> refused;  // for good
        std::function<void(const std::string& reason)> lost;  // no connection for the timeout; attempts go on
        std::function<void(Message::Reader, std::string_view payload)> message;
    };

    Link(zmq::context_t& context, std::string address, Keys keys, std::chrono::milliseconds timeout,
         std::function<void(Hello::Builder)> hello, Events events);

    // Send a message, numbered unless it is one that keeps the connection, if the link is up; what a new stream needs
    // is told by `up`.
    void send(capnp::MallocMessageBuilder& message, std::string_view payload = {});
    // Receive what is there, and do what is due.
    void turn();
    // Say goodbye.
    void close();
    bool is_up() const { return up_; }
    void add_to(std::vector<zmq::pollitem_t>& items);

private:
    void connect();
    void drop();
    void receive(const zmq::message_t& frame);
    void welcomed(Welcome::Reader welcome);
    void acknowledge(uint64_t sequence);
    void write(const std::string& frame);

    zmq::context_t& context_;
    const std::string address_;
    const Keys keys_;
    const std::chrono::milliseconds timeout_;
    const std::function<void(Hello::Builder)> hello_;
    const Events events_;
    const std::string identity_ = random_bytes(16), secret_ = random_bytes(16);
    uint64_t incarnation_, peer_incarnation_ = 0, sent_ = 0, received_ = 0;
    uint32_t epoch_ = 0, owed_ = 0;
    std::deque<std::pair<uint64_t, std::string>> kept_;  // numbered messages without an acknowledgement
    std::optional<zmq::socket_t> socket_, monitor_;
    bool up_ = false, lost_ = false, ended_ = false;
    std::string failure_;  // what the last failed handshake may mean
    std::chrono::milliseconds retry_{50}, heartbeat_{1000};
    Clock::time_point down_since_, heard_at_, attempt_at_, owed_since_;
};

}  // namespace scaler
